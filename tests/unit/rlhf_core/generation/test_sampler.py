"""Sampling: what is stamped is what the model says, and padding changes nothing."""

from __future__ import annotations

import pytest
import torch
from tiny_models import POSITIONS, Zoo
from tiny_rollouts import CONTEXT, CPU, prompts, role, rollout, trial_config

from rlhf_core.errors import ConfigError, DivergedError, RlhfError
from rlhf_core.generation.sampler import Sampling, sample
from rlhf_core.models.load import load_policy
from rlhf_core.types import CallContext, Chunk, Prompt

FAMILIES = ["Llama", "GPT2", "Qwen2"]


def _sampling(temperature: float = 1.0, depth: int = 8, stop: tuple[int, ...] = (1,)) -> Sampling:
    return Sampling(depth, temperature, stop, pad_id=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_rollout_and_another_does_not(zoo: Zoo, family: str) -> None:
    config = trial_config(zoo, family)
    one, two, other = rollout(config, 3)[0], rollout(config, 3)[0], rollout(config, 4)[0]
    for name in one.__dataclass_fields__:
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert not torch.equal(one.tokens_BL, other.tokens_BL)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_response_does_not_depend_on_the_padding_of_its_prompt(zoo: Zoo, family: str) -> None:
    config = trial_config(zoo, family, rollout__temperature=0.001)
    sampler = role("rollout", config)
    asked = prompts(config)
    whole = sampler.generate(CONTEXT, Chunk(0, asked, 1))
    assert len({len(prompt.tokens) for prompt in asked}) > 3
    for row, prompt in enumerate(asked):
        alone = sampler.generate(CONTEXT, Chunk(0, (prompt,), 2))
        assert alone.response(0) == whole.response(row)
        count = len(alone.response(0))
        torch.testing.assert_close(
            alone.logprobs_BT[0, :count], whole.logprobs_BT[row, :count], atol=2e-3, rtol=1e-3
        )


def test_draws_follow_the_distribution(zoo: Zoo) -> None:
    model = load_policy(zoo.policies["Llama"], "float32", CPU)
    prompt = [10, 7, 9]
    tokens_BT, *_ = sample(model, [prompt] * 8000, _sampling(0.8, depth=1), seed=0)
    drawn = torch.bincount(tokens_BT[:, 0], minlength=31) / 8000
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([prompt])).logits[0, -1] / 0.8, -1)
    # Five standard errors.
    assert ((drawn - expected).abs() <= 5 * (expected * (1 - expected) / 8000).sqrt() + 1e-3).all()


def test_responses_end_with_end_of_sequence(zoo: Zoo) -> None:
    config = trial_config(zoo, rollout__temperature=2.0)
    asked = prompts(config) * 8
    batch = role("rollout", config).generate(CONTEXT, Chunk(0, asked, 1))
    lengths = batch.response_lengths_B
    assert 0 < int(batch.finished_B.sum()) < batch.size
    for row in range(batch.size):
        response = batch.response(row)
        assert (1 in response[:-1]) is False
        assert (response[-1] == 1) == bool(batch.finished_B[row])
        assert bool(batch.finished_B[row]) or len(response) == 8
        rest = batch.tokens_BL[row, len(asked[row].tokens) + len(response) :]
        assert (rest == 0).all()
    assert batch.tokens_BL.shape[1] == int(batch.lengths_B.max())
    assert int(lengths.min()) < 8


def test_padding_that_is_end_of_sequence_counts_once(zoo: Zoo) -> None:
    config = trial_config(zoo, "GPT2")
    model = load_policy(zoo.policies["GPT2"], "float32", CPU)
    with torch.no_grad():
        # The end becomes likely whatever came before.
        model.transformer.ln_f.bias.copy_(model.lm_head.weight[0] * 0.3)
    sampler = role("rollout", config)
    sampler.model.load_state_dict(model.state_dict())
    batch = sampler.generate(CONTEXT, Chunk(0, prompts(config) * 8, 1))
    assert int(batch.finished_B.sum()) > 0
    for row in torch.nonzero(batch.finished_B).flatten().tolist():
        assert batch.response(row)[-1] == 0
        assert batch.response(row).count(0) == 1


def test_sampling_ends_with_the_last_unfinished_response(zoo: Zoo) -> None:
    model = load_policy(zoo.policies["Llama"], "float32", CPU)
    every = tuple(range(31))
    tokens_BT, logprobs_BT, mask_BT = sample(model, [[5], [6, 7]], _sampling(stop=every), seed=0)
    assert tokens_BT.shape == logprobs_BT.shape == mask_BT.shape == (2, 1)
    assert mask_BT.all()


def test_every_stop_token_of_the_model_ends_a_response(zoo: Zoo) -> None:
    config = trial_config(zoo)
    sampler = role("rollout", config)
    sampler.model.generation_config.eos_token_id = [1, 20, 21]
    from rlhf_core.assets import resolve
    from rlhf_core.roles.rollout import ResponseSampler

    assert ResponseSampler(config, resolve(config), sampler.model).sampling.stop_ids == (1, 20, 21)
    assert sampler.sampler.sampling.stop_ids == (1,)


def test_responses_are_stamped_with_the_version_that_sampled_them(zoo: Zoo) -> None:
    config = trial_config(zoo)
    sampler, learner = role("rollout", config), role("learner", config)
    sampler.load_weights(CONTEXT, *learner.publish(CallContext("test", version=7)))
    chunk = Chunk(0, prompts(config), 1)
    batch = sampler.generate(CallContext("test", version=7), chunk)
    assert torch.equal(batch.versions_BT, 7 * batch.response_mask_BT)
    with pytest.raises(RlhfError, match="weights have version 7, but 8 was expected"):
        sampler.generate(CallContext("test", version=8), chunk)


def test_a_prompt_that_leaves_no_room_is_refused(zoo: Zoo) -> None:
    sampler = role("rollout", trial_config(zoo))
    fits, long = (Prompt("", (5,) * n) for n in (POSITIONS - 8, POSITIONS - 7))
    assert sampler.generate(CONTEXT, Chunk(0, (fits,), 1)).size == 1
    with pytest.raises(ConfigError, match=r"89 tokens and 8 new ones exceed the 96 positions"):
        sampler.generate(CONTEXT, Chunk(0, (fits, long), 1))


@pytest.mark.parametrize("name", ["rollout", "learner"])
def test_weights_that_are_nan_are_a_divergence_of_the_role(zoo: Zoo, name: str) -> None:
    config = trial_config(zoo)
    sampler = role(name, config)
    with torch.no_grad():
        next(sampler.model.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError, match=f"{name}: logprobs") as caught:
        sampler.generate(CONTEXT, Chunk(0, prompts(config), 1))
    assert caught.value.role == name
