"""Sweeps whose trials are paused and copied, without Ray: a driver, and trials that this process runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sweep_helpers import ForkingProgram

from rlhf_core import forks
from rlhf_core.errors import ConfigError
from rlhf_core.runtime.placement import Node
from rlhf_core.store import LocalStore
from sweeps import pausing
from sweeps.decide.scheduling import SavePoints
from sweeps.driver import SweepDriver
from sweeps.load import load_sweep
from sweeps.outcomes import Outcome, State
from sweeps.programs.base import TrialContext
from sweeps.record import RunDirectory
from sweeps.trial_record import TrialRecord
from sweeps.tuning.study import Study

PBT = {"kind": "pbt", "interval": 2, "quantile": 0.5, "resample": 0.0, "metric": "script/score"}
PROMOTION = {"kind": "asha", "grace": 2, "reduction": 2, "stop": False, "metric": "script/score"}


def make(
    path: Path, scheduler: Mapping[str, Any], trials: int = 4, places: int = 2, **values: Any
) -> SweepDriver:
    loaded = load_sweep(
        {
            "program": "sweep_helpers:ForkingProgram",
            "base": {"steps": 8},
            "space": {"x": {"float": [0.5, 6.0], "log": True}},
            "search": {
                "trials": trials,
                "sampler": "random",
                "objective": "script/score",
                "points": [{"x": x} for x in (1.0, 2.0, 4.0, 6.0)],
            },
            "scheduler": dict(scheduler),
            **values,
        }
    )
    path.mkdir(parents=True, exist_ok=True)
    study = Study(path, "s", loaded.config.search, loaded.space, lambda params: [])
    return SweepDriver(loaded, RunDirectory(path), study, [Node("a", 64.0, 0.0, 8.0)], places)


class Stay:
    """A trial in its place, as ``ProgramTrainable`` runs it."""

    def __init__(self, driver: SweepDriver, record: TrialRecord) -> None:
        self.driver, self.record, self.passed = driver, record, record.passed
        self.store = LocalStore(driver.directory.path / "trials" / record.trial)
        if record.fork:
            forks.install(self.store, record.fork)
        context = TrialContext(record.trial, driver.loaded.base, record.params, self.store)
        self.running = ForkingProgram().start(context)
        self.metrics = iter(self.running)
        driver.placed(record.trial)

    def step(self) -> bool:
        """One iteration; whether the trial is still in its place."""
        metrics, trial = next(self.metrics), self.record.trial
        result: dict[str, Any] = {"iteration": metrics.iteration, **metrics.values}
        if self.running.is_last:
            self.driver.result(trial, {**result, "done": True, "outcome": "completed"})
            self.driver.end(trial, Outcome.COMPLETED)
            return False
        points = self.driver.scheduler.save_points(trial)
        if points is not None:
            passed = SavePoints(**points.as_dict()).due(
                metrics.iteration, metrics.values, self.passed
            )
            if passed is not None:
                self.running.save()
                forks.mark(self.store, metrics.iteration)
                self.passed = passed
        go_on = self.driver.decide(trial, result)
        self.driver.result(trial, result)
        if not go_on:
            self.driver.end(trial, Outcome.COMPLETED)
        return go_on


def play(driver: SweepDriver, lose: tuple[int, ...] = ()) -> int:
    """Runs the sweep to its end; at the steps ``lose`` a process is lost. Returns the most trials at once."""
    stays: list[Stay] = []
    widest = 0
    for turn in range(500):
        while (record := driver.next_trial()) is not None:
            stays.append(Stay(driver, record))
        widest = max(widest, len(stays))
        if not stays:
            assert not driver.may_go_on or not driver.live
            return widest
        stay = stays.pop(0)
        if turn in lose:
            driver.retried(stay.record.trial, "lost")
            stays.append(Stay(driver, stay.record))
        elif stay.step():
            stays.append(stay)
    raise AssertionError("the sweep does not end")


def ledger(driver: SweepDriver) -> list[dict[str, Any]]:
    text = (driver.directory.path / "trials.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def curve(driver: SweepDriver, trial: str) -> list[tuple[int, float]]:
    text = (driver.directory.path / f"trials/{trial}/metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line["iteration"], line["script/score"]) for line in lines]


@pytest.mark.parametrize("places", [2, 4])
def test_copies_go_on_from_the_best_with_its_score_and_their_own_parameters(
    tmp_path: Path, places: int
) -> None:
    driver = make(tmp_path, PBT, places=places)
    assert play(driver) == places
    records = driver.records
    assert {record.outcome for record in records.values()} == {Outcome.COMPLETED}
    copies = [line for line in ledger(driver) if "fork" in line]
    assert copies
    for line in copies:
        assert line["state"] == "paused"
        assert line["parent_id"] == line["fork"]["source"] != line["trial"]
        assert line["fork_iteration"] == line["fork"]["step"]
        assert "pbt: " in line["reason"]
        assert line["params"]["x"] != line["was"]["x"]
        # The first score after the copy is the source's at that iteration, and one gain of its own.
        saved = dict(curve(driver, line["parent_id"]))[line["fork_iteration"]]
        after = [
            score for at, score in curve(driver, line["trial"]) if at == line["fork_iteration"] + 1
        ]
        assert after[-1] == pytest.approx(saved + line["params"]["x"])
    last = copies[-1]
    params = json.loads((tmp_path / f"trials/{last['trial']}/params.json").read_text())
    assert params == last["params"]
    # Lines of the trial name their origin from then on.
    after_it = ledger(driver)[-1 - [*reversed(ledger(driver))].index(last) :]
    assert {line["parent_id"] for line in after_it if line["trial"] == last["trial"]} == {
        last["parent_id"]
    }
    states = [line["state"] for line in ledger(driver) if line["trial"] == last["trial"]]
    assert states[:4] == ["queued", "placed", "started", "paused"]
    assert states[-1] == "ended"


def test_a_process_that_is_lost_loses_no_copy(tmp_path: Path) -> None:
    undisturbed = make(tmp_path / "a", PBT)
    play(undisturbed)
    whole = {trial: record.value for trial, record in undisturbed.records.items()}
    for lost in (9, 15, 27):
        driver = make(tmp_path / str(lost), PBT)
        play(driver, lose=(lost, lost + 1))
        assert {r.outcome for r in driver.records.values()} == {Outcome.COMPLETED}
        assert driver.records.keys() == whole.keys()
        for trial, record in driver.records.items():
            assert record.iteration == 8
            assert curve(driver, trial)[-1][1] == record.value


def test_waiting_trials_are_carried_on_when_they_are_among_the_best(tmp_path: Path) -> None:
    driver = make(tmp_path, PROMOTION, trials=4, places=2)
    play(driver)
    outcomes = {trial: record.outcome for trial, record in driver.records.items()}
    # The score grows by x in each iteration: t3 is the best, and t2 was it until t3 came.
    assert outcomes == {
        "t0000": Outcome.STOPPED, "t0001": Outcome.STOPPED, "t0002": Outcome.COMPLETED,
        "t0003": Outcome.COMPLETED,
    }  # fmt: skip
    assert [record.iteration for record in driver.records.values()] == [2, 4, 8, 8]
    assert "no more trials come" in driver.records["t0000"].reason
    # Nobody computes an iteration twice for having waited.
    iterations = [at for at, _ in curve(driver, "t0003")]
    assert iterations == sorted(set(iterations))


def test_a_single_trial_is_carried_on_though_it_waits_for_others(tmp_path: Path) -> None:
    driver = make(tmp_path, PROMOTION, trials=1, places=1)
    play(driver)
    assert [r.outcome for r in driver.records.values()] == [Outcome.COMPLETED]


def test_a_paused_trial_holds_no_place_and_is_not_live(tmp_path: Path) -> None:
    driver = make(tmp_path, PROMOTION, trials=3, places=1)
    record = driver.next_trial()
    assert record is not None
    stay = Stay(driver, record)
    while stay.step():
        pass
    assert record.state is State.PAUSED
    assert driver.live == []
    other = driver.next_trial()
    assert other is not None
    assert other.trial == "t0001"
    assert driver.may_go_on
    driver.interrupt()
    assert not driver.may_go_on
    assert driver.next_trial() is None


def test_where_nothing_can_be_copied_the_trial_fails_with_the_reason(tmp_path: Path) -> None:
    driver = make(tmp_path, PBT, places=4)
    stays = [Stay(driver, record) for record in _all(driver)]
    for stay in stays:
        stay.step()
    for stay in stays[1:]:
        stay.step()
        stay.store.delete("checkpoints")
    stays[0].step()
    assert driver.records["t0000"].outcome is Outcome.FAILED
    assert "no copy of t000" in driver.records["t0000"].reason
    assert "has no manifest" in driver.records["t0000"].reason


def _all(driver: SweepDriver) -> Iterator[TrialRecord]:
    while (record := driver.next_trial()) is not None:
        yield record


class Killed(BaseException):
    """The driver's process is gone."""


def dying(driver: SweepDriver, writes: int) -> None:
    """Lets the driver write so many lines of ledger and metrics, and no more."""
    left = iter(range(writes))
    append = driver.directory.store.append

    def write(key: str, line: str) -> None:
        if next(left, None) is None:
            raise Killed
        append(key, line)

    driver.directory.store.append = write  # type: ignore[method-assign]


def again(path: Path, scheduler: Mapping[str, Any]) -> SweepDriver:
    """A new driver that knows what the last one recorded, all trials that had not ended queued."""
    driver = make(path, scheduler)
    lines = ledger(driver)
    last = {line["trial"]: line for line in lines}
    for trial, line in last.items():
        params = json.loads((path / f"trials/{trial}/params.json").read_text())
        record = TrialRecord(trial, driver.study.ask()[0], params, state=State(line["state"]))
        record.outcome = Outcome(line["outcome"]) if line["outcome"] else None
        record.iteration = line["iteration"]
        driver.records[trial] = record
    pausing.recall(driver, lines)
    told = []
    for trial in last:
        file = path / f"trials/{trial}/metrics.jsonl"
        text = file.read_text() if file.exists() else ""
        told += [(json.loads(line), trial) for line in text.splitlines()]
    for line, trial in sorted(told, key=lambda report: report[0]["timestamp"]):
        if line["iteration"] < 8:
            driver.decide(trial, line)
        driver.records[trial].value = line["script/score"]
    pausing.settle(driver, lines)
    for trial, record in driver.records.items():
        if record.state not in (State.ENDED, State.PAUSED):
            record.state = State.INTERRUPTED
            driver.again.append(trial)
    return driver


@pytest.mark.parametrize("kind", ["pbt", "promotion"])
def test_a_driver_that_was_killed_has_the_same_scheduler_again(tmp_path: Path, kind: str) -> None:
    scheduler = {"pbt": PBT, "promotion": PROMOTION}[kind]
    whole = make(tmp_path / "whole", scheduler)
    play(whole)
    restored = again(tmp_path / "whole", scheduler)
    assert restored.scheduler == whole.scheduler
    assert restored._guards == whole._guards
    copied = 0
    for writes in (16, 44, 51):
        path = tmp_path / str(writes)
        driver = make(path, scheduler)
        dying(driver, writes)
        with contextlib.suppress(Killed):
            play(driver)
        driver = again(path, scheduler)
        copied += sum("fork" in line for line in ledger(driver))
        play(driver)
        assert {r.outcome for r in driver.records.values()} <= {Outcome.COMPLETED, Outcome.STOPPED}
        assert Outcome.COMPLETED in {r.outcome for r in driver.records.values()}
        assert len(driver.records) == 4
        assert all(
            r.iteration == 8 for r in driver.records.values() if r.outcome is Outcome.COMPLETED
        )
    assert (copied > 0) == (kind == "pbt")


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_sweep({"base": "tiny", **values})
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


LR = {"optim.policy.lr": {"float": [1e-4, 1e-2], "log": True}}
RANDOM = {"sampler": "random"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"scheduler": {"kind": "asha", "quantile": 0.1}}, "it belongs to pbt and pb2"),
        ({"scheduler": {"kind": "none", "grace": 7}}, "scheduler.grace 7 has no effect"),
        ({"scheduler": {"kind": "median", "stop": False}}, "scheduler.stop False has no effect"),
        ({"scheduler": {"kind": "pb2", "perturb": 0.5}}, "scheduler.kind is 'pb2'"),
        ({"scheduler": {"kind": "pbt"}, "search": RANDOM}, "none of optim.policy.lr, "),
        ({"scheduler": {"kind": "pbt"}, "space": LR}, "search.sampler 'tpe' learns from"),
        (
            {"scheduler": {"kind": "pbt", "mutate": ["ppo.gama"]}, "space": LR, "search": RANDOM},
            "scheduler.mutate: 'ppo.gama' is not searched",
        ),
        (
            {
                "scheduler": {"kind": "pbt", "mutate": ["sync.interval"]},
                "space": {**LR, "sync.interval": {"choice": [1, 2]}},
                "search": RANDOM,
            },
            "'sync.interval' cannot change in a trial under way",
        ),
        (
            {
                "scheduler": {"kind": "pb2"},
                "space": {**LR, "ppo.epochs": {"int": [1, 3]}},
                "search": RANDOM,
            },
            "'pb2' models numbers, but ppo.epochs is",
        ),
        (
            {"scheduler": {"kind": "pbt"}, "space": LR, "search": {**RANDOM, "trials": 1}},
            "compares trials; raise search.trials",
        ),
        (
            {
                "scheduler": {"kind": "asha", "resource": "gpu_seconds"},
                "base": {"extends": "tiny", "resources": {"roles": {"fused": {"gpus": 0}}}},
            },
            "but trials have no GPUs",
        ),
        (
            {
                "guards": {"hacking_fall": 3},
                "search": {"objective": "eval/weighted"},
                "base": {
                    "extends": "tiny",
                    "data": {"task": None, "prompts": __file__},
                    "model": {"policy": "somebody/small"},
                    "reward": {"function": "sweep_helpers:brevity"},
                },
            },
            "guards.hacking_fall: 'reward/heldout' is not measured",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_in_a_line(values: dict[str, Any], told: str) -> None:
    assert told in refusal(**values)


def test_a_program_that_cannot_go_on_from_a_saved_point_is_never_paused() -> None:
    with pytest.raises(ConfigError, match="'asha' with stop false pauses trials, but program"):
        load_sweep({"program": "sweep_helpers:ScriptProgram", "scheduler": PROMOTION})
