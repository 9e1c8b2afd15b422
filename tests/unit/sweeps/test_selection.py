from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.runtime.placement import Node
from sweeps.decide.selection import (
    FIRST_TEST_SEED,
    Candidate,
    Rule,
    finalists,
    fresh_seeds,
    planned_runs,
)
from sweeps.driver import SweepDriver
from sweeps.load import Loaded, load_sweep
from sweeps.outcomes import Outcome
from sweeps.record import RunDirectory
from sweeps.results import chosen
from sweeps.trial_record import TrialRecord
from sweeps.tuning.plugins import DRIVERS, SweepSearcher
from sweeps.tuning.study import Study

RULE = Rule(top=4, seeds=3, share=0.35)


@pytest.mark.parametrize(
    ("spent", "runs"),
    [
        (8, (0, 0)),
        (11, (0, 0)),
        (17, (0, 0)),
        (18, (3, 2)),
        (26, (3, 3)),
        (36, (4, 3)),
        (99, (4, 3)),
    ],
)
def test_test_runs_cost_a_share_of_the_search(spent: float, runs: tuple[int, int]) -> None:
    assert RULE.runs(spent) == runs


def test_one_seed_is_taken_only_where_no_more_are_asked_for() -> None:
    assert Rule(3, 1, 0.35).runs(9) == (3, 1)
    assert Rule(3, 2, 0.35).runs(9) == (0, 0)
    assert Rule(2, 2, 0.35).runs(12) == (2, 2)
    assert Rule(3, 0, 0.35).runs(99) == Rule(0, 3, 0.35).runs(99) == (0, 0)


@pytest.mark.parametrize("total", range(1, 100))
def test_search_and_test_runs_fit_the_budget(total: int) -> None:
    search = RULE.search_part(total)
    finalists, seeds = RULE.runs(total / 1.35)
    assert search + finalists * seeds == total
    assert finalists * seeds <= 0.35 * search + 1e-6


def test_no_budget_buys_fewer_runs_than_a_smaller_one() -> None:
    counts = [m * n for m, n in map(RULE.runs, range(100))]
    assert all(later >= earlier for earlier, later in pairwise(counts))


def test_finalists_are_the_best_eligible_ones_with_parameters_of_their_own() -> None:
    found = [
        Candidate("a", 1.0, True, (("x", 1),)),
        Candidate("b", 9.0, False, (("x", 2),)),
        Candidate("c", 3.0, True, (("x", 3),)),
        Candidate("d", 2.9, True, (("x", 3),)),
        Candidate("e", 2.0, True, (("x", 4),)),
        Candidate("f", float("nan"), False, (("x", 5),)),
    ]
    assert finalists(found, 2) == ["c", "e"]
    assert finalists(found, 9) == ["c", "e", "a"]
    assert finalists(found[:2], 2) == []


def test_fresh_seeds_are_no_tuning_seeds() -> None:
    assert fresh_seeds(2, {0}) == (FIRST_TEST_SEED, FIRST_TEST_SEED + 1)
    assert fresh_seeds(2, {FIRST_TEST_SEED, 5}) == (FIRST_TEST_SEED + 1, FIRST_TEST_SEED + 2)
    assert fresh_seeds((8, 9), {0}) == (8, 9)


def test_every_finalist_runs_on_the_first_seed_before_the_next_one() -> None:
    assert planned_runs(["a", "b"], [8, 9]) == [("a", 8), ("b", 8), ("a", 9), ("b", 9)]


def make(tmp_path: Path, **values: Any) -> SweepDriver:
    """Three trials of the search, then two finalists on two seeds."""
    loaded = load_sweep(
        {
            "program": "sweep_helpers:SeededProgram",
            "space": {"x": {"float": [0.0, 6.0]}},
            "search": {"trials": 3, "objective": "script/loss", "direction": "minimize"},
            "scheduler": {"kind": "none"},
            "selection": {"top": 2, "test_seeds": [7, 8], "share": 2},
            **values,
        }
    )
    study = Study(None, "s", loaded.config.search, loaded.space, lambda params: [])
    nodes = [Node("a", 8.0, 0.0, 8.0)]
    return SweepDriver(loaded, RunDirectory(tmp_path), study, nodes, 2)


def run(driver: SweepDriver, record: TrialRecord | None, loss: float, **end: Any) -> TrialRecord:
    """The trial from its start to its end with this loss."""
    assert record is not None
    driver.placed(record.trial)
    result = {"iteration": 3, "script/loss": loss}
    assert driver.decide(record.trial, result)
    driver.result(record.trial, result)
    driver.end(record.trial, **{"outcome": Outcome.COMPLETED, **end})
    return record


def test_finalists_run_again_once_the_search_has_ended(tmp_path: Path) -> None:
    driver = make(tmp_path)
    for loss in (3.0, 1.0):
        run(driver, driver.next_trial(), loss)
    last = driver.next_trial()
    # The last trial of the search still runs: who is a finalist is not known, and the sweep not over.
    assert driver.next_trial() is None
    assert not driver.exhausted
    run(driver, last, 2.0)
    told = len(driver.study._study.trials)
    tests = [run(driver, driver.next_trial(), loss) for loss in (5.0, 1.5, 5.0, 1.7)]
    assert [(t.of, t.params["seed"]) for t in tests] == [
        ("t0001", 7), ("t0002", 7), ("t0001", 8), ("t0002", 8),
    ]  # fmt: skip
    assert tests[0].params["x"] == driver.records["t0001"].params["x"]
    assert driver.next_trial() is None
    assert driver.exhausted
    assert len(driver.study._study.trials) == told == 3
    assert driver.loaded.config.search.trials + driver.choice.most_runs == 7
    assert chosen(driver) == "t0002"


def test_a_finalist_that_fails_on_fresh_seeds_is_not_chosen(tmp_path: Path) -> None:
    driver = make(tmp_path)
    for loss in (3.0, 1.0, 2.0):
        run(driver, driver.next_trial(), loss)
    for failed in (True, False, True, False):
        end = {"outcome": Outcome.FAILED} if failed else {}
        run(driver, driver.next_trial(), 4.0, **end)
    assert chosen(driver) == "t0002"


def test_trials_that_are_added_during_the_test_runs_can_be_finalists(tmp_path: Path) -> None:
    driver = make(tmp_path)
    for loss in (3.0, 1.0, 2.0):
        run(driver, driver.next_trial(), loss)
    first = run(driver, driver.next_trial(), 5.0)
    assert first.of == "t0001"
    driver.loaded = driver.choice.loaded = more_trials(driver.loaded, 4)
    added = run(driver, driver.next_trial(), 0.5)
    assert added.of is None
    tests = [run(driver, driver.next_trial(), loss) for loss in (5.0, 5.0, 5.0)]
    assert [(t.of, t.params["seed"]) for t in tests] == [
        (added.trial, 7), (added.trial, 8), ("t0001", 8),
    ]  # fmt: skip
    assert driver.next_trial() is None


def more_trials(loaded: Loaded, count: int) -> Loaded:
    search = loaded.config.search.model_copy(update={"trials": count})
    return replace(loaded, config=loaded.config.model_copy(update={"search": search}))


def test_an_interruption_before_the_test_runs_leaves_the_choice_to_the_search(
    tmp_path: Path,
) -> None:
    driver = make(tmp_path)
    for loss in (3.0, 1.0, 2.0):
        run(driver, driver.next_trial(), loss)
    driver.next_trial()
    driver.interrupt()
    assert driver.exhausted
    assert chosen(driver) == "t0001"


def test_a_scheduler_neither_stops_nor_counts_test_runs(tmp_path: Path) -> None:
    driver = make(tmp_path, scheduler={"kind": "median", "grace": 1, "min_trials": 1})
    run(driver, driver.next_trial(), 2.0)
    run(driver, driver.next_trial(), 2.0)
    run(driver, driver.next_trial(), 2.0)
    test = driver.next_trial()
    assert test is not None
    assert test.of is not None
    assert driver.decide(test.trial, {"iteration": 3, "script/loss": 99.0})
    assert test.trial not in driver.scheduler._seen


def test_a_test_run_is_in_no_bracket_of_hyperband(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make(tmp_path, scheduler={"kind": "hyperband"})
    for loss in (3.0, 1.0, 2.0):
        run(driver, driver.next_trial(), loss)
    monkeypatch.setitem(DRIVERS, "key", driver)
    asked = SweepSearcher("key", {}).suggest("a trial of Tune")
    assert driver.problems == []
    assert driver.records[asked["trial"]].of == "t0001"
    assert asked["save_points"] is None
    assert not driver.decide(asked["trial"], {"iteration": 1, "script/loss": float("nan")})
    assert driver.records[asked["trial"]].outcome is Outcome.DIVERGED


def test_a_budget_in_full_trials_covers_search_and_test_runs(tmp_path: Path) -> None:
    values = {
        "search": {"trials": 99, "objective": "script/loss", "direction": "minimize"},
        "budget": {"full_trials": 8},
        "selection": {"top": 2, "test_seeds": 2, "share": 1},
    }
    driver = make(tmp_path, **values)
    done = []
    while (record := driver.next_trial()) is not None:
        done.append(run(driver, record, float(len(done))))
    assert [r.purpose for r in done] == ["search"] * 4 + ["test"] * 4
    assert driver.exhausted


def test_a_trial_that_is_stopped_early_leaves_its_rest_to_others(tmp_path: Path) -> None:
    values = {
        "base": {"steps": 30},
        "search": {"trials": 99, "objective": "script/loss", "direction": "minimize"},
        "budget": {"full_trials": 2},
        "selection": {"top": 0},
    }
    driver = make(tmp_path, **values)
    first, second = driver.next_trial(), driver.next_trial()
    assert first is not None
    assert driver.next_trial() is None
    assert not driver.exhausted
    # Three of thirty iterations each: after two short trials there is room for one more.
    run(driver, first, 1.0)
    assert driver.next_trial() is None
    run(driver, second, 1.0)
    assert driver.next_trial() is not None


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"selection": {"test_seeds": [0, 7]}},
            "selection.test_seeds: 0 is a seed of the search as well",
        ),
        (
            {"base": {"seed": 7}, "selection": {"test_seeds": [7]}},
            "7 is a seed of the search as well",
        ),
        ({"selection": {"top": 1}}, "selection.top: 1 has nothing to be compared with"),
        ({"selection": {"test_seeds": [7, 7]}}, "holds a seed twice"),
        ({"selection": {"test_seeds": -1}}, "selection.test_seeds"),
        (
            {"program": "sweep_helpers:ScriptProgram", "selection": {"test_seeds": 2}},
            "trials of this program have no seed",
        ),
    ],
)
def test_what_cannot_be_tested_honestly_is_refused(
    tmp_path: Path, values: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError, match=line.replace("[", r"\[")):
        make(tmp_path, **values)


def test_a_program_without_seeds_runs_nothing_again(tmp_path: Path) -> None:
    driver = make(tmp_path, program="sweep_helpers:ScriptProgram", selection={})
    for loss in (3.0, 1.0, 2.0):
        run(driver, driver.next_trial(), loss)
    assert driver.exhausted
    assert driver.loaded.config.search.trials + driver.choice.most_runs == 3


def test_a_search_too_small_for_test_runs_says_so_where_they_were_asked_for(tmp_path: Path) -> None:
    for selection, told in (({"top": 3, "test_seeds": 2}, True), ({}, False)):
        driver = make(tmp_path / str(told), selection=selection)
        for loss in (3.0, 1.0, 2.0):
            run(driver, driver.next_trial(), loss)
        note = driver.choice.note(driver.records.values())
        assert driver.exhausted
        assert (note is not None) is told
        assert "the search cost 3 full trials" in (note or "the search cost 3 full trials")


def test_what_is_left_counts_test_runs_once_they_are_known(tmp_path: Path) -> None:
    driver = make(tmp_path)
    counts = [driver.choice.waiting(driver.records.values())]
    while (record := driver.next_trial()) is not None:
        run(driver, record, 1.0)
        counts.append(driver.choice.waiting(driver.records.values()))
    assert counts == [3, 2, 1, 4, 3, 2, 1, 0]


def test_time_that_is_over_starts_neither_search_nor_test_runs(tmp_path: Path) -> None:
    driver = make(tmp_path, budget={"minutes": 3})
    for loss in (3.0, 1.0, 2.0):
        run(driver, driver.next_trial(), loss)
    assert driver.next_trial() is not None
    driver.started -= 181
    assert driver.next_trial() is None
    assert driver.exhausted


def test_the_search_leaves_time_for_its_test_runs(tmp_path: Path) -> None:
    values = {
        "search": {"trials": 99, "objective": "script/loss", "direction": "minimize"},
        "budget": {"minutes": 3},
    }
    driver = make(tmp_path, **values)
    run(driver, driver.next_trial(), 1.0)
    run(driver, driver.next_trial(), 2.0)
    # A share of 2 keeps two thirds of the time once test runs can be paid for.
    driver.started -= 70
    record = driver.next_trial()
    assert record is not None
    assert record.purpose == "test"
