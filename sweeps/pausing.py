"""Trials that the scheduler takes from their place: what is recorded of them, and when they go on.

For Tune such a trial ends; when it goes on it is a new one with the same id, whose processes may be those of
another trial. It starts from its own store, where its last checkpoint lies, or the copy of another trial's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rlhf_core import forks
from rlhf_core.errors import CheckpointError
from rlhf_core.store import open_store
from sweeps.decide.scheduling import Exploit
from sweeps.outcomes import Outcome, State
from sweeps.record import storage_root

if TYPE_CHECKING:
    from sweeps.driver import SweepDriver
    from sweeps.trial_record import TrialRecord


def pause(driver: SweepDriver, record: TrialRecord) -> None:
    """The trial gave up its place as the scheduler wanted; a copy is staged for it where that is to be one."""
    assert record.held is not None
    action = record.held
    extra: dict[str, Any] = {"by": "scheduler"}
    if isinstance(action, Exploit):
        was = record.params
        try:
            _fork(driver, record, action)
        except (CheckpointError, OSError) as error:
            driver.end(record.trial, Outcome.FAILED, f"no copy of {action.source}: {error}")
            return
        extra |= {"fork": record.fork, "params": record.params, "was": was}
    record.times["ended"] = driver.clock()
    driver.note(record, State.PAUSED, reason=action.reason, **extra)
    driver.paused[record.trial] = record
    if "fork" in extra:
        # After the ledger, which is what counts.
        config = driver.loaded.program.resolve(driver.loaded.base, record.params)
        driver.directory.write_trial(record.trial, config, record.params)


def _fork(driver: SweepDriver, record: TrialRecord, action: Exploit) -> None:
    loaded = driver.loaded
    root = storage_root(driver.directory.path, loaded.config.storage.checkpoints)
    source, target = (open_store(f"{root}/{trial}") for trial in (action.source, record.trial))
    forks.stage(source, target, action.step)
    number = int((record.fork or {}).get("number", 0)) + 1
    record.fork = {"number": number, "source": action.source, "step": action.step}
    record.params, record.iteration = dict(action.params), action.step
    # What it reports from here on is new.
    record.reported = record.judged = action.step


def release(driver: SweepDriver) -> None:
    """Queues the paused trial that the scheduler wants to go on; ends all where none will ever be."""
    if not driver.paused or driver.again:
        return
    waiting = sorted(driver.paused.values(), key=lambda record: (record.iteration, record.number))
    names = [record.trial for record in waiting]
    fresh = driver.to_begin
    closed = fresh == 0 and not driver.live
    chosen = driver.scheduler.release(names, fresh, closed)
    if chosen is not None:
        del driver.paused[chosen]
        driver.again.append(chosen)
    elif closed:
        for record in waiting:
            del driver.paused[record.trial]
            reason = record.held.reason if record.held is not None else ""
            record.held = None
            driver.end(record.trial, Outcome.STOPPED, f"{reason}; no more trials come")


def recall(driver: SweepDriver, lines: Iterable[Mapping[str, Any]]) -> None:
    """Tells the scheduler of the trials of a ledger as they began, before it is told what they reported.

    Args:
        driver: Has a record for each of the trials; they get the parameters and the origin that they have now.
        lines: The ledger, in order.
    """
    began: dict[str, Mapping[str, Any]] = {}
    for line in lines:
        if "fork" in line:
            began.setdefault(line["trial"], line["was"])
            record = driver.records[line["trial"]]
            record.fork, record.params = line["fork"], dict(line["params"])
    searched = (item for item in driver.records.items() if item[1].of is None)
    for trial, record in searched:
        driver.scheduler.join(trial, began.get(trial, record.params))


def settle(driver: SweepDriver, lines: Iterable[Mapping[str, Any]]) -> None:
    """Carries out what the scheduler had decided last, once it was told all reports of ``lines``' trials again."""
    done = Counter(line["trial"] for line in lines if line.get("by") == "scheduler")
    for trial, record in driver.records.items():
        if record.state in (State.ENDED, State.INTERRUPTED) and record.outcome is not None:
            continue
        if record.holds > done[trial]:
            # Its driver was gone before the trial had given up its place.
            pause(driver, record)
        elif record.held is not None and record.state is State.PAUSED:
            driver.paused[trial] = record
        else:
            record.held = None
