"""Which trial is behind the others: ASHA and median stopping, as decisions without I/O.

Both look at one metric, already signed so that larger is better. A trial that reports nothing at a decision
point is not judged there; whether a number is finite is the guards' business.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Protocol


class Stopping(Protocol):
    """Decides from each result whether its trial goes on."""

    def decide(self, trial: str, iteration: int, value: float | None) -> str | None:
        """Why the trial is to stop, in words, or None."""
        ...


@dataclass
class NoStopping:
    """Every trial runs to its end."""

    def decide(self, trial: str, iteration: int, value: float | None) -> str | None:
        return None


@dataclass
class Asha:
    """Asynchronous successive halving (Li et al. 2020), the stopping form.

    At the rungs ``grace * reduction^k`` a trial goes on if it is among the best ``1 / reduction`` of those that
    have reached the rung so far.

    Attributes:
        grace: First rung, in iterations.
        reduction: One in this many goes on.
        horizon: Iterations of a full trial, or None; there is no rung at or after it.
    """

    grace: int
    reduction: int
    horizon: int | None
    _rungs: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    def rungs(self, up_to: int) -> list[int]:
        """Rung iterations at or before ``up_to``, ascending."""
        found, rung = [], self.grace
        while rung <= up_to and (self.horizon is None or rung < self.horizon):
            found.append(rung)
            rung *= self.reduction
        return found

    def decide(self, trial: str, iteration: int, value: float | None) -> str | None:
        passed = self.rungs(iteration)
        if value is None or not passed or trial in self._rungs[passed[-1]]:
            return None
        rung, reached = passed[-1], self._rungs[passed[-1]]
        reached[trial] = value
        ranked = sorted(reached.values(), reverse=True)
        last_in = ranked[max(0, len(ranked) // self.reduction - 1)]
        if len(ranked) < self.reduction or value >= last_in:
            return None
        return (
            f"asha: {value:.4g} at iteration {iteration} is below {last_in:.4g}, the best "
            f"1/{self.reduction} of {len(ranked)} trials at rung {rung}"
        )


@dataclass
class MedianStopping:
    """Median stopping rule (Golovin et al. 2017): the best value so far against the others' running means.

    Attributes:
        grace: No trial is stopped before this iteration.
        min_trials: Other trials that must have come as far.
    """

    grace: int
    min_trials: int
    _seen: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def decide(self, trial: str, iteration: int, value: float | None) -> str | None:
        if value is None:
            return None
        self._seen[trial].append((iteration, value))
        if iteration < self.grace:
            return None
        means = [
            fmean(v for i, v in curve if i <= iteration)
            for other, curve in self._seen.items()
            if other != trial and curve[-1][0] >= iteration
        ]
        if len(means) < self.min_trials:
            return None
        best, middle = max(v for _, v in self._seen[trial]), median(means)
        if best < middle:
            return (
                f"median: best {best:.4g} up to iteration {iteration} is below {middle:.4g}, the "
                f"median of the means of {len(means)} other trials"
            )
        return None
