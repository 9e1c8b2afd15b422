"""The task folder contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.tasks.folder import (
    TaskFolder,
    finished_or_absent,
    part_prefix,
    write_manifest,
    write_prompts,
)


def make(root: Path, **changes: Any) -> Path:
    """A folder that keeps the contract, apart from ``changes`` to its manifest."""
    for name in ("policy", "reward", "second"):
        (root / name).mkdir(parents=True)
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            (root / name / file).write_text("{}")
    prompts = write_prompts(root, {"train": ["a", "b"], "eval": ["c é"], "test": ["d"]})
    manifest = {
        "name": "tiny",
        "policy": "policy",
        "reward": {"model": "reward", "offset": 0.25},
        "heldout": {"function": "package.module:score"},
        "prompts": prompts,
        "max_new_tokens": 8,
        "recipe": {"seed": 1},
        "metrics": {"seconds": 2.0},
    }
    write_manifest(root, {**manifest, **changes})
    return root


def test_a_sound_folder_loads_with_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "task")
    monkeypatch.chdir(tmp_path)
    task = TaskFolder.load("task")
    assert task.policy == tmp_path / "task" / "policy"
    assert task.reward_model == tmp_path / "task" / "reward"
    assert (task.heldout_model, task.heldout_function) == (None, "package.module:score")
    assert (task.reward_offset, task.heldout_offset) == (0.25, 0.0)
    assert (task.name, task.max_new_tokens, task.recipe) == ("tiny", 8, {"seed": 1})
    assert task.read_prompts("train") == ["a", "b"]
    assert task.read_prompts("eval") == ["c é"]


def test_the_heldout_measure_may_be_a_model(tmp_path: Path) -> None:
    task = TaskFolder.load(make(tmp_path, heldout={"model": "second", "offset": -1}))
    assert (task.heldout_model, task.heldout_function) == (tmp_path / "second", None)
    assert task.heldout_offset == -1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "schema_version must be 1, got 2"),
        ({"policy": "nowhere"}, "'policy' must name a model folder, but .*nowhere"),
        ({"policy": None}, "'policy' must name a model folder, got None"),
        ({"reward": "reward"}, "'reward' must be an object, got 'reward'"),
        (
            {"reward": {"model": "reward", "offset": "x"}},
            "'reward.offset' must be a number, got 'x'",
        ),
        ({"heldout": {}}, "needs either 'model' or 'function'"),
        ({"heldout": {"model": "second", "function": "a:b"}}, "needs either 'model' or 'function'"),
        ({"heldout": {"function": "no colon"}}, "must be 'module:function', got 'no colon'"),
        ({"prompts": {"train": "prompts_train.jsonl"}}, "'prompts.eval' must name a file"),
        ({"max_new_tokens": 0}, "whole number of at least 1, got 0"),
    ],
)
def test_a_broken_manifest_is_told_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    make(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message) as caught:
        TaskFolder.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert "task.json" in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_folder_without_one_of_its_files_is_refused(tmp_path: Path, file: str) -> None:
    make(tmp_path)
    (tmp_path / "reward" / file).unlink()
    with pytest.raises(ConfigError, match=r"'reward\.model' must name a model folder"):
        TaskFolder.load(tmp_path)


def test_no_folder_no_manifest_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder"):
        TaskFolder.load(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"holds no task\.json"):
        TaskFolder.load(tmp_path)
    (tmp_path / "task.json").write_text("{")
    with pytest.raises(ConfigError, match="must be JSON"):
        TaskFolder.load(tmp_path)
    (tmp_path / "task.json").write_text(json.dumps([1]))
    with pytest.raises(ConfigError, match="must hold a JSON object, got list"):
        TaskFolder.load(tmp_path)


def test_prompts_of_an_unknown_split_or_a_broken_line(tmp_path: Path) -> None:
    task = TaskFolder.load(make(tmp_path))
    with pytest.raises(ConfigError, match="must be one of train, eval, test, got 'dev'"):
        task.read_prompts("dev")
    task.prompts["eval"].write_text('{"prompt": "a"}\n{"text": "b"}\n')
    with pytest.raises(ConfigError, match=r"prompts_eval\.jsonl:2"):
        task.read_prompts("eval")


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build() -> None:
        with finished_or_absent(tmp_path / "task") as part:
            (part / "half").write_text("x")
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        build()
    assert list(tmp_path.iterdir()) == []


def test_a_build_appears_under_its_name_only_at_the_end(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "task"
    with finished_or_absent(final) as part:
        (part / "file").write_text("x")
        assert not final.exists()
        assert part.name.startswith(part_prefix(final))
    assert (final / "file").read_text() == "x"
    assert list(final.parent.iterdir()) == [final]
