"""Recording a grid of configurations: everything once, through cuts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import ConfigError
from sweeps.replay.recorder import Grid, finalists, read_runs, record

BASE: dict[str, Any] = {
    "extends": "tiny",
    "rollout": {"prompts_per_iteration": 8, "max_new_tokens": 6},
    "budget": {"iterations": 1},
    "eval": {"every_iterations": 1, "prompts": 8},
    "checkpoint": {"every_iterations": None},
}


def grid(**changes: Any) -> Grid:
    values: dict[str, Any] = {
        "base": BASE,
        "levels": {"optim.policy.lr": (1e-4, 1e-2), "ppo.clip_range_low": (0.1, 0.2)},
        "tied": {"ppo.clip_range_high": "ppo.clip_range_low"},
        "tuning_seeds": (1,),
        "test_seeds": (101,),
        "finalists": 1,
    }
    return Grid(**{**values, **changes})


def without_times(run: dict[str, Any]) -> dict[str, Any]:
    lines = [{k: v for k, v in i.items() if k != "core_seconds"} for i in run["iterations"]]
    return {**run, "iterations": lines, "core_seconds": None}


def test_every_run_is_recorded_once_through_a_cut(builtin_task: Path, tmp_path: Path) -> None:
    first = list(record(grid(), tmp_path))
    assert [(run["phase"], run["config"]) for run in first[:4]] == [("tune", i) for i in range(4)]
    # The best by the recorded values themselves, not by what the code under test ranks.
    best = max(first[:4], key=lambda run: run["iterations"][-1]["eval/heldout"])
    assert (first[4]["phase"], first[4]["config"], first[4]["seed"]) == (
        "test",
        best["config"],
        101,
    )
    file = tmp_path / "runs.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    (again,) = record(grid(), tmp_path)
    assert without_times(again) == without_times(json.loads(whole.splitlines()[-1]))
    assert len(read_runs(tmp_path)) == 5
    assert list(record(grid(), tmp_path)) == []
    with pytest.raises(ConfigError, match="another tuning_seeds"):
        next(record(grid(tuning_seeds=(2,)), tmp_path))


def test_tied_keys_and_the_seed_reach_the_trial() -> None:
    chosen = grid()
    config = chosen.configs()[1]
    assert config == {"optim.policy.lr": 1e-4, "ppo.clip_range_low": 0.2}
    assert chosen.params(config, 7) == {**config, "ppo.clip_range_high": 0.2, "seed": 7}


def test_a_diverged_run_ranks_last() -> None:
    def run(config: int, outcome: str, value: float) -> dict[str, Any]:
        lines = [{"iteration": 0, "eval/heldout": value}]
        return {"config": config, "phase": "tune", "outcome": outcome, "iterations": lines}

    runs = [run(0, "completed", 0.1), run(1, "diverged", 9.0), run(2, "completed", 0.2)]
    assert finalists(grid(finalists=2), runs) == [2, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tuning_seeds: [101]", "must be disjoint"),
        ("levels: {optim.policy.rl: [1]}", "optim.policy.rl"),
        ("surprise: 1", "surprise"),
        ("levels: [1]", "not a grid"),
    ],
)
def test_a_wrong_grid_is_refused(tmp_path: Path, change: str, message: str) -> None:
    import yaml

    values = {
        "base": BASE,
        "levels": {"optim.policy.lr": [1e-4]},
        "tuning_seeds": [1],
        "test_seeds": [101],
        "finalists": 1,
    }
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump({**values, **yaml.safe_load(change)}))
    with pytest.raises(ConfigError, match=message):
        Grid.read(file)
