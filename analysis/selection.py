"""The honest choice: how finalists rank by runs on fresh seeds, and whether the first can be told from the others.

Pure numbers; ``analysis.finalists`` takes them from a sweep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from analysis.statistics.robust import Interval

LEVEL = 0.95


class FreshRuns(NamedTuple):
    """The test runs of one finalist that have ended.

    Attributes:
        values: The objective of those that count.
        failed: How many do not: they did not complete, or break a constraint.
    """

    values: Sequence[float]
    failed: int = 0


def rank(tested: Mapping[str, FreshRuns], ascending: bool) -> list[str]:
    """Finalists, the best first: by the share of runs that failed, then by interquartile mean.

    Args:
        tested: The runs by finalist, in the order of the search; ties keep it. One without a run that counts
            is left out.
        ascending: Whether smaller is better.
    """
    from analysis.statistics.robust import iqm

    begun = {trial: runs for trial, runs in tested.items() if runs.values}
    sign = 1.0 if ascending else -1.0

    def place(trial: str) -> tuple[float, float]:
        runs = begun[trial]
        failed = runs.failed / (len(runs.values) + runs.failed)
        return failed, sign * iqm([runs.values])

    return sorted(begun, key=place)


def interval(runs: FreshRuns) -> Interval:
    """Interquartile mean with its bootstrap interval, seeds resampled; of a single run there is no interval."""
    from analysis.statistics.robust import Interval, bootstrap

    if len(runs.values) > 1:
        return bootstrap([runs.values], level=LEVEL)
    return Interval(runs.values[0] if runs.values else math.nan, math.nan, math.nan)


class Comparison(NamedTuple):
    """Two finalists: difference of their means with its interval, in the unit of the objective.

    ``low`` and ``high`` are NaN where no spread is known.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float

    @property
    def apart(self) -> bool:
        """Whether the interval leaves out 0."""
        return bool(self.low > 0 or self.high < 0)


def compare(tested: Mapping[str, FreshRuns], first: str, second: str) -> Comparison:
    """The difference of two finalists' means and its 95 % interval.

    The spread between seeds is pooled over all finalists (Student's t with the degrees of freedom that leaves): of
    two or three seeds alone a bootstrap covers far less than it claims.
    """
    import numpy as np
    from scipy import stats

    one, other = tested[first].values, tested[second].values
    groups = [np.asarray(runs.values) for runs in tested.values() if len(runs.values) > 1]
    free = sum(group.size - 1 for group in groups)
    if not one or not other or not free:
        return Comparison(first, second, math.nan, math.nan, math.nan)
    squares = float(sum(((group - group.mean()) ** 2).sum() for group in groups))
    error = np.sqrt(squares / free * (1 / len(one) + 1 / len(other)))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, free) * error)
    difference = float(np.mean(one) - np.mean(other))
    return Comparison(first, second, difference, difference - reach, difference + reach)
