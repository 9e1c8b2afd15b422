"""Log-probabilities and values equal those of a plain Hugging Face forward pass with attention mask."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import CONTEXT, CPU, role, rollout, trial_config
from torch import Tensor

from rlhf_core.models.forward import (
    logprobs,
    logprobs_and_entropy,
    micro_batches,
    response_tokens,
    split_lengths,
    token_logits,
    values,
)
from rlhf_core.models.load import load_policy
from rlhf_core.types import Rollout

FAMILIES = ["Llama", "GPT2", "Qwen2"]


def _plain(model: torch.nn.Module, batch: Rollout, temperature: float) -> tuple[Tensor, Tensor]:
    """One sequence at a time, everything computed, nothing shared with the code under test."""
    logps, entropies = torch.zeros(2, *batch.logprobs_BT.shape)
    for row in range(batch.size):
        start, count = int(batch.prompt_lengths_B[row]), int(batch.response_lengths_B[row])
        ids = batch.tokens_BL[row : row + 1, : start + count]
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].double()
        logp = torch.log_softmax(logits / temperature, -1)
        for t in range(count):
            logps[row, t] = logp[start + t - 1, ids[0, start + t]]
            entropies[row, t] = -(logp[start + t - 1].exp() * logp[start + t - 1]).sum()
    return logps, entropies


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@torch.no_grad()
def test_logprobs_and_entropy_equal_a_plain_forward(
    zoo: Zoo, family: str, temperature: float
) -> None:
    config = trial_config(zoo, family, rollout__temperature=temperature)
    batch, _ = rollout(config)
    model = load_policy(zoo.policies[family], "float32", CPU)
    expected, entropies = _plain(model, batch, temperature)
    got, entropy_BT = logprobs_and_entropy(model, batch, temperature)
    torch.testing.assert_close(got, logprobs(model, batch, temperature), atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy_BT, entropies, atol=1e-5, rtol=1e-5)
    assert (got[~batch.response_mask_BT] == 0).all()
    # What the sampler stamped.
    torch.testing.assert_close(batch.logprobs_BT, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_rows_do_not_depend_on_their_batch(zoo: Zoo, family: str) -> None:
    batch, _ = rollout(trial_config(zoo, family))
    model = load_policy(zoo.policies[family], "float32", CPU)
    whole = logprobs(model, batch, 1.0)
    for row in range(batch.size):
        alone = batch.select([row])
        part = logprobs(model, alone, 1.0)
        assert alone.tokens_BL.shape[1] == int(batch.lengths_B[row])
        torch.testing.assert_close(part[0], whole[row, : part.shape[1]], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_response_tokens_are_those_that_were_sampled(zoo: Zoo) -> None:
    batch, asked = rollout(trial_config(zoo))
    tokens_BT = response_tokens(batch)
    for row, prompt in enumerate(asked):
        assert tuple(batch.tokens_BL[row, : len(prompt.tokens)].tolist()) == prompt.tokens
        assert tokens_BT[row][batch.response_mask_BT[row]].tolist() == batch.response(row)
    model = load_policy(zoo.policies["Llama"], "float32", CPU)
    assert token_logits(model, batch).shape == (int(batch.response_mask_BT.sum()), 31)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 3, 64])
def test_the_reference_role_gives_the_stamped_logprobs(zoo: Zoo, family: str, size: int) -> None:
    config = trial_config(zoo, family, optim__micro_batch_size=size)
    batch, _ = rollout(config)
    ref_BT = role("reference", config).logprobs(CONTEXT, batch, 1.0)
    torch.testing.assert_close(ref_BT, batch.logprobs_BT, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_values_are_the_head_on_the_state_before_each_token(zoo: Zoo) -> None:
    config = trial_config(zoo, model__critic_init="reward", **{"reward.model": zoo.rewards["same"]})
    batch, _ = rollout(config)
    critic = role("critic", config)
    values_BT = critic.values(CONTEXT, batch)
    for row in range(batch.size):
        start, count = int(batch.prompt_lengths_B[row]), int(batch.response_lengths_B[row])
        ids = batch.tokens_BL[row : row + 1, : start + count]
        plain = critic.model.trunk(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        expected = critic.model.head(plain).squeeze(-1)[start - 1 : start + count - 1]
        torch.testing.assert_close(values_BT[row, :count], expected, atol=1e-5, rtol=1e-5)
        assert (values_BT[row, count:] == 0).all()
    torch.testing.assert_close(values(critic.model, batch), values_BT)


def test_micro_batches_cover_every_row_once_in_order() -> None:
    assert list(micro_batches([4, 2, 9, 1, 7], 2)) == [[4, 2], [9, 1], [7]]
    assert list(micro_batches([], 2)) == []


def test_groups_of_tokens_hold_no_more_than_fit_beside_a_sequence_that_is_too_long() -> None:
    groups = split_lengths([50, 9, 10, 4, 5, 12], size=1, tokens=20)
    assert groups == [[0], [5], [2, 1], [4, 3]]
    assert split_lengths([], size=1, tokens=20) == []
    assert split_lengths([50, 9, 10], size=2) == [[0, 1], [2]]


@pytest.mark.parametrize("name", ["critic", "reference", "reward"])
def test_every_forward_pass_keeps_to_the_tokens_of_a_micro_batch(zoo: Zoo, name: str) -> None:
    """Fewer or more passes, the same results."""
    model = {"reward.model": zoo.rewards["same"], "model.critic_init": "reward"}
    batch, asked = rollout(trial_config(zoo, **model))
    results, passes = [], []
    for tokens in (None, 10_000, 30, 1):
        asked_role = role(name, trial_config(zoo, optim__micro_batch_tokens=tokens, **model))
        owner = asked_role.proxy if name == "reward" else asked_role
        trunk = owner.model.trunk if name == "critic" else owner.model
        shapes: list[torch.Size] = []
        trunk.get_input_embeddings().register_forward_hook(
            lambda _module, inputs, _output, shapes=shapes: shapes.append(inputs[0].shape)
        )
        if name == "critic":
            results.append(asked_role.values(CONTEXT, batch))
        elif name == "reference":
            results.append(asked_role.logprobs(CONTEXT, batch, 0.7))
        else:
            results.append(asked_role.scores(CONTEXT, batch, asked).proxy_B)
        passes.append(len(shapes))
        assert sum(shape.numel() for shape in shapes) >= int(batch.lengths_B.sum())
        limit = max(tokens or 10_000, int(batch.lengths_B.max()))
        assert all(shape.numel() <= limit for shape in shapes)
    assert passes[0] == passes[1] == 1
    assert 1 < passes[2] < passes[3] == batch.size
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-6, rtol=1e-6)
