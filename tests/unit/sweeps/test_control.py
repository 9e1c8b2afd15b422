"""What users ask of a sweep: refused where it is impossible, carried out once, also when no driver was there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.runtime.placement import Node
from sweeps.claim import claimed
from sweeps.cli import main
from sweeps.control import Command, Inbox, send
from sweeps.driver import SweepDriver
from sweeps.history import read_history
from sweeps.load import load_sweep
from sweeps.outcomes import Outcome, State
from sweeps.record import RunDirectory
from sweeps.restore import restore
from sweeps.steering import steer
from sweeps.tuning.study import Study

Driver = Callable[..., SweepDriver]


@pytest.fixture
def make(tmp_path: Path) -> Driver:
    """Makes a driver of the sweep in ``tmp_path``, a new one or one that goes on."""

    def made(trials: int = 3, concurrent: int = 2) -> SweepDriver:
        search = {"trials": trials, "objective": "script/loss", "direction": "minimize"}
        program = {"program": "sweep_helpers:ScriptProgram", "scheduler": {"kind": "none"}}
        space = {"x": {"float": [0.0, 6.0]}}
        loaded = load_sweep({**program, "space": space, "search": search})
        history = read_history(tmp_path) if (tmp_path / "sweep.json").exists() else None
        record = RunDirectory(tmp_path)
        record.write_sweep(loaded, [])
        study = Study(tmp_path, "s", loaded.config.search, loaded.space, lambda params: [])
        driver = SweepDriver(loaded, record, study, [Node("a", 8.0, 0.0, 8.0)], concurrent)
        if history is not None:
            restore(driver, history)
        return driver

    return made


def started(driver: SweepDriver) -> str:
    record = driver.next_trial()
    assert record is not None
    driver.placed(record.trial)
    driver.result(record.trial, {"iteration": 1, "script/loss": 1.0})
    return record.trial


def answers(path: Path) -> list[tuple[bool, str]]:
    lines = [json.loads(text) for text in (path / "events.jsonl").read_text().splitlines()]
    return [(line["done"], line["reason"]) for line in lines if line["event"] == "command"]


def test_a_running_trial_is_stopped_at_its_next_result(make: Driver, tmp_path: Path) -> None:
    driver = make()
    trial = started(driver)
    send(tmp_path, Command("stop", trial))
    assert steer(driver) == []
    assert not driver.decide(trial, {"iteration": 2, "script/loss": 1.0})
    driver.end(trial, Outcome.COMPLETED)
    assert driver.records[trial].outcome is Outcome.STOPPED
    assert answers(tmp_path) == [(True, "")]


def test_a_waiting_trial_is_stopped_at_once(make: Driver, tmp_path: Path) -> None:
    driver = make()
    record = driver.next_trial()
    assert record is not None
    send(tmp_path, Command("stop", record.trial))
    assert steer(driver, {record.trial}) == [record.trial]
    assert (record.state, record.outcome) == (State.ENDED, Outcome.STOPPED)
    assert answers(tmp_path) == [(True, "")]


def test_a_paused_trial_gives_its_place_back_and_goes_on_later(
    make: Driver, tmp_path: Path
) -> None:
    driver = make(trials=2, concurrent=1)
    trial = started(driver)
    send(tmp_path, Command("pause", trial))
    steer(driver)
    assert driver.decide(trial, {"iteration": 2, "script/loss": 1.0})
    assert driver.wants_pause(trial)
    # What Tune says of a trial that is taken out of it.
    driver.end(trial, Outcome.COMPLETED)
    assert driver.records[trial].state is State.PAUSED
    other = started(driver)
    assert other != trial
    driver.end(other, Outcome.COMPLETED)
    assert driver.next_trial() is None
    send(tmp_path, Command("resume-trial", trial))
    steer(driver)
    again = driver.next_trial()
    assert again is not None
    assert again.trial == trial
    states = [json.loads(line)["state"] for line in (tmp_path / "trials.jsonl").open()]
    assert states.count("queued") == 3
    assert answers(tmp_path) == [(True, "")] * 2


def test_a_trial_that_completes_before_it_pauses_is_completed(make: Driver, tmp_path: Path) -> None:
    driver = make()
    trial = started(driver)
    send(tmp_path, Command("pause", trial))
    steer(driver)
    driver.result(trial, {"iteration": 2, "script/loss": 1.0, "outcome": "completed"})
    driver.end(trial, Outcome.COMPLETED)
    assert driver.records[trial].outcome is Outcome.COMPLETED
    assert answers(tmp_path) == [(False, "t0000 ended before, as completed")]


def test_a_failed_trial_is_tried_again_as_a_new_one_of_the_study(
    make: Driver, tmp_path: Path
) -> None:
    driver = make()
    trial = started(driver)
    driver.end(trial, Outcome.FAILED, "KeyError: x")
    send(tmp_path, Command("retry", trial))
    steer(driver)
    # Killed before it ran: the next driver goes on with it.
    driver = make()
    again = driver.next_trial()
    assert again is not None
    assert (again.trial, again.number, again.outcome) == (trial, 1, None)
    driver.result(trial, {"iteration": 2, "script/loss": 0.5, "outcome": "completed"})
    driver.end(trial, Outcome.COMPLETED)
    first, second = driver.study._study.trials[:2]
    assert (first.state.name, second.state.name) == ("FAIL", "COMPLETE")
    assert first.params == second.params
    assert second.value == 0.5


def test_points_and_trials_are_added_while_it_runs(make: Driver, tmp_path: Path) -> None:
    driver = make(trials=1)
    started(driver)
    assert driver.exhausted
    send(tmp_path, Command("add", values={"x": 4.5}))
    send(tmp_path, Command("extend", values={"trials": 4}))
    steer(driver)
    added = driver.next_trial()
    assert added is not None
    assert added.params == {"x": 4.5}
    assert not driver.exhausted
    assert json.loads((tmp_path / "sweep.json").read_text())["trials"] == 4


def test_commands_without_a_driver_wait_for_the_next_one(make: Driver, tmp_path: Path) -> None:
    driver = make()
    trial, other = started(driver), started(driver)
    driver.interrupt()
    send(tmp_path, Command("stop", trial))
    send(tmp_path, Command("pause", other))
    driver = make()
    steer(driver)
    assert driver.records[trial].outcome is Outcome.STOPPED
    assert driver.records[other].state is State.PAUSED
    assert driver.again == []
    # They are carried out once, whoever reads them later.
    assert steer(make()) == []
    assert answers(tmp_path) == [(True, "")] * 2


def test_what_became_impossible_meanwhile_is_answered_so(make: Driver, tmp_path: Path) -> None:
    driver = make()
    trial = started(driver)
    driver.end(trial, Outcome.COMPLETED)
    send(tmp_path, Command("pause", trial))
    send(tmp_path, Command("stop", "t0009"))
    steer(driver)
    (pause, first), (stop, second) = answers(tmp_path)
    assert (pause, stop) == (False, False)
    assert "has ended as completed" in first
    assert "no trial 't0009'" in second


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    send(tmp_path, Command("stop", "t0000"))
    with (tmp_path / "control.jsonl").open("a") as file:
        file.write('{"id": "b", "action": "stop", ')
        file.flush()
        assert [command.trial for command in inbox.read()] == ["t0000"]
        file.write('"trial": "t0001", "values": {}}\n')
    assert [command.trial for command in inbox.read()] == ["t0001"]
    assert inbox.read() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stop", "t0009"], "there is no trial 't0009'"),
        (["stop", "t0000"], "t0000 has ended as completed; it needs no stop"),
        (["pause", "t0000"], "only one that has not ended can be paused"),
        (["resume-trial", "t0001"], "t0001 is started; only a paused one"),
        (["retry", "t0000"], "only one that failed or was lost"),
        (["add", "y=1"], "add: 'y' is not searched"),
        (["add", "x=9"], "add: x = 9 lies outside"),
        (["add", "x"], "KEY=VALUE"),
        (["extend", "--trials", "3"], "must be above 3"),
        (["extend", "--trials", "0"], "must be at least 1"),
    ],
)
def test_what_is_impossible_is_refused_in_one_line(
    make: Driver, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Any, says: str
) -> None:
    driver = make()
    driver.end(started(driver), Outcome.COMPLETED)
    started(driver)
    assert main([arguments[0], str(tmp_path), *arguments[1:]]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "control.jsonl").exists()


def test_a_command_says_who_carries_it_out(
    make: Driver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = make()
    trial = started(driver)
    assert main(["pause", str(tmp_path), trial]) == 0
    assert "`rlhf-sweep resume" in capsys.readouterr().out
    with claimed(tmp_path):
        assert main(["stop", str(tmp_path), trial]) == 0
    assert "events.jsonl" in capsys.readouterr().out
    assert [c.action for c in Inbox(tmp_path).read()] == ["pause", "stop"]
