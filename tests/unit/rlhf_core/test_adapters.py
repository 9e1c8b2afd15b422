"""Trials that train adapters: they learn, start at the reference, send little, and go on where they stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_models import Zoo
from tiny_rollouts import trial_config

from rlhf_core.config.trial import TrialConfig
from rlhf_core.metrics import repeatable
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import plan_trial
from rlhf_core.store import LocalStore
from rlhf_core.trial import PPOTrial

ADAPTERS: dict[str, Any] = {"model__lora__rank": 4, "model__lora__dropout": 0.2}


def _trial(config: TrialConfig, folder: Path | None = None) -> PPOTrial:
    plan = plan_trial(config)
    return PPOTrial(
        config, LocalRuntime(config, plan), plan, LocalStore(folder) if folder else None
    )


def _run(trial: PPOTrial) -> dict[int, dict[str, float]]:
    try:
        return {m.iteration: m.values for m in trial}
    finally:
        trial.close()


def test_a_trial_with_adapters_learns_and_sends_little(zoo: Zoo) -> None:
    options = {"rollout__prompts_per_iteration": 32, "budget__iterations": 10}
    options |= {"optim__policy__lr": 2e-2, "ppo__kl__coef": 0.0}
    found = _run(_trial(trial_config(zoo, **options, model__lora__rank=8)))
    assert found[1]["kl/response"] == pytest.approx(0.0, abs=1e-4)
    assert found[10]["kl/response"] > 0.1
    assert found[10]["reward/proxy"] > found[1]["reward/proxy"] + 0.2
    (whole,) = (
        values["sync/bytes"]
        for values in [_run(_trial(trial_config(zoo, budget__iterations=1)))[1]]
    )
    small = _run(_trial(trial_config(zoo, budget__iterations=1, model__lora__rank=1)))
    assert 0 < small[1]["sync/bytes"] < 0.15 * whole


def test_a_resumed_trial_with_adapters_equals_one_that_ran_through(
    zoo: Zoo, tmp_path: Path
) -> None:
    config = trial_config(zoo, checkpoint__every_iterations=1, **ADAPTERS)
    whole = _run(_trial(config, tmp_path / "a"))
    first = _trial(config, tmp_path / "b")
    seen = {m.iteration: m.values for m in (next(it) for it in [iter(first)] for _ in range(3))}
    first.close()
    second = _trial(config, tmp_path / "b")
    assert second.restore()
    seen |= _run(second)
    assert {i: repeatable(v) for i, v in seen.items()} == {
        i: repeatable(v) for i, v in whole.items()
    }


def test_apart_the_roles_compute_what_they_compute_together(zoo: Zoo) -> None:
    together, apart = (
        _run(_trial(trial_config(zoo, resources__layout=layout, budget__iterations=2, **ADAPTERS)))
        for layout in ("fused", "split")
    )
    assert {i: repeatable(v) for i, v in apart.items()} == {
        i: repeatable(v) for i, v in together.items()
    }
