"""A trial whose learner is sharded over two processes on Ray is the trial of one process with plain torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tiny_models import Zoo, build
from tiny_rollouts import trial_config

from rlhf_core.config.trial import TrialConfig
from rlhf_core.metrics import repeatable
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import (
    Bundle,
    PlacementPlan,
    WorkerPlace,
    group_request,
    plan_trial,
)
from rlhf_core.store import LocalStore
from rlhf_core.trial import PPOTrial

pytestmark = [pytest.mark.long, pytest.mark.ray]
ZERO: dict[str, Any] = {"optim__engine": "deepspeed", "optim__zero_stage": 3}
OTHERS = ("critic", "reference", "reward")


def _plan() -> PlacementPlan:
    """A process for the rollout, two for the learner and one for the rest."""
    names = ("head", "rollout", "learner 0", "learner 1", "others")
    workers = (
        WorkerPlace("rollout", ("rollout",), 0, 1),
        *(WorkerPlace("learner", ("learner",), rank, 2 + rank) for rank in (0, 1)),
        WorkerPlace("others", OTHERS, 0, 4),
    )
    return PlacementPlan("split", "PACK", tuple(Bundle(n, 0.5, 0.0, 0.0) for n in names), workers)


def _config(zoo: Zoo, **values: Any) -> TrialConfig:
    return trial_config(
        zoo,
        **{
            "budget__iterations": 3, "model__device": "cpu", "reward__function": "core_rewards:length",
            "optim__policy__eps": 1e-3, "optim__critic__eps": 1e-3, "eval__every_iterations": 2,
            "checkpoint__every_iterations": 1, **values,
        },
    )  # fmt: skip


def _on_ray(
    config: TrialConfig, store: LocalStore, *, restore: bool
) -> dict[int, dict[str, float]]:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    from rlhf_core.runtime.ray_runtime import RayRuntime

    plan = _plan()
    group = placement_group(**group_request(plan))
    ray.get(group.ready(), timeout=60)
    trial = PPOTrial(config, RayRuntime(config, plan, group), plan, store)
    try:
        assert trial.restore() == restore
        return {m.iteration: repeatable(m.values) for m in trial}
    finally:
        trial.close()
        remove_placement_group(group)


def test_a_sharded_learner_is_the_one_of_one_process(
    ray_address: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import ray

    folder = tmp_path_factory.mktemp("sharded")
    zoo: Zoo = build(folder / "zoo")
    alone = _config(zoo)
    plan = plan_trial(alone)
    trial = PPOTrial(alone, LocalRuntime(alone, plan), plan, LocalStore(folder / "alone"))
    want = {m.iteration: repeatable(m.values) for m in trial}
    trial.close()
    env = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    ray.init(address=ray_address, log_to_driver=False, logging_level="ERROR", runtime_env=env)
    try:
        store = LocalStore(Path(folder / "sharded"))
        got = _on_ray(_config(zoo, **ZERO), store, restore=False)
        again = _on_ray(_config(zoo, **ZERO, budget__iterations=4), store, restore=True)
    finally:
        ray.shutdown()
    for iteration, metrics in want.items():
        for name, value in metrics.items():
            assert got[iteration][name] == pytest.approx(value, rel=2e-2, abs=1e-3), name
    assert got[3]["policy/grad_norm"] > 0
    # It tells again what was saved, and goes on with it.
    assert list(again) == [3, 4]
    assert again[4]["weights/version"] == 4
