"""The trials of a search by what they cost, without a look at each of them whenever that is asked."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import TYPE_CHECKING

from sweeps.outcomes import Outcome, State

if TYPE_CHECKING:
    from sweeps.trial_record import TrialRecord

# A trial that ended so stays as it is; others may go on.
FINAL = (Outcome.COMPLETED, Outcome.STOPPED, Outcome.DIVERGED, Outcome.INFEASIBLE)


class Searched:
    """Trials without test runs. What ended for good is counted once.

    Args:
        horizon: Iterations of a full trial; None: as many as the longest one had.

    Attributes:
        count: Trials that have begun.
    """

    def __init__(self, horizon: int | None) -> None:
        self.count = 0
        self._horizon = horizon
        self._known = 0
        self._open: list[TrialRecord] = []
        # Of those that ended for good: iterations in all, and of the longest one.
        self._iterations = self._longest = 0

    def look(self, records: Collection[TrialRecord]) -> Searched:
        """Takes over what happened since the last look; records are only ever added, at the end."""
        if len(records) > self._known:
            new = [r for r in itertools.islice(records, self._known, None) if r.of is None]
            self._open += new
            self.count += len(new)
            self._known = len(records)
        still = []
        for record in self._open:
            if record.state is State.ENDED and record.outcome in FINAL:
                self._iterations += min(record.iteration, self._horizon or record.iteration)
                self._longest = max(self._longest, record.iteration)
            else:
                still.append(record)
        self._open = still
        return self

    @property
    def running(self) -> bool:
        """Whether one of them runs or waits for a place."""
        return any(not record.ended for record in self._open)

    @property
    def settled(self) -> bool:
        """Whether all of them ended for good."""
        return not self._open

    @property
    def spent(self) -> float:
        """What they cost, in full trials; one that runs counts as a whole one."""
        longest = self._horizon or max([self._longest, *(r.iteration for r in self._open)]) or 1
        halted = sum(min(record.iteration, longest) for record in self._open if record.ended)
        running = sum(not record.ended for record in self._open)
        return (self._iterations + halted) / longest + running
