"""Makes a new driver know what the last one of its sweep knew, from the run directory alone."""

from __future__ import annotations

import time
from collections.abc import Collection

from sweeps import pausing
from sweeps.choice import Choice
from sweeps.control import Inbox
from sweeps.driver import SweepDriver, numbers
from sweeps.history import Ended, History, Past
from sweeps.load import Loaded
from sweeps.outcomes import Outcome, State
from sweeps.trial_record import TrialRecord


def restore(driver: SweepDriver, history: History) -> None:
    """Takes over a sweep.

    Records come from the ledger. Guards and scheduler see the recorded metrics again, in the order in which they
    came, as what they decide follows from that alone. Trials that had begun are queued first; what the study
    asked for and no ledger knows it hands out next, and what it was not told it is told now.
    """
    driver.started = time.time() - history.ran_s
    driver.inbox = Inbox(driver.directory.path, history.answered)
    for past in history.trials.values():
        driver.records[past.trial] = _record(past)
    open_ = set(driver.study.open_numbers())
    open_ |= {past.number for past in history.unfinished if past.number is not None}
    for number in open_:
        driver.study.reopen(number)
    pausing.recall(driver, history.ledger)
    for trial, record in driver.records.items():
        if not driver.directory.has_config(trial):
            driver.directory.write_trial(trial, driver.resolved(record), record.params)
    _replay(driver, history, open_)
    pausing.settle(driver, history.ledger)
    # Whoever goes on with a sweep that was given up has mended something.
    driver.given_up = None
    known = {past.number for past in history.trials.values()}
    for number in sorted(open_ - known):
        driver.study.adopt(number)
    for past in history.unfinished:
        _take_up(driver, driver.records[past.trial])


def is_done(loaded: Loaded, history: History) -> bool:
    """Whether no trial of a sweep is to run any more: neither of the search nor a finalist again."""
    if any(past.state is not State.PAUSED for past in history.unfinished):
        return False
    records = [_record(past) for past in history.trials.values()]
    for record in records:
        for line in history.trials[record.trial].metrics:
            record.iteration = line["iteration"]
            record.finals |= numbers(line)
        record.value = record.finals.get(loaded.config.search.objective)
    choice = Choice(loaded)
    return choice.over(records, history.ran_s) and choice.next_run(records, history.ran_s) is None


def _record(past: Past) -> TrialRecord:
    return TrialRecord(
        trial=past.trial,
        number=past.number,
        params=past.params,
        of=past.of,
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
            if record.number is not None:
                driver.study.tell(record.number, past.outcome, record.value, record.finals)
            driver.ended(record)
            continue
        # A copy took its place: what comes now is new.
        record.judged = record.reported = min(record.judged, moment.iteration - 1)
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
