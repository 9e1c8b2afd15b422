"""Reward models: scores equal a direct Hugging Face computation on the model's own tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import CONTEXT, role, rollout, trial_config
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf_core.errors import ConfigError, DivergedError
from rlhf_core.experience import weighted_scores
from rlhf_core.prompts import encode_prompt
from rlhf_core.roles.functions import RewardFunctionError
from rlhf_core.roles.reward import decode_responses
from rlhf_core.types import Chunk, Prompt


def _direct(folder: str, rows: list[list[int]]) -> Tensor:
    """Each sequence alone, so that no padding is involved."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        scores = [model(input_ids=torch.tensor([row])).logits[0, 0] for row in rows]
    return torch.stack(scores)


def _texts(config: Any, batch: Any, asked: tuple[Prompt, ...]) -> list[tuple[str, str]]:
    tokenizer = AutoTokenizer.from_pretrained(config.model.policy)
    return [(p.text, r) for p, r in zip(asked, decode_responses(tokenizer, batch), strict=True)]


@pytest.mark.parametrize(("family", "reward"), [("Llama", "same"), ("GPT2", "same_gpt2")])
@pytest.mark.parametrize("size", [3, 64])
def test_the_same_tokenizer_reads_the_sampled_tokens(
    zoo: Zoo, family: str, reward: str, size: int
) -> None:
    config = trial_config(
        zoo, family, optim__micro_batch_size=size, **{"reward.model": zoo.rewards[reward]}
    )
    batch, asked = rollout(config)
    rewarder = role("reward", config)
    assert rewarder.proxy.same_tokens
    scores = rewarder.scores(CONTEXT, batch, asked)
    rows = [batch.tokens_BL[i, : int(batch.lengths_B[i])].tolist() for i in range(batch.size)]
    torch.testing.assert_close(
        scores.proxy_B, _direct(zoo.rewards[reward], rows), atol=1e-5, rtol=1e-5
    )
    assert scores.heldout_B is None
    assert scores.proxy_B.dtype == torch.float32


@pytest.mark.parametrize("reward", ["other", "encoder"])
def test_another_tokenizer_reads_the_text(zoo: Zoo, reward: str) -> None:
    config = trial_config(zoo, **{"reward.model": zoo.rewards[reward]})
    batch, asked = rollout(config)
    rewarder = role("reward", config)
    assert not rewarder.proxy.same_tokens
    tokenizer = AutoTokenizer.from_pretrained(zoo.rewards[reward])
    rows = [tokenizer(p + r)["input_ids"] for p, r in _texts(config, batch, asked)]
    assert len({len(row) for row in rows}) > 2
    torch.testing.assert_close(
        rewarder.scores(CONTEXT, batch, asked).proxy_B,
        _direct(zoo.rewards[reward], rows),
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.parametrize("template", ["auto", "off"])
def test_the_reward_models_own_chat_template_is_used(zoo: Zoo, template: str) -> None:
    config = trial_config(
        zoo, data__chat_template=template, **{"reward.model": zoo.rewards["chat"]}
    )
    batch, asked = rollout(config)
    tokenizer = AutoTokenizer.from_pretrained(zoo.rewards["chat"])
    pairs = _texts(config, batch, asked)
    if template == "auto":
        texts = [f"u.{p}<eos>a.{r.strip()}<eos>" for p, r in pairs]
    else:
        texts = [p + r for p, r in pairs]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    if template == "auto":
        assert all(row[-1] == tokenizer.eos_token_id for row in rows)
    torch.testing.assert_close(
        role("reward", config).scores(CONTEXT, batch, asked).proxy_B,
        _direct(zoo.rewards["chat"], rows),
        atol=1e-5,
        rtol=1e-5,
    )


def test_a_template_of_its_own_makes_the_same_tokenizer_another(zoo: Zoo) -> None:
    config = trial_config(zoo, **{"reward.model": zoo.rewards["templated"]})
    scorer = role("reward", config).proxy
    assert not scorer.same_tokens
    tokenizer = AutoTokenizer.from_pretrained(zoo.rewards["templated"])
    ids = scorer._retokenise(Prompt("hi", (1,)), "ok")
    assert tokenizer.decode(ids) == "u.hi<eos>a.ok<eos>"


def test_messages_of_the_prompt_reach_the_reward_model_but_a_column_of_that_name_does_not(
    zoo: Zoo,
) -> None:
    config = trial_config(zoo, **{"reward.model": zoo.rewards["chat"]})
    tokenizer = AutoTokenizer.from_pretrained(config.model.policy)
    messages = [{"role": "system", "content": "be good"}, {"role": "user", "content": "hi"}]
    rows = ({"prompt": messages}, {"prompt": "hi", "messages": messages})
    asked = tuple(encode_prompt(tokenizer, row, 64, "auto") for row in rows)
    scorer = role("reward", config).proxy
    own = AutoTokenizer.from_pretrained(zoo.rewards["chat"])
    texts = [own.decode(scorer._retokenise(prompt, " ok ")) for prompt in asked]
    assert texts == ["s.be good<eos>u.hi<eos>a.ok<eos>", "u.hi<eos>a.ok<eos>"]


def test_too_long_a_text_loses_its_beginning_but_no_special_token(zoo: Zoo) -> None:
    config = trial_config(zoo, **{"reward.model": zoo.rewards["encoder"]})
    scorer = role("reward", config).proxy
    tokenizer = AutoTokenizer.from_pretrained(zoo.rewards["encoder"])
    ids = scorer._retokenise(Prompt("film " * 200, (1,)), "good end")
    assert len(ids) == 96
    assert tokenizer.decode(ids[-4:]) == "film good end [SEP]"
    assert ids[0] == tokenizer.cls_token_id
    config = trial_config(zoo, **{"reward.model": zoo.rewards["other"]})
    ids = role("reward", config).proxy._retokenise(Prompt("x" * 300, (1,)), "yz")
    assert AutoTokenizer.from_pretrained(zoo.rewards["other"]).decode(ids) == "x" * 94 + "yz"


def test_offsets_are_subtracted_each_from_its_own(zoo: Zoo) -> None:
    models = {"reward.model": zoo.rewards["same"], "reward.heldout_model": zoo.rewards["encoder"]}
    plain = trial_config(zoo, **models)
    batch, asked = rollout(plain)
    before = role("reward", plain).scores(CONTEXT, batch, asked)
    moved = trial_config(zoo, reward__offset=0.5, reward__heldout_offset=-2.0, **models)
    after = role("reward", moved).scores(CONTEXT, batch, asked)
    torch.testing.assert_close(before.proxy_B - 0.5, after.proxy_B)
    assert before.heldout_B is not None
    assert after.heldout_B is not None
    torch.testing.assert_close(before.heldout_B + 2.0, after.heldout_B)


def test_a_function_gets_texts_without_special_tokens(zoo: Zoo) -> None:
    config = trial_config(zoo, reward__heldout_function="core_rewards:length")
    tokenizer = AutoTokenizer.from_pretrained(config.model.policy)
    asked = tuple(
        encode_prompt(tokenizer, {"prompt": "ab", "bonus": bonus}, 64, "auto") for bonus in (0, 10)
    )
    batch = role("rollout", config).generate(CONTEXT, Chunk(0, asked, 5))
    responses = decode_responses(tokenizer, batch)
    scores = role("reward", config).scores(CONTEXT, batch, asked)
    expected = [2 + len(responses[0]) / 100, 12 + len(responses[1]) / 100]
    assert scores.heldout_B is not None
    torch.testing.assert_close(scores.heldout_B, torch.tensor(expected))
    letters = torch.tensor([sum(r.count(v) for v in "aeiou") / 4 for r in responses])
    torch.testing.assert_close(scores.proxy_B, letters)
    assert not any("<" in response for response in responses)


def test_a_reward_model_of_nan_is_a_divergence(zoo: Zoo) -> None:
    config = trial_config(zoo, **{"reward.model": zoo.rewards["same"]})
    batch, asked = rollout(config)
    rewarder = role("reward", config)
    with torch.no_grad():
        rewarder.proxy.model.score.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match="reward: scores"):
        rewarder.scores(CONTEXT, batch, asked)


def test_named_rewards_are_scored_each_by_its_own_model_or_function(zoo: Zoo) -> None:
    extra = {
        "reward.extra.safe.model": zoo.rewards["other"],
        "reward.extra.safe.offset": 0.25,
        "reward.extra.safe.weight": 9.0,
        "reward.extra.letters.function": "core_rewards:vowels",
    }
    config = trial_config(zoo, **{"reward.model": zoo.rewards["same"], **extra})
    batch, asked = rollout(config)
    scores = role("reward", config).scores(CONTEXT, batch, asked)
    alone = {
        "proxy": trial_config(zoo, **{"reward.model": zoo.rewards["same"]}),
        "safe": trial_config(zoo, **{"reward.model": zoo.rewards["other"], "reward.offset": 0.25}),
        "letters": trial_config(zoo),
    }
    assert list(scores.extra) == ["safe", "letters"]
    for name, scores_B in {"proxy": scores.proxy_B, **scores.extra}.items():
        expected_B = role("reward", alone[name]).scores(CONTEXT, batch, asked).proxy_B
        assert torch.equal(scores_B, expected_B), name


def test_the_sum_is_float32_whatever_the_type_of_the_weights(zoo: Zoo) -> None:
    config = trial_config(
        zoo, model__dtype="bfloat16", **{
            "reward.model": zoo.rewards["same"], "reward.extra.safe.model": zoo.rewards["other"],
            "reward.extra.letters.function": "core_rewards:letter_a",
            "reward.extra.letters.weight": 1e-4,
        },
    )  # fmt: skip
    batch, asked = rollout(config)
    scores = role("reward", config).scores(CONTEXT, batch, asked)
    parts = {"proxy": scores.proxy_B, **scores.extra}
    assert {part_B.dtype for part_B in parts.values()} == {torch.float32}
    total_B = weighted_scores(config, scores)
    assert total_B.dtype == torch.float32
    exact_B = parts["proxy"].double() + parts["safe"].double() + 1e-4 * parts["letters"].double()
    torch.testing.assert_close(total_B.double(), exact_B, atol=1e-6, rtol=1e-6)


def test_a_named_reward_that_fails_is_named(zoo: Zoo) -> None:
    config = trial_config(zoo, **{"reward.extra.safe.model": zoo.rewards["same"]})
    batch, asked = rollout(config)
    rewarder = role("reward", config)
    with torch.no_grad():
        rewarder.extra["safe"].model.score.weight.fill_(float("nan"))
    with pytest.raises(DivergedError, match=r"reward: scores of reward\.extra\.safe"):
        rewarder.scores(CONTEXT, batch, asked)
    no_head = {"reward.extra.safe.model": zoo.policies["Llama"]}
    with pytest.raises(ConfigError, match=r"reward\.extra\.safe\.model.*lacks weights"):
        role("reward", trial_config(zoo, **no_head))
    broken = trial_config(zoo, **{"reward.extra.long.function": "core_rewards:raises"})
    with pytest.raises(
        RewardFunctionError, match=r"reward\.extra\.long: core_rewards:raises raised"
    ):
        role("reward", broken).scores(CONTEXT, batch, asked)


def test_a_reference_of_nan_is_a_divergence(zoo: Zoo) -> None:
    config = trial_config(zoo)
    batch, _ = rollout(config)
    reference = role("reference", config)
    with torch.no_grad():
        next(reference.model.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError, match="reference: logprobs"):
        reference.logprobs(CONTEXT, batch, 1.0)
