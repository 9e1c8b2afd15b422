"""Resources that an ended trial left behind: the decision, and what the driver makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_driver import LARGE, SMALL, make, started

from rlhf_core.runtime.placement import Node
from sweeps.decide.leftovers import Leftovers
from sweeps.driver import ClusterView, SweepDriver
from sweeps.outcomes import Outcome

NOTHING: dict[str, float] = {}


def settled(before: dict[str, float] | None = None) -> Leftovers:
    state = Leftovers(before or NOTHING, settle_s=5)
    assert state.settling(["t1"], 0.0) == {"t1"}
    assert not state.due(5.0)
    assert state.settling(["t1"], 5.1) == set()
    assert state.due(5.1)
    return state


def test_what_is_free_again_is_looked_at_once() -> None:
    state = settled({"CPUs": 2.0})
    assert state.looked({"CPUs": 2.0}, NOTHING, 5.1) is None
    state.settling(["t1"], 100.0)
    assert not state.due(100.0)


def test_what_stays_missing_is_told_once_and_in_words() -> None:
    state = settled({"CPUs": 1.0})
    used = {"CPUs": 4.5, "GPUs": 1.0}
    assert state.looked(used, {"CPUs": 2.0}, 5.1) is None
    assert not state.due(10.0)
    assert state.due(10.1)
    told = "1.5 CPUs, 1 GPU are in use that no trial of the sweep holds"
    assert state.looked(used, {"CPUs": 2.0}, 10.1) == ("t1", told)
    state.settling(["t1", "t2"], 11.0)
    state.settling(["t1", "t2"], 17.0)
    assert state.looked(used, {"CPUs": 2.0}, 17.0) is None
    assert not state.due(30.0)


def test_what_comes_free_late_is_not_told() -> None:
    state = settled()
    assert state.looked({"GPUs": 1.0}, NOTHING, 5.1) is None
    assert state.looked({"GPUs": 0.0}, NOTHING, 10.1) is None
    assert state.looked({"CPUs": 1.0}, NOTHING, 10.1) is None


def view(cpus: float, gpus: float, asked: list[Any] | None = None) -> ClusterView:
    """Nodes of 8 CPUs each and one GPU, with this much free in total."""
    live = [SMALL, LARGE]
    return ClusterView(live, [Node("both", cpus, gpus, 16.0)], live, asked or [])


def warnings(tmp_path: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    return [(line["trial"], line["warning"]) for line in lines if "warning" in line]


@pytest.fixture
def ended(tmp_path: Path) -> SweepDriver:
    """One trial with a GPU has ended, the next, without one, is placed."""
    driver = make(tmp_path)
    driver.leftovers.before = view(15.0, 1.0).used
    first = started(driver)
    driver.placed(first)
    driver.end(first, Outcome.COMPLETED)
    driver.placed(started(driver))
    return driver


def test_a_leak_is_a_warning_in_the_ledger(tmp_path: Path, ended: SweepDriver) -> None:
    for now in (0.0, 6.0, 12.0, 18.0):
        ended.watch([], lambda: view(14.0, 0.5), now)
    told = "0.5 GPUs are in use that no trial of the sweep holds"
    assert warnings(tmp_path) == [("t0000", told)]


def test_what_running_trials_hold_is_no_leak(tmp_path: Path, ended: SweepDriver) -> None:
    for now in (0.0, 6.0, 12.0):
        ended.watch([], lambda: view(14.0, 1.0), now)
    assert warnings(tmp_path) == []


def test_what_waits_for_another_trial_is_no_leak(tmp_path: Path, ended: SweepDriver) -> None:
    ended.idle = {"CPUs": 1.0, "GPUs": 0.5}
    for now in (0.0, 6.0, 12.0, 18.0):
        ended.watch([], lambda: view(13.0, 0.25), now)
    told = "0.25 GPUs are in use that no trial of the sweep holds"
    assert warnings(tmp_path) == [("t0000", told)]


def test_a_trial_whose_group_waits_for_the_leak_does_not_hide_it(tmp_path: Path) -> None:
    driver = make(tmp_path)
    driver.leftovers.before = view(16.0, 1.0).used
    driver.end(started(driver), Outcome.COMPLETED)
    driver.end(started(driver), Outcome.COMPLETED)
    third = started(driver)
    for now in (0.0, 6.0, 12.0):
        driver.watch([third], lambda: view(16.0, 0.0, [[{"CPU": 1.0, "GPU": 1.0}]]), now)
    assert [warning for _, warning in warnings(tmp_path)] == [
        "1 GPU is in use that no trial of the sweep holds"
    ]


def test_what_is_missing_after_the_last_trial_is_told_too(
    tmp_path: Path, ended: SweepDriver
) -> None:
    assert ended.free_again(view(15.0, 1.0))
    assert ended.free_again(view(16.0, 1.0))
    assert not ended.free_again(view(15.0, 0.0))
    ended.left_over(view(15.0, 0.0))
    assert warnings(tmp_path) == [("t0000", "1 GPU is in use that no trial of the sweep holds")]
