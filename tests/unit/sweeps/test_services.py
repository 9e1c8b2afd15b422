"""Services in the plan of a sweep and in its driver, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import ConfigError, PlacementError
from rlhf_core.runtime.placement import Node
from rlhf_core.runtime.shared import SharedRole
from sweeps.driver import SweepDriver
from sweeps.load import Loaded, load_sweep
from sweeps.outcomes import Outcome
from sweeps.plan import plan_sweep
from sweeps.record import RunDirectory
from sweeps.services import NoServices, asked_at_corners, left

NODES = [Node(f"node {i}", 32.0, 4.0, 256.0) for i in range(2)]
SHARED = {role: {"placement": "shared"} for role in ("reference", "reward")}


def _loaded(space: dict[str, Any] | None = None, **resources: Any) -> Loaded:
    return load_sweep(
        {
            "base": {
                "extends": "tiny",
                "resources": {"layout": "split", "roles": SHARED, **resources},
            },
            "space": space or {"ppo.kl.coef": {"float": [0.01, 0.2]}},
            "search": {"trials": 4},
            "cluster": {"address": "auto"},
        }
    )


def test_services_are_planned_once_and_trials_share_what_they_leave() -> None:
    plan = plan_sweep(_loaded(), NODES)
    assert [(s.role, s.place) for s in plan.services] == [("reference", (0,)), ("reward", (0,))]
    assert plan.problems == []
    # 8 GPUs: 2 for the services, 3 for each trial; with roles of its own a trial has 5.
    assert plan.shapes[0].at_once == 2
    assert plan_sweep(_loaded(roles={}), NODES).shapes[0].at_once == 1


def test_a_searched_ratio_makes_no_further_service_and_a_searched_model_does() -> None:
    ratio = _loaded({"resources.cpus_per_gpu": {"choice": [2, 4]}})
    assert [s.role for s in asked_at_corners(ratio)] == ["reference", "reward"]
    offset = _loaded(
        {"reward.function": {"choice": ["core_rewards:length", "core_rewards:vowels"]}}
    )
    assert [s.role for s in asked_at_corners(offset)] == ["reference", "reward", "reward"]


def test_a_service_that_no_node_holds_is_refused_by_name() -> None:
    small = [Node("small", 32.0, 1.0, 256.0)]
    problems = plan_sweep(_loaded(), small).problems
    assert "service for the shared reward: no node can hold bundle 0 (reward 0:" in problems[0]
    assert "lacks 1 GPU" in problems[0]


def test_what_is_left_of_nodes() -> None:
    reference, reward = asked_at_corners(_loaded())
    rest = left(NODES, [reference.plan, reward.plan])
    assert [(node.cpus, node.gpus, node.memory_gb) for node in rest] == [
        (28.0, 2.0, 192.0),
        (32.0, 4.0, 256.0),
    ]
    assert left([Node("none", 1.0, 0.0, 1.0)], [reference.plan]) == [Node("none", 1.0, 0.0, 1.0)]


class Serving(NoServices):
    """Names what it is asked for; refuses everything with ``refusal``."""

    def __init__(self, refusal: str | None = None) -> None:
        self.refusal = refusal

    def seats(self, asked: Any, trial: Any) -> dict[str, dict[str, Any]]:
        if self.refusal:
            raise PlacementError(self.refusal)
        return {shared.role: {"name": f"{shared.role}-abc"} for shared in asked}


class Asked:
    """A study that proposes the same."""

    spent = False

    def __init__(self) -> None:
        self.told: list[Outcome] = []

    def ask(self) -> tuple[int, dict[str, Any]]:
        return len(self.told), {"ppo.kl.coef": 0.1}

    def tell(self, number: int, outcome: Outcome, *_: Any) -> None:
        self.told.append(outcome)


def _driver(tmp_path: Path, services: Any) -> SweepDriver:
    return SweepDriver(_loaded(), RunDirectory(tmp_path), Asked(), NODES, 1, services)


def test_a_trial_is_given_its_seats(builtin_task: Path, tmp_path: Path) -> None:
    record = _driver(tmp_path, Serving()).next_trial()
    assert record is not None
    assert record.services == {r: {"name": f"{r}-abc"} for r in ("reference", "reward")}


def test_a_trial_whose_service_is_refused_is_infeasible(builtin_task: Path, tmp_path: Path) -> None:
    driver = _driver(tmp_path, Serving("no room for it"))
    assert driver.next_trial() is None
    assert {record.outcome for record in driver.records.values()} == {Outcome.INFEASIBLE}
    assert driver.records["t0000"].reason == "no room for it"


def test_where_nobody_serves_a_shared_role_is_refused() -> None:
    asked: list[SharedRole] = asked_at_corners(_loaded())
    with pytest.raises(ConfigError, match="nobody serves 'shared' roles here"):
        NoServices().seats(asked, asked[0].plan)
    assert NoServices().seats([], asked[0].plan) == {}
