"""Trials in the processes of the last one, on a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from curves import curve

import analysis

pytestmark = pytest.mark.ray
FUNCTIONS = [f"sweep_helpers:{name}" for name in ("brevity", "broken", "letters")]
# Three role processes start quickly.
BASE: dict[str, Any] = {
    "rollout": {"prompts_per_iteration": 8, "max_new_tokens": 8, "chunk_size": 8},
    "eval": {"prompts": 4, "every_iterations": 2},
    "budget": {"iterations": 2},
    "ppo": {"advantage": "reinforce", "kl": {"coef": 0.0, "measure": False}},
    "resources": {"layout": "split", "roles": {"rollout": {"workers": 1}}},
    "reward": {"workers": 0},
}


def test_several_shapes_stay_idle_until_one_is_in_the_way(runner: Any, tmp_path: Path) -> None:
    """On two nodes of 4 GPUs a trial of 4 and one of 3 have a place at once, one of 2 once another is gone."""
    out, gpus = tmp_path / "run", (4, 3, 4, 2, 4)
    runner.run(
        {
            "program": "sweep_helpers:WarmGpuProgram",
            "base": {"steps": 1},
            "space": {"gpus": {"choice": [2, 3, 4]}},
            "search": {
                "trials": len(gpus), "max_concurrent": 1, "sampler": "random",
                "objective": "script/loss", "direction": "minimize",
                "points": [{"gpus": count} for count in gpus],
            },
        },
        out,
    )  # fmt: skip
    sweep = analysis.load(out)
    assert sweep.trials["outcome"].tolist() == ["completed"] * len(gpus)
    assert "warning" not in sweep.events
    places = [out / f"trials/t000{i}/placement.json" for i in range(len(gpus))]
    four, three, again, two, last = [json.loads(place.read_text())["pid"] for place in places]
    assert four == again == last
    assert len({four, three, two}) == 3


@pytest.mark.long
def test_a_warm_sweep_is_a_cold_one_bit_for_bit(
    runner: Any, builtin_task: Path, tmp_path: Path
) -> None:
    """The processes of a trial serve the next one; after one that failed they are new."""
    values = {
        "base": BASE,
        "space": {
            "reward.function": {"choice": FUNCTIONS},
            "optim.policy.lr": {"float": [1e-4, 1e-2], "log": True},
        },
        "search": {
            "trials": 4,
            "max_concurrent": 1,
            "points": [{"reward.function": FUNCTIONS[i]} for i in (0, 2, 1, 0)],
        },
    }
    curves, pids = {}, {}
    for warm in (True, False):
        out = tmp_path / str(warm)
        runner.run(values, out, warm=warm)
        outcomes = analysis.load(out).trials["outcome"].tolist()
        assert outcomes == ["completed", "completed", "failed", "completed"]
        folders = [out / f"trials/t000{i}" for i in (0, 1, 3)]
        curves[warm] = [curve(folder / "metrics.jsonl") for folder in folders]
        placed = [json.loads((folder / "placement.json").read_text()) for folder in folders]
        pids[warm] = [{worker["pid"] for worker in place["workers"]} for place in placed]
    assert curves[True] == curves[False]
    assert curves[True][0] != curves[True][1]
    first, second, third = pids[True]
    assert first == second
    assert first.isdisjoint(third)
    assert len(set().union(*pids[False])) == 3 * len(first)
