"""Waiting trials: the decision, and what the driver makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu_driver import LARGE, SMALL, make, started

from rlhf_core.runtime.placement import Node, NodeType, with_node_types
from sweeps.decide.waiting import Action, GiveUp, Look, Looked, Pending, Tell, Waiting, decide
from sweeps.driver import ClusterView
from sweeps.live import waiting_lines
from sweeps.outcomes import Outcome, State

ONE, TWO = frozenset({"t1"}), frozenset({"t1", "t2"})


def looks(state: Waiting, pending: frozenset[str], now: float) -> list[Action]:
    return decide(state, Pending(pending), now)


def test_nothing_happens_before_the_notice() -> None:
    state = Waiting(notice_s=10, every_s=5)
    assert looks(state, ONE, 0.0) == []
    assert looks(state, ONE, 9.9) == []
    assert looks(state, ONE, 10.0) == [Look("t1")]
    assert state.shown == {}


def test_looks_are_apart_and_each_trial_has_its_own_clock() -> None:
    state = Waiting(notice_s=10, every_s=5)
    looks(state, ONE, 0.0)
    looks(state, TWO, 4.0)
    assert looks(state, TWO, 10.0) == [Look("t1")]
    assert looks(state, TWO, 14.0) == [Look("t2")]
    assert looks(state, TWO, 15.0) == [Look("t1")]


def test_a_busy_cluster_is_told_once_and_waited_for_for_ever() -> None:
    state = Waiting(notice_s=10, every_s=5, patience_s=60)
    looks(state, ONE, 0.0)
    told = [decide(state, Looked("t1", None, f"room: {now} GPUs"), now) for now in (10.0, 1e3, 1e6)]
    assert told == [[Tell("t1", 10.0, "room: 10.0 GPUs")], [], []]
    assert state.shown["t1"].missing == "room: 1000000.0 GPUs"
    assert state.absent == 0


def test_a_trial_ends_only_after_it_has_fitted_nowhere_for_the_whole_patience() -> None:
    state = Waiting(notice_s=0, patience_s=60)
    looks(state, ONE, 0.0)
    gone = Looked("t1", "no node can hold it", "new nodes", alive=False)
    assert decide(state, gone, 100.0) == [Tell("t1", 100.0, "new nodes")]
    assert decide(state, gone, 159.0) == []
    assert decide(state, gone, 160.0) == [GiveUp("t1", "no node can hold it")]
    assert state.waits == {}


def test_a_node_that_comes_back_starts_the_patience_again() -> None:
    state = Waiting(notice_s=0, patience_s=60)
    looks(state, ONE, 0.0)
    gone, back = Looked("t1", "nowhere", "nodes", alive=False), Looked("t1", None, "room")
    decide(state, gone, 0.0)
    assert decide(state, back, 59.0) == [Tell("t1", 59.0, "room")]
    assert decide(state, gone, 61.0) == [Tell("t1", 61.0, "nodes")]
    assert decide(state, gone, 120.0) == []
    assert decide(state, gone, 121.0) == [GiveUp("t1", "nowhere")]


def test_a_trial_that_has_its_place_and_only_starts_is_not_told_of() -> None:
    state = Waiting(notice_s=0)
    looks(state, ONE, 0.0)
    assert decide(state, Looked("t1", None, ""), 5.0) == []
    assert state.shown == {}
    assert decide(state, Looked("t1", None, "room"), 10.0) == [Tell("t1", 10.0, "room")]


def test_what_no_longer_waits_is_forgotten() -> None:
    state = Waiting(notice_s=10)
    looks(state, ONE, 0.0)
    looks(state, frozenset(), 5.0)
    assert looks(state, ONE, 11.0) == []
    assert looks(state, ONE, 21.0) == [Look("t1")]
    assert decide(state, Looked("t9", "nowhere", ""), 22.0) == []


def view(live: list[Node], free: list[Node], types: list[NodeType] | None = None) -> ClusterView:
    asked = [[{"CPU": 1.0, "GPU": 1.0}]]
    return ClusterView(live, free, with_node_types(live, types or []), asked)


def states(tmp_path: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    return [(line["trial"], line["state"]) for line in lines]


def test_a_trial_whose_node_is_gone_leaves_its_slot_and_ends_as_infeasible(tmp_path: Path) -> None:
    driver = make(tmp_path)
    first = started(driver)
    assert driver.next_trial() is None
    gone = view([SMALL], [SMALL])
    assert driver.watch([first], lambda: gone, 0.0) == []
    assert driver.watch([first], lambda: gone, 10.0) == []
    assert driver.records[first].state is State.WAITING
    second = started(driver)
    assert driver.watch([first], lambda: gone, 69.0) == []
    assert driver.watch([first], lambda: gone, 75.0) == [first]
    record = driver.records[first]
    assert record.outcome is Outcome.INFEASIBLE
    assert "no node can hold bundle 0 (script: 1 CPU, 1 GPU)" in record.reason
    assert states(tmp_path) == [
        (first, "queued"), (first, "waiting"), (second, "queued"), (first, "ended"),
    ]  # fmt: skip


def test_a_declared_node_type_is_waited_for(tmp_path: Path) -> None:
    driver = make(tmp_path)
    first, kind = started(driver), NodeType(LARGE, 1)
    coming = view([SMALL], [SMALL], [kind])
    for now in (0.0, 10.0, 1e4, 1e6):
        assert driver.watch([first], lambda: coming, now) == []
    assert driver.waiting.absent == 1
    (line,) = waiting_lines(driver, 100.0)
    assert line.plain.startswith("t0000 has waited 1:40 for new nodes: no node can hold bundle 0")
    # It came: the trial is placed.
    driver.placed(first)
    driver.watch([], lambda: coming, 1e6 + 1)
    assert waiting_lines(driver, 1e6 + 1) == []


def test_a_trial_in_a_busy_cluster_keeps_its_slot(tmp_path: Path) -> None:
    driver = make(tmp_path)
    first = started(driver)
    busy = view([SMALL, LARGE], [SMALL, Node("large", 8.0, 0.5, 8.0)])
    for now in (0.0, 10.0, 1e6):
        assert driver.watch([first], lambda: busy, now) == []
    assert "lacks 0.5 GPUs" in driver.waiting.shown[first].missing
    assert driver.next_trial() is None
    assert states(tmp_path) == [(first, "queued"), (first, "waiting")]
    # Its group was created: it only starts.
    placed = ClusterView(busy.live, busy.free, busy.possible, [])
    driver.watch([first], lambda: placed, 1e6 + 5)
    assert driver.waiting.shown == {}


def test_absent_nodes_let_no_more_than_twice_the_trials_start(tmp_path: Path) -> None:
    driver = make(tmp_path)
    gone = view([SMALL], [SMALL], [NodeType(LARGE, 1)])
    first = started(driver)
    for now in (0.0, 10.0):
        driver.watch([first], lambda: gone, now)
    second = started(driver)
    driver.end(second, Outcome.COMPLETED)
    third = started(driver)
    for now in (20.0, 30.0):
        driver.watch([first, third], lambda: gone, now)
    assert driver.waiting.absent == 2
    assert driver.next_trial() is None


def test_the_cluster_is_asked_only_where_something_waits(tmp_path: Path) -> None:
    def never() -> ClusterView:
        raise AssertionError("asked")

    driver = make(tmp_path)
    assert driver.watch([], never, 0.0) == []
    assert driver.watch([started(driver)], never, 100.0) == []


@pytest.mark.parametrize("state", ["waiting"])
def test_a_waiting_trial_is_under_way_for_whoever_reads_the_directory(
    tmp_path: Path, state: str
) -> None:
    import analysis

    driver = make(tmp_path)
    first = started(driver)
    driver.directory.write_sweep(driver.loaded, [])
    gone = view([SMALL], [SMALL])
    for now in (0.0, 10.0):
        driver.watch([first], lambda: gone, now)
    sweep = analysis.load(tmp_path)
    assert sweep.trials["state"].tolist() == [state]
    status = analysis.status(sweep)
    assert status["states"] == {state: 1}
    assert not status["finished"]
