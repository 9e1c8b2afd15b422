from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.runtime.placement import Node
from sweeps.driver import SweepDriver, numbers
from sweeps.load import load_sweep
from sweeps.outcomes import Outcome
from sweeps.record import RunDirectory, strict_json
from sweeps.tuning.study import Study

NODES = [Node("a", 8.0, 0.0, 8.0)]


def make(tmp_path: Path, trials: int = 3, concurrent: int = 2, **values: Any) -> SweepDriver:
    loaded = load_sweep(
        {
            "program": "sweep_helpers:ScriptProgram",
            "space": {"x": {"float": [0.0, 6.0]}},
            "search": {"trials": trials, "objective": "script/loss", "direction": "minimize"},
            "scheduler": {"kind": "none"},
            **values,
        }
    )
    search = loaded.config.search
    study = Study(tmp_path, "s", search, loaded.space, lambda params: [])
    return SweepDriver(loaded, RunDirectory(tmp_path), study, NODES, concurrent)


def ledger(tmp_path: Path) -> list[tuple[str, str, str | None]]:
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    return [(line["trial"], line["state"], line["outcome"]) for line in lines]


def test_no_more_trials_run_than_may(tmp_path: Path) -> None:
    driver = make(tmp_path)
    first, second = driver.next_trial(), driver.next_trial()
    assert first is not None
    assert second is not None
    assert driver.next_trial() is None
    driver.end(first.trial, Outcome.COMPLETED)
    third = driver.next_trial()
    assert third is not None
    assert third.trial == "t0002"
    driver.end(second.trial, Outcome.COMPLETED)
    assert driver.next_trial() is None
    assert driver.exhausted


def test_results_are_recorded_and_the_last_objective_counts(tmp_path: Path) -> None:
    driver = make(tmp_path)
    record = driver.next_trial()
    assert record is not None
    driver.placed(record.trial)
    for iteration, loss in ((1, 5.0), (2, float("inf")), (3, 2.0)):
        driver.result(record.trial, {"iteration": iteration, "script/loss": loss, "pid": 3})
    driver.end(record.trial, Outcome.COMPLETED)
    lines = (tmp_path / "trials/t0000/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["script/loss"] for line in lines] == [5.0, None, 2.0]
    assert ledger(tmp_path)[-1] == ("t0000", "ended", "completed")
    assert driver.study._study.trials[0].value == 2.0


def test_what_a_checkpoint_brings_back_is_recorded_and_judged_only_where_it_was_not_yet(
    tmp_path: Path,
) -> None:
    driver = make(tmp_path, guards={"max_kl": 1.0, "patience": 2})
    record = driver.next_trial()
    assert record is not None
    results: list[dict[str, Any]] = [{"iteration": 1}, {"iteration": 2}]
    # Died after both were told, then between its checkpoint and the third.
    results += [{"iteration": 2, "again": True}, {"iteration": 3, "again": True}]
    judged = []
    for result in results:
        kl = 2.0 if result["iteration"] > 1 else 0.5
        result |= {"kl/response": kl, "script/loss": 1.0}
        judged.append(driver.decide(record.trial, result))
        driver.result(record.trial, result)
    assert judged == [True, True, True, False]
    lines = (tmp_path / "trials/t0000/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2, 3]


def test_an_infeasible_trial_is_recorded_and_the_next_one_runs(tmp_path: Path) -> None:
    driver = make(tmp_path, trials=2)
    driver.nodes = [Node("small", 0.5, 0.0, 8.0)]
    assert driver.next_trial() is None
    assert [entry[2] for entry in ledger(tmp_path)] == [None, "infeasible"] * 2
    assert driver.exhausted


def test_ending_twice_is_recorded_once(tmp_path: Path) -> None:
    driver = make(tmp_path)
    record = driver.next_trial()
    assert record is not None
    driver.end(record.trial, Outcome.FAILED, "a bug")
    driver.end(record.trial, Outcome.COMPLETED)
    assert [entry[1] for entry in ledger(tmp_path)] == ["queued", "ended"]
    assert driver.records["t0000"].outcome is Outcome.FAILED


def test_an_interruption_stands_in_the_ledger_and_leaves_the_study_open(tmp_path: Path) -> None:
    driver = make(tmp_path)
    driver.next_trial()
    driver.next_trial()
    driver.interrupt()
    assert [entry[1] for entry in ledger(tmp_path)][-2:] == ["interrupted"] * 2
    assert driver.study.open_numbers() == [0, 1]
    assert driver.next_trial() is None


def test_a_scheduler_stop_keeps_its_reason(tmp_path: Path) -> None:
    scheduler = {"kind": "median", "grace": 1, "min_trials": 1}
    driver = make(tmp_path, scheduler=scheduler)
    for loss in (1.0, 9.0):
        record = driver.next_trial()
        assert record is not None
        result = {"iteration": 1, "script/loss": loss}
        # Minimised: the second trial is the worse one.
        assert driver.decide(record.trial, result) is (loss == 1.0)
        driver.result(record.trial, result)
        driver.end(record.trial, Outcome.COMPLETED)
    assert [r.outcome for r in driver.records.values()] == [Outcome.COMPLETED, Outcome.STOPPED]
    assert "median" in driver.records["t0001"].reason


def test_the_first_trials_failing_alike_end_the_sweep(tmp_path: Path) -> None:
    driver = make(tmp_path, trials=9, concurrent=1)
    for _ in range(3):
        record = driver.next_trial()
        assert record is not None
        driver.end(record.trial, Outcome.FAILED, "KeyError: x")
    assert driver.next_trial() is None
    assert driver.exhausted
    assert "KeyError: x" in str(driver.given_up)


def test_the_time_budget_ends_the_sweep(tmp_path: Path) -> None:
    driver = make(tmp_path, budget={"minutes": 1})
    assert driver.next_trial() is not None
    driver.started -= 61
    assert driver.next_trial() is None
    assert driver.exhausted


def test_only_grouped_numbers_are_metrics() -> None:
    result = {"a/b": 1, "pid": 7, "c/d": "text", "e/f": True, "config/x": 2.0, "g/h": 0.5}
    assert numbers(result) == {"a/b": 1.0, "g/h": 0.5}


def test_json_is_strict() -> None:
    text = strict_json({"a": float("nan"), "b": [1.5, float("-inf")], "c": {"d": "x"}})
    assert json.loads(text) == {"a": None, "b": [1.5, None], "c": {"d": "x"}}
    with pytest.raises(TypeError):
        strict_json({"a": object()})


def test_what_happened_to_processes_stands_in_the_ledger_with_their_new_places(
    tmp_path: Path,
) -> None:
    driver = make(tmp_path)
    record = driver.next_trial()
    assert record is not None
    driver.placed(record.trial)
    file = tmp_path / "trials/t0000/placement.json"
    driver.result(record.trial, {"iteration": 1, "script/loss": 1.0, "placement": {"pid": 1}})
    told = {"events": ["rollout 0 was replaced: it died"], "placement": {"pid": 2}}
    driver.result(record.trial, {"iteration": 2, "script/loss": 1.0, **told})
    assert json.loads(file.read_text()) == {"pid": 2}
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert [(line["state"], line.get("event")) for line in lines] == [
        ("queued", None), ("placed", None), ("started", None),
        ("started", "rollout 0 was replaced: it died"),
    ]  # fmt: skip


def test_no_duration_of_a_trial_that_was_tried_again_is_negative(tmp_path: Path) -> None:
    driver = make(tmp_path)
    record = driver.next_trial()
    assert record is not None
    driver.placed(record.trial)
    driver.result(record.trial, {"iteration": 1, "script/loss": 5.0})
    driver.retried(record.trial, "a node went away")
    driver.placed(record.trial)
    driver.result(record.trial, {"iteration": 1, "script/loss": 5.0})
    driver.end(record.trial, Outcome.COMPLETED)
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    durations = [span for line in lines for span in line["durations"].values()]
    assert min(durations) >= 0
    assert {"queue", "start", "run"} <= lines[-1]["durations"].keys()
