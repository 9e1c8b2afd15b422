"""Carries out what users ask of a sweep: the driver's side of ``control.jsonl``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from rlhf_core.errors import ConfigError
from sweeps.control import Command, check
from sweeps.driver import BY_COMMAND
from sweeps.outcomes import Outcome, State
from sweeps.trial_record import TrialRecord, Wish

if TYPE_CHECKING:
    from sweeps.driver import SweepDriver


def steer(driver: SweepDriver, pending: Collection[str] = ()) -> list[str]:
    """Reads new commands and does what can be done at once.

    Args:
        driver: The sweep.
        pending: Trials that wait for their placement group: they give no result that could carry it out.

    Returns:
        Of those, the ones that are to be given up now.
    """
    ended = []
    for command in driver.inbox.read():
        try:
            check(driver.loaded, command, driver.states(), ())
            _obey(driver, command)
        except ConfigError as error:
            driver.answer(command.id, error.problems[0])
            continue
        record = driver.records.get(command.trial or "")
        if record is not None and record.wish is not None and record.trial in pending:
            ended.append(record.trial)
            if record.wish.action == "stop":
                driver.end(record.trial, Outcome.STOPPED, BY_COMMAND)
    return ended


def _obey(driver: SweepDriver, command: Command) -> None:
    if command.action == "add":
        driver.study.add_points([command.values], command.id)
        searched = sum(record.of is None for record in driver.records.values())
        _extend(driver, max(driver.loaded.config.search.trials, searched) + 1)
        driver.answer(command.id)
    elif command.action == "extend":
        _extend(driver, command.values["trials"])
        driver.answer(command.id)
    else:
        _obey_trial(driver, command, driver.records[str(command.trial)])


def _obey_trial(driver: SweepDriver, command: Command, record: TrialRecord) -> None:
    waits = record.state in (State.PAUSED, State.INTERRUPTED)
    if command.action == "stop" and waits:
        _withdraw(driver, record)
        record.wish = Wish("stop", command.id)
        driver.end(record.trial, Outcome.STOPPED, BY_COMMAND)
    elif command.action == "pause" and waits:
        _withdraw(driver, record)
        driver.note(record, State.PAUSED)
        driver.answer(command.id)
    elif command.action == "resume-trial":
        if record.trial not in driver.again:
            _call(driver, record)
        driver.answer(command.id)
    elif command.action == "retry":
        _retry(driver, record)
        driver.answer(command.id)
    else:
        # It runs: its next result carries it out and answers.
        record.wish = Wish(command.action, command.id)


def _withdraw(driver: SweepDriver, record: TrialRecord) -> None:
    """Takes a trial out of those that are to be queued again."""
    if record.trial in driver.again:
        driver.again.remove(record.trial)
    record.state = State.PAUSED


def _retry(driver: SweepDriver, record: TrialRecord) -> None:
    """A trial that failed or was lost goes on from its last checkpoint, as a new trial of the study."""
    record.number = driver.study.again(record.number)
    record.outcome, record.reason = None, ""
    driver.note(record, State.INTERRUPTED)
    _call(driver, record)


def _call(driver: SweepDriver, record: TrialRecord) -> None:
    driver.again.append(record.trial)
    driver.called_back = True


def _extend(driver: SweepDriver, trials: int) -> None:
    config = driver.loaded.config
    search = config.search.model_copy(update={"trials": trials})
    driver.loaded = replace(driver.loaded, config=config.model_copy(update={"search": search}))
    driver.choice.loaded = driver.loaded
    driver.directory.rewrite_sweep(driver.loaded)
    driver.called_back = True
