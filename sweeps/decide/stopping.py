"""Median stopping, as a decision without I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sweeps.decide.scheduling import Action, GoOn, Report, SavePoints, Series, Stop


@dataclass
class Curve(Series):
    """A trial's values with their sums, by amount of the resource."""

    amounts: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)

    def put(self, iteration: int, amount: float, value: float) -> None:
        self.add(iteration, value)
        keep = len(self.values) - 1
        del self.amounts[keep:], self.sums[keep:]
        self.amounts.append(amount)
        self.sums.append(value + (self.sums[-1] if self.sums else 0.0))

    def mean(self, amount: float) -> float | None:
        """Mean of the values up to ``amount``; None where the trial has not come so far, or had no value yet."""
        count = bisect_right(self.amounts, amount)
        reached = bool(self.amounts) and self.amounts[-1] >= amount
        return self.sums[count - 1] / count if reached and count else None

    def best(self) -> float:
        return max(self.values)


@dataclass
class MedianStopping:
    """Median stopping rule (Golovin et al. 2017): the best value so far against the others' running means.

    Attributes:
        grace: No trial is stopped before, in the scheduler's resource.
        min_trials: Other trials that must have come as far.
    """

    grace: int
    min_trials: int
    _seen: dict[str, Curve] = field(default_factory=dict)

    def join(self, trial: str, params: Mapping[str, Any]) -> None:
        """Trials count from their first value on."""

    def decide(self, report: Report) -> Action:
        if report.value is None or report.amount is None:
            return GoOn()
        mine = self._seen.setdefault(report.trial, Curve())
        mine.put(report.iteration, report.amount, report.value)
        if report.amount < self.grace:
            return GoOn()
        others = (curve.mean(report.amount) for t, curve in self._seen.items() if t != report.trial)
        means = [mean for mean in others if mean is not None]
        if len(means) < self.min_trials:
            return GoOn()
        best, middle = mine.best(), median(means)
        if best >= middle:
            return GoOn()
        return Stop(
            f"median: best {best:.4g} up to iteration {report.iteration} is below {middle:.4g}, the "
            f"median of the means of {len(means)} other trials"
        )

    def forget(self, trial: str) -> None:
        self._seen.pop(trial, None)

    def release(self, paused: Sequence[str], fresh: int, closed: bool) -> str | None:
        return None

    def save_points(self, trial: str) -> SavePoints | None:
        return None
