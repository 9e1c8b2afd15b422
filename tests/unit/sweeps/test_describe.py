from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.config import apply, load_trial, resolve_trial
from rlhf_core.config.io import preset_names
from sweeps.programs.describe import differences_as_yaml, measured_by, measured_on
from sweeps.programs.ppo import PPOProgram

OWN = {"reward.function": "sweep_helpers:brevity"}


def notes(objective: str = "eval/heldout", **values: object) -> list[str]:
    config = apply(resolve_trial("tiny", "tiny"), {**OWN, **values})
    return measured_by(config, objective)


def test_a_reward_of_ones_own_beside_the_held_out_of_the_task_is_said() -> None:
    (line,) = notes()
    assert line.startswith(
        "objective eval/heldout is measured by the held-out reward of task builtin:reviews on the "
        "prompts of task builtin:reviews, while the reward that is optimised is reward.function "
        "sweep_helpers:brevity"
    )
    for remedy in ("reward.heldout_function", "eval/weighted", "data.eval_prompts"):
        assert remedy in line
    (line,) = notes(**{"data.eval_prompts": "mine.jsonl", "data.test_prompts": "test.jsonl"})
    assert "on mine.jsonl" in line
    assert "data.eval_prompts" not in line


def test_another_objective_leaves_only_the_last_judgement() -> None:
    (line,) = notes("eval/weighted", **{"data.test_prompts": "test.jsonl"})
    assert line.startswith("the last judgement is measured by")
    assert "on test.jsonl" in line


def test_nothing_is_said_where_nothing_is_mixed() -> None:
    assert measured_by(resolve_trial("tiny", "tiny"), "eval/heldout") == []
    assert notes(**{"reward.heldout_function": "sweep_helpers:brevity"}) == []


def test_what_is_measured_on_training_prompts_is_said() -> None:
    alone = {"data.task": None, "data.prompts": "mine.txt"}
    tiny = resolve_trial("tiny", "tiny")
    (line,) = measured_on(apply(tiny, alone))
    assert line.startswith(
        "eval/* and the last judgement are measured on the training prompts mine.txt"
    )
    assert "name data.eval_prompts and data.test_prompts" in line
    (line,) = measured_on(apply(tiny, {**alone, "data.eval_prompts": "eval.txt"}))
    assert line.startswith("the last judgement is measured on the training prompts mine.txt")
    assert measured_on(tiny) == measured_on(apply(tiny, {"data.prompts": "mine.txt"})) == []
    (line,) = measured_on(apply(tiny, {"data.prompts": "a.txt", "data.test_prompts": "a.txt"}))
    assert "name data.test_prompts" in line


@pytest.mark.parametrize("preset", preset_names())
def test_best_yaml_lists_what_differs_and_reads_back_equal(preset: str, tmp_path: Path) -> None:
    changes = {"optim.policy.lr": 0.00278285123456789, "rollout.stop": (), "seed": 3}
    changes |= {"reward.extra.brevity.function": "sweep_helpers:brevity"}
    config = apply(resolve_trial(preset, preset), changes)
    file = tmp_path / "best.yaml"
    file.write_text(PPOProgram().dump(config.model_dump(mode="json"), "two\nlines"))
    assert load_trial(file) == config
    text = file.read_text()
    assert text.startswith("# two\n# lines\n")
    assert "lr: 0.00278285123456789" in text
    assert "beta1" not in text
    assert '    brevity:\n      function: "sweep_helpers:brevity"\n' in text
    assert "offset" not in text


def test_text_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    config = apply(resolve_trial("tiny", "tiny"), {"data.prompts": "1e-3", "data.task": "off"})
    file = tmp_path / "t.yaml"
    file.write_text(differences_as_yaml(config))
    assert load_trial(file) == config
