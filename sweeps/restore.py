"""Makes a new driver know what the last one of its sweep knew, from the run directory alone."""

from __future__ import annotations

import time
from collections.abc import Collection

from sweeps.control import Inbox
from sweeps.driver import SweepDriver
from sweeps.history import Ended, History, Past
from sweeps.outcomes import Outcome, State
from sweeps.trial_record import TrialRecord


def restore(driver: SweepDriver, history: History) -> None:
    """Takes over a sweep.

    Records come from the ledger. Guards and scheduler see the recorded metrics again, in the order in which they
    came, as what they decide follows from that alone. Trials that had begun are queued first; what the study
    asked for and no ledger knows is handed out next, and what it was not told it is told now.
    """
    driver.started = time.time() - history.ran_s
    driver.inbox = Inbox(driver.directory.path, history.answered)
    for past in history.trials.values():
        driver.records[past.trial] = _record(past)
    open_ = set(driver.study.open_numbers())
    open_ |= {past.number for past in history.unfinished}
    for number in open_:
        driver.study.reopen(number)
    _replay(driver, history, open_)
    # Whoever goes on with a sweep that was given up has mended something.
    driver.given_up = None
    known = {past.number for past in history.trials.values()}
    for number in sorted(open_ - known):
        driver.study.adopt(number)
    for past in history.unfinished:
        _take_up(driver, driver.records[past.trial])


def _record(past: Past) -> TrialRecord:
    return TrialRecord(
        trial=past.trial,
        number=past.number,
        params=past.params,
        state=past.state,
        outcome=past.outcome,
        reason=past.reason,
        retries=past.retries,
        spent=dict(past.spent),
        times={} if past.ended is None else {"ended": past.ended},
    )


def _replay(driver: SweepDriver, history: History, open_: Collection[int]) -> None:
    """Shows the driver what happened; ``open_``: numbers that the study does not know as ended."""
    for moment in history.in_order():
        record, past = driver.records[moment.trial], history.trials[moment.trial]
        if isinstance(moment, Ended):
            driver.study.tell(record.number, past.outcome, record.value, record.finals)
            driver.ended(record)
            continue
        # Tune does not ask the scheduler about a trial's own last result.
        if past.outcome is not Outcome.COMPLETED or moment.iteration != past.last:
            driver.decide(moment.trial, {"iteration": moment.iteration, **moment.values})
        told = record.number not in open_
        driver.absorb(record, moment.iteration, moment.values, told=told)
        if past.over:
            record.outcome, record.reason = past.outcome, past.reason


def _take_up(driver: SweepDriver, record: TrialRecord) -> None:
    """A trial that had not ended waits for its turn, unless it is paused or its end was decided already."""
    if record.outcome is not None:
        driver.end(record.trial)
    elif record.state is not State.PAUSED:
        if record.state is not State.INTERRUPTED:
            driver.note(record, State.INTERRUPTED, reason="its driver was gone")
        driver.again.append(record.trial)
