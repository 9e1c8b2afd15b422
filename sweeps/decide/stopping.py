"""Median stopping, as a decision without I/O."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeps.decide.scheduling import Action, GoOn, Report, SavePoints, Series, Stop

# Amounts whose standings are kept: as many as trials that run at once are apart, and no more memory than that.
STANDINGS = 128


@dataclass
class Curve(Series):
    """A trial's values with their sums, by amount of the resource."""

    amounts: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)

    def put(self, iteration: int, amount: float, value: float) -> bool:
        """Whether all that was known of the trial before is as it was."""
        steady = not self.amounts or (self.iterations[-1] < iteration and self.amounts[-1] < amount)
        self.add(iteration, value)
        keep = len(self.values) - 1
        del self.amounts[keep:], self.sums[keep:]
        self.amounts.append(amount)
        self.sums.append(value + (self.sums[-1] if self.sums else 0.0))
        return steady

    def mean(self, amount: float) -> float | None:
        """Mean of the values up to ``amount``; None where the trial has not come so far, or had no value yet."""
        count = bisect_right(self.amounts, amount)
        reached = bool(self.amounts) and self.amounts[-1] >= amount
        return self.sums[count - 1] / count if reached and count else None

    def best(self) -> float:
        return max(self.values)


@dataclass
class Standing:
    """Running means at one amount of the resource, of all trials that came so far.

    Attributes:
        read: Reports that were looked at for it.
        ranked: The means, ascending.
        of: The same by trial.
    """

    read: int = 0
    ranked: list[float] = field(default_factory=list)
    of: dict[str, float] = field(default_factory=dict)

    def add(self, trial: str, mean: float) -> None:
        self.of[trial] = mean
        insort(self.ranked, mean)

    def remove(self, trial: str) -> None:
        if trial in self.of:
            del self.ranked[bisect_left(self.ranked, self.of.pop(trial))]

    def median_beside(self, trial: str) -> tuple[int, float]:
        """How many other trials there are, and the median of theirs; NaN where there are none."""
        own = bisect_left(self.ranked, self.of[trial]) if trial in self.of else len(self.ranked)
        count = len(self.ranked) - (trial in self.of)
        if not count:
            return 0, math.nan
        low, high = (self.ranked[k + (k >= own)] for k in ((count - 1) // 2, count // 2))
        return count, (low + high) / 2


@dataclass
class MedianStopping:
    """Median stopping rule (Golovin et al. 2017): the best value so far against the others' running means.

    Trials that come to the same amounts share their standings there, so that a report costs no look at each trial.

    Attributes:
        grace: No trial is stopped before, in the scheduler's resource.
        min_trials: Other trials that must have come as far.
    """

    grace: int
    min_trials: int
    _seen: dict[str, Curve] = field(default_factory=dict)
    _reports: list[tuple[str, float]] = field(default_factory=list)
    _standings: dict[float, Standing] = field(default_factory=dict)

    def join(self, trial: str, params: Mapping[str, Any]) -> None:
        """Trials count from their first value on."""

    def decide(self, report: Report) -> Action:
        if report.value is None or report.amount is None:
            return GoOn()
        mine = self._seen.setdefault(report.trial, Curve())
        if not mine.put(report.iteration, report.amount, report.value):
            # What the trial had told counts no longer.
            self._standings.clear()
        self._reports.append((report.trial, report.amount))
        if report.amount < self.grace:
            return GoOn()
        count, middle = self._standing(report.amount).median_beside(report.trial)
        if count < self.min_trials or mine.best() >= middle:
            return GoOn()
        return Stop(
            f"median: best {mine.best():.4g} up to iteration {report.iteration} is below {middle:.4g}, the "
            f"median of the means of {count} other trials"
        )

    def _standing(self, amount: float) -> Standing:
        """Of all that was reported so far."""
        found = self._standings.pop(amount, None)
        if found is None:
            found, candidates = Standing(), list(self._seen)
        else:
            candidates = [t for t, reached in self._reports[found.read :] if reached >= amount]
        for trial in candidates:
            curve = self._seen.get(trial)
            mean = curve.mean(amount) if curve is not None and trial not in found.of else None
            if mean is not None:
                found.add(trial, mean)
        found.read = len(self._reports)
        # The one that was asked for longest ago goes first.
        self._standings[amount] = found
        if len(self._standings) > STANDINGS:
            del self._standings[next(iter(self._standings))]
        return found

    def forget(self, trial: str) -> None:
        self._seen.pop(trial, None)
        for standing in self._standings.values():
            standing.remove(trial)

    def release(self, paused: Sequence[str], fresh: int, closed: bool) -> str | None:
        return None

    def save_points(self, trial: str) -> SavePoints | None:
        return None
