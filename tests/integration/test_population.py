"""Populations over Ray: real PPO trials are copied while they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import analysis

pytestmark = pytest.mark.ray


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.long
def test_four_trials_go_on_from_each_other(runner: Any, tmp_path: Path) -> None:
    """Two places for four trials: each gives way, the worst are copied, and all come to their end."""
    out = tmp_path / "run"
    runner.run(
        {
            "base": {
                "rollout": {"prompts_per_iteration": 8, "max_new_tokens": 8, "chunk_size": 8},
                "eval": {"prompts": 8, "every_iterations": 2},
                "checkpoint": {"every_iterations": None},
                "budget": {"iterations": 6},
            },
            "space": {
                "optim.policy.lr": {"float": [1e-5, 1e-2], "log": True},
                "ppo.kl.coef": {"float": [0.01, 0.5], "log": True},
                "ppo.clip_range_low": {"float": [0.05, 0.4]},
            },
            "search": {
                "trials": 4,
                "max_concurrent": 2,
                "sampler": "random",
                "objective": "eval/proxy",
            },
            "scheduler": {"kind": "pbt", "interval": 2, "quantile": 0.5},
        },
        out,
    )
    sweep = analysis.load(out)
    assert sweep.trials["outcome"].tolist() == ["completed"] * 4
    assert sweep.trials["iteration"].tolist() == [6] * 4
    ledger = lines(out / "trials.jsonl")
    copies = [line for line in ledger if "fork" in line]
    assert copies
    for line in copies:
        assert line["parent_id"] == line["fork"]["source"] != line["trial"]
        trial, at = line["trial"], line["fork_iteration"] + 1
        metrics = [m for m in lines(out / f"trials/{trial}/metrics.jsonl") if m["iteration"] == at]
        # What the optimiser and the penalty had in the iteration after the copy is what was decided.
        changed = [m for m in metrics if m["policy/lr"] == line["params"]["optim.policy.lr"]]
        assert changed
        assert changed[-1]["kl/coef"] == line["params"]["ppo.kl.coef"]
    last = copies[-1]
    config = json.loads((out / f"trials/{last['trial']}/config.json").read_text())
    assert config["ppo"]["clip_range_low"] == last["params"]["ppo.clip_range_low"]


@pytest.mark.long
def test_trials_wait_at_a_rung_and_one_is_carried_to_its_end(runner: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    runner.run(
        {
            "program": "sweep_helpers:ForkingProgram",
            "base": {"steps": 6},
            "space": {"x": {"float": [0.5, 6.0]}},
            "search": {
                "trials": 4,
                "max_concurrent": 2,
                "objective": "script/score",
                "points": [{"x": x} for x in (1.0, 2.0, 4.0, 6.0)],
            },
            "scheduler": {"kind": "asha", "grace": 2, "reduction": 2, "stop": False},
        },
        out,
    )
    trials = analysis.load(out).trials
    # Who is carried on before the best has come depends on who is faster; the worst never is, the best always.
    assert trials.loc["t0000", ["outcome", "iteration"]].tolist() == ["stopped", 2]
    assert trials.loc["t0003", ["outcome", "iteration"]].tolist() == ["completed", 6]
    at = [line["iteration"] for line in lines(out / "trials/t0003/metrics.jsonl")]
    assert at == [1, 2, 3, 4, 5, 6]
