"""What a trial reads: every mistake that can be seen without loading is one line before anything starts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import Zoo
from tiny_rollouts import trial_config

from rlhf_core.assets import RewardSource, load_function, problems, resolve
from rlhf_core.config import TrialConfig, apply
from rlhf_core.errors import ConfigError


@pytest.fixture
def good(zoo: Zoo) -> TrialConfig:
    return apply(
        TrialConfig(),
        {
            "model.policy": zoo.policies["Llama"],
            "reward.model": zoo.rewards["same"],
            "data.prompts": zoo.prompts,
        },
    )


def _one(config: TrialConfig, key: str, value: object) -> str:
    (line,) = problems(apply(config, {key: value}))
    return line


def test_a_complete_configuration_has_no_problems(good: TrialConfig, zoo: Zoo) -> None:
    assert problems(good) == []
    assets = resolve(good)
    assert (assets.policy, assets.reference) == (zoo.policies["Llama"], zoo.policies["Llama"])
    assert assets.reward.model == zoo.rewards["same"]
    assert assets.heldout is None
    assert set(assets.prompts) == {"train", "eval", "test"}
    assert set(assets.prompts.values()) == {zoo.prompts}


def test_everything_that_is_missing_is_named_together() -> None:
    assert problems(TrialConfig()) == [
        "model.policy must be named where data.task is null",
        "reward.model, reward.function or reward.url must be named where data.task is null",
        "data.prompts must be named where data.task is null",
    ]
    with pytest.raises(ConfigError) as caught:
        resolve(TrialConfig())
    assert len(caught.value.problems) == 3


def test_problems_of_several_assets_come_together(good: TrialConfig) -> None:
    config = apply(
        good,
        {
            "model.policy": "./nowhere",
            "reward.model": None,
            "reward.function": "core_rewards:lenght",
            "data.eval_prompts": "none.txt",
        },
    )
    keys = [line.split(":")[0] for line in problems(config)]
    assert keys == ["model.policy", "reward.function", "data.eval_prompts"]


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (shutil.rmtree, "no folder"),
        (lambda p: (p / "config.json").unlink(), "is no Hugging Face model: it has no config.json"),
        (lambda p: (p / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda p: (p / "config.json").write_text("[]"), "cannot be read as JSON"),
        (lambda p: (p / "config.json").write_text("{}"), "names no model_type"),
        (lambda p: (p / "model.safetensors").unlink(), "holds no weights"),
        (
            lambda p: [f.unlink() for f in p.glob("tokenizer*")],
            "holds no tokenizer; save it there with tokenizer.save_pretrained",
        ),
    ],
)
def test_a_damaged_model_folder_is_named(
    good: TrialConfig, zoo: Zoo, tmp_path: Path, damage: Damage, says: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(zoo.policies["Llama"], folder)
    assert problems(apply(good, {"model.policy": str(folder)})) == []
    damage(folder)
    line = _one(good, "model.policy", str(folder))
    assert line.startswith("model.policy: ")
    assert says in line
    assert str(folder) in line


def test_a_model_that_is_a_file_is_named(good: TrialConfig, zoo: Zoo) -> None:
    assert "a model is a folder" in _one(good, "reward.model", zoo.prompts)


def test_a_reference_needs_no_tokenizer(good: TrialConfig, zoo: Zoo, tmp_path: Path) -> None:
    shutil.copytree(zoo.policies["Llama"], tmp_path / "copy")
    for file in (tmp_path / "copy").glob("tokenizer*"):
        file.unlink()
    assert problems(apply(good, {"model.reference": str(tmp_path / "copy")})) == []


def test_a_hub_id_is_left_to_the_hub(good: TrialConfig) -> None:
    assert problems(apply(good, {"model.policy": "some-org/some.model-7b"})) == []
    assert "no folder" in _one(good, "model.policy", "a/b/c")
    assert "no folder" in _one(good, "model.policy", "not an id")


def test_the_home_folder_is_written_out(
    good: TrialConfig, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(zoo.policies["Llama"], tmp_path / "policy")
    config = apply(good, {"model.policy": "~/policy"})
    assert problems(config) == []
    assert resolve(config).policy == str(tmp_path / "policy")


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_an_empty_prompt_file_is_named(good: TrialConfig, tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.txt"
    path.write_text(text)
    assert _one(good, "data.test_prompts", str(path)) == (
        f"data.test_prompts: '{path}' holds no prompt; write one a line"
    )


def test_an_unreadable_prompt_file_is_named(good: TrialConfig, tmp_path: Path) -> None:
    assert "cannot be read: No such file" in _one(good, "data.prompts", str(tmp_path / "none"))
    assert "cannot be read: Is a directory" in _one(good, "data.prompts", str(tmp_path))
    (tmp_path / "latin").write_bytes("ä".encode("latin-1"))
    assert "not UTF-8" in _one(good, "data.prompts", str(tmp_path / "latin"))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("core_rewards", "must be 'package.module:function'"),
        (":length", "must be 'package.module:function'"),
        ("core_rewards:lenght", "has no function 'lenght'; did you mean 'length'"),
        ("core_rewards:Metadata2", "has no function"),
        ("no_such_module:f", "cannot be imported: No module named 'no_such_module'"),
        (".relative:f", "must be 'package.module:function'"),
        ("..x:dumps", "must be 'package.module:function'"),
        ("json:decoder", "is a module, which cannot be called"),
    ],
)
def test_a_bad_function_path_is_named(good: TrialConfig, path: str, says: str) -> None:
    line = _one(apply(good, {"reward.model": None}), "reward.function", path)
    assert line.startswith("reward.function")
    assert says in line


@pytest.mark.parametrize("code", ["1 +", "raise RuntimeError('boom')", "import no_such_thing"])
def test_a_module_that_fails_on_import_is_named(
    good: TrialConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    (tmp_path / "fails_on_import.py").write_text(code + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("fails_on_import", None)
    line = _one(good, "reward.heldout_function", "fails_on_import:f")
    assert line.startswith("reward.heldout_function: 'fails_on_import:f' cannot be imported")


def test_a_function_is_loaded() -> None:
    function = load_function("core_rewards:letter_a", "reward.function")
    assert function(["p"], ["aa"], [{}]) == [0.5]


def test_an_unknown_builtin_task_is_named() -> None:
    line = _one(TrialConfig(), "data.task", "builtin:review")
    assert line.startswith("data.task: no built-in task 'review'; there is reviews; did you mean")
    with pytest.raises(ConfigError, match="reviews"):
        resolve(apply(TrialConfig(), {"data.task": "builtin:review"}))


def test_a_folder_that_is_no_task_is_named(tmp_path: Path) -> None:
    assert _one(TrialConfig(), "data.task", str(tmp_path)).startswith("data.task: ")


def test_what_the_configuration_names_goes_before_the_task(builtin_task: Path, zoo: Zoo) -> None:
    task = json.loads((builtin_task / "task.json").read_text())
    config = apply(
        TrialConfig(), {"data.task": str(builtin_task), "reward.function": "core_rewards:length"}
    )
    assets = resolve(config)
    assert assets.policy == str(builtin_task / task["policy"])
    assert (assets.reward.function, assets.reward.model) == ("core_rewards:length", None)
    assert assets.heldout is not None
    assert len(set(assets.prompts.values())) == 3
    assets = resolve(apply(config, {"data.prompts": zoo.prompts}))
    assert assets.prompts["train"] == zoo.prompts
    assert assets.prompts["eval"] != zoo.prompts


def test_an_offset_belongs_to_a_model(good: TrialConfig) -> None:
    assert resolve(apply(good, {"reward.offset": 0.5})).reward.offset == 0.5
    function = {"reward.model": None, "reward.function": "core_rewards:length"}
    with pytest.raises(ConfigError, match=r"reward.offset belongs to a reward.model"):
        apply(good, {**function, "reward.offset": 0.5})


def test_named_rewards_are_checked_and_resolved(good: TrialConfig, zoo: Zoo) -> None:
    assert resolve(good).extra == {}
    sound = {
        "reward.extra.short.function": "core_rewards:length",
        "reward.extra.safe.model": zoo.rewards["other"],
        "reward.extra.safe.offset": 0.5,
    }
    assert problems(apply(good, sound)) == []
    assert resolve(apply(good, sound)).extra == {
        "short": RewardSource(function="core_rewards:length"),
        "safe": RewardSource(model=zoo.rewards["other"], offset=0.5),
    }
    wrong = {
        "reward.extra.short.function": "core_rewards:lenght",
        "reward.extra.safe.model": "./none",
    }
    lines = problems(apply(good, wrong))
    assert len(lines) == 2
    assert lines[0].startswith("reward.extra.safe.model")
    assert lines[1].startswith("reward.extra.short.function: module 'core_rewards' has no function")


def test_a_target_that_no_layer_has_is_named_with_those_there_are(good: TrialConfig) -> None:
    adapters = apply(good, {"model.lora.rank": 4})
    assert problems(adapters) == []
    assert problems(apply(adapters, {"model.lora.targets": ("q_proj", "mlp.up_proj")})) == []
    line = _one(adapters, "model.lora.targets", ("q_porj",))
    assert line.startswith(
        "model.lora.targets: 'q_porj' matches no linear layer of the model; did you mean 'q_proj'"
    )
    assert line.endswith("there are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj")
    # What is not trained with adapters is not asked about them.
    assert problems(good) == []


@pytest.mark.parametrize(
    ("key", "config", "tail"),
    [
        (
            "model.policy",
            {"architectures": ["LlamaForSequenceClassification"]},
            "is a LlamaForSequenceClassification, which continues no text; name a causal language model",
        ),
        (
            "model.reference",
            {"architectures": ["BertForMaskedLM"]},
            "is a BertForMaskedLM, which continues no text; name a causal language model",
        ),
        (
            "model.policy",
            {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
            "is an encoder and a decoder, but a policy continues its prompt; name a causal model",
        ),
        (
            "reward.model",
            {"architectures": ["LlamaForCausalLM"]},
            "is a LlamaForCausalLM, which gives no scores; name a sequence classifier",
        ),
    ],
)
def test_a_model_of_another_kind_is_refused_before_it_is_loaded(
    zoo: Zoo, tmp_path: Path, key: str, config: dict[str, Any], tail: str
) -> None:
    shutil.copytree(zoo.policies["Llama"], tmp_path / "copy")
    file = tmp_path / "copy" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    (line,) = problems(trial_config(zoo, **{key: str(tmp_path / "copy")}))
    assert line == f"{key}: {str(tmp_path / 'copy')!r} {tail}"
