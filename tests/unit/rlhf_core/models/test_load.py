"""Loading: what is loaded is what the folder holds, or an error says why not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from tiny_models import Zoo, byte_level, characters
from tiny_rollouts import CPU, role, trial_config
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rlhf_core.errors import ConfigError
from rlhf_core.models.load import (
    check_dtype,
    load_classifier,
    load_critic,
    load_policy,
    load_tokenizer,
    pick_device,
    positions,
    tokenizer_fingerprint,
)


def test_a_policy_named_as_a_reward_is_refused_not_made_up(zoo: Zoo) -> None:
    with pytest.raises(ConfigError) as caught:
        load_classifier(zoo.policies["Llama"], "float32", CPU, "reward.model")
    assert str(caught.value).startswith(
        f"reward.model: '{zoo.policies['Llama']}' (LlamaForCausalLM"
    )
    assert "score.weight" in str(caught.value)


def test_a_reward_named_as_a_policy_is_refused_not_made_up(zoo: Zoo) -> None:
    with pytest.raises(ConfigError, match=r"model\.policy: .*lacks weights .*lm_head\.weight"):
        load_policy(zoo.rewards["same"], "float32", CPU)


def test_a_classifier_with_two_labels_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(
        zoo.rewards["same"], num_labels=2, ignore_mismatched_sizes=True
    )
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="a reward model has one label"):
        load_classifier(str(tmp_path), "float32", CPU, "reward.model")


def test_damaged_weights_are_named(zoo: Zoo, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(zoo.policies["Llama"], folder)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match=r"model\.policy: .* cannot be loaded"):
        load_policy(str(folder), "float32", CPU)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    with pytest.raises(ConfigError, match="no_such_model"):
        load_policy(str(tmp_path), "float32", CPU)


def test_a_missing_folder_is_named_offline() -> None:
    with pytest.raises(ConfigError, match=r"model\.policy: 'no-such/model' cannot be loaded"):
        load_policy("no-such/model", "float32", CPU)


def test_a_hub_id_is_read_from_the_local_cache(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, revision = tmp_path / "models--some-org--small", "c0ffee" * 6 + "c0ff"
    shutil.copytree(zoo.policies["Llama"], folder / "snapshots" / revision)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    config = trial_config(zoo, model__policy="some-org/small")
    found, named = (role("learner", c).model.state_dict() for c in (config, trial_config(zoo)))
    assert found.keys() == named.keys()
    assert all(torch.equal(tensor, named[name]) for name, tensor in found.items())


def test_tied_weights_are_no_missing_weights(zoo: Zoo) -> None:
    model = load_policy(zoo.policies["GPT2"], "float32", CPU)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert not model.training


def test_padding_falls_back_to_end_of_sequence(zoo: Zoo, tmp_path: Path) -> None:
    tokenizer = characters()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    shutil.copy(Path(zoo.policies["Llama"]) / "config.json", tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.pad_token_id == loaded.eos_token_id == 1


def test_a_tokenizer_without_end_of_sequence_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    tokenizer = characters()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    shutil.copy(Path(zoo.policies["Llama"]) / "config.json", tmp_path)
    with pytest.raises(ConfigError, match=r"reward\.model: .*has no end-of-sequence"):
        load_tokenizer(str(tmp_path), "reward.model")


def test_fingerprints_tell_tokenizers_apart_by_what_they_do(zoo: Zoo) -> None:
    one = tokenizer_fingerprint(characters())
    assert one == tokenizer_fingerprint(characters(chat=True))
    assert one != tokenizer_fingerprint(characters(order="zyxwvutsrqponmlkjihgfedcba ."))
    assert one != tokenizer_fingerprint(byte_level())
    padded = load_tokenizer(zoo.policies["Llama"])
    saved = tokenizer_fingerprint(padded)
    padded(["a", "bcd"], padding=True, truncation=True, max_length=2)
    assert tokenizer_fingerprint(padded) == saved


def test_positions_are_the_models(zoo: Zoo) -> None:
    for family in zoo.policies:
        assert positions(load_policy(zoo.policies[family], "float32", CPU)) == 96


def test_devices() -> None:
    assert pick_device("cpu", 1.0) == CPU
    assert pick_device("auto", 0.0) == CPU
    if not torch.cuda.is_available():
        assert pick_device("auto", 1.0) == CPU
        with pytest.raises(ConfigError, match="needs a CUDA device"):
            pick_device("cuda", 1.0)


def test_dtype_is_the_one_asked_for(zoo: Zoo) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = load_policy(zoo.policies["Llama"], str(dtype).removeprefix("torch."), CPU)
        assert {p.dtype for p in model.parameters()} == {dtype}


@torch.no_grad()
def test_a_critic_from_the_reward_starts_with_its_centred_score(zoo: Zoo) -> None:
    critic = load_critic(zoo.rewards["same"], zoo.policies["Llama"], "float32", CPU, bias=-0.5)
    reward = AutoModelForSequenceClassification.from_pretrained(zoo.rewards["same"]).eval()
    ids = torch.tensor([[5, 9, 12, 7, 20]])
    score = reward(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, 0]
    torch.testing.assert_close(critic(ids)[0, -1], score - 0.5)


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Qwen2"])
@torch.no_grad()
def test_a_critic_from_the_policy_starts_at_zero_on_its_trunk(zoo: Zoo, family: str) -> None:
    critic = load_critic(None, zoo.policies[family], "float32", CPU, bias=-0.5)
    ids = torch.tensor([[5, 9, 12, 7, 20]])
    assert (critic(ids) == 0).all()
    policy = AutoModelForCausalLM.from_pretrained(zoo.policies[family]).eval()
    expected = policy(ids, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(critic.trunk(ids).last_hidden_state, expected)


@pytest.mark.parametrize(
    ("init", "reward", "from_reward"),
    [
        ("reward", "same", True),
        ("policy", "same", False),
        ("reward", "other", False),
        ("reward", "encoder", False),
        ("reward", None, False),
    ],
)
def test_the_critic_takes_the_reward_model_only_with_its_tokens(
    zoo: Zoo, init: str, reward: str | None, from_reward: bool
) -> None:
    model = {} if reward is None else {"reward.model": zoo.rewards[reward], "reward.offset": 0.25}
    config = trial_config(zoo, model__critic_init=init, **model)
    critic = role("critic", config).model
    assert (critic.head.weight.abs().sum() > 0) == from_reward
    assert float(critic.head.bias.detach()) == (-0.25 if from_reward else 0.0)
    if from_reward:
        score = AutoModelForSequenceClassification.from_pretrained(zoo.rewards["same"]).score
        assert torch.equal(critic.head.weight, score.weight)


def test_a_type_that_the_device_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says of an old card stands in for it; there is none here."""
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with pytest.raises(
        ConfigError, match=r"model\.dtype 'bfloat16' .* but Tesla V100 has 7\.0; use"
    ):
        check_dtype("bfloat16", cuda)
    check_dtype("float32", cuda)
    check_dtype("bfloat16", CPU)
