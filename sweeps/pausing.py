"""Trials that the scheduler takes from their place: what is recorded of them, and when they go on.

For Tune such a trial ends; when it goes on it is a new one with the same id, whose processes may be those of
another trial. It starts from its own store, where its last checkpoint lies, or the copy of another trial's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core import forks
from rlhf_core.errors import CheckpointError
from rlhf_core.store import open_store
from sweeps.decide.scheduling import Exploit
from sweeps.outcomes import Outcome, State
from sweeps.record import storage_root

if TYPE_CHECKING:
    from sweeps.driver import SweepDriver, TrialRecord


def pause(driver: SweepDriver, record: TrialRecord) -> None:
    """The trial gave up its place as the scheduler wanted; a copy is staged for it where that is to be one."""
    assert record.held is not None
    action, extra = record.held, {}
    if isinstance(action, Exploit):
        was = record.params
        try:
            _fork(driver, record, action)
        except (CheckpointError, OSError) as error:
            driver.end(record.trial, Outcome.FAILED, f"no copy of {action.source}: {error}")
            return
        extra = {"fork": record.fork, "params": record.params, "was": was}
    record.times["ended"] = driver.clock()
    driver.note(record, State.PAUSED, reason=action.reason, **extra)
    driver.paused[record.trial] = record


def _fork(driver: SweepDriver, record: TrialRecord, action: Exploit) -> None:
    loaded = driver.loaded
    root = storage_root(driver.directory.path, loaded.config.storage.checkpoints)
    source, target = (open_store(f"{root}/{trial}") for trial in (action.source, record.trial))
    forks.stage(source, target, action.step)
    number = int((record.fork or {}).get("number", 0)) + 1
    origin = {"source": action.source, "step": action.step, "passed": action.passed}
    record.fork = {"number": number, **origin}
    record.params, record.iteration = dict(action.params), action.step
    # What it reports from here on is new.
    record.reported = record.judged = action.step
    config = loaded.program.resolve(loaded.base, record.params)
    driver.directory.write_trial(record.trial, config, record.params)


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
