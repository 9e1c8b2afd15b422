"""What a table knows of its configurations, to judge by what a replayed sweep chose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlhf_core.errors import ConfigError
from sweeps.replay.table import Table

# The best share of all configurations counts as truly good, and so does what one run could not tell from the best.
GOOD_SHARE = 0.05
# A search has arrived when it has seen this share of the way from the untrained policy to the best configuration.
TARGET_SHARE = 0.9


@dataclass(frozen=True)
class Truth:
    """Judges configurations by their mean on the table's test seeds, which no sweep sees.

    Attributes:
        values: The mean by configuration, of those that completed on all test seeds.
        ranked: These configurations, the best first.
        noise: Standard deviation of the runs of one configuration.
        good: The best 5 % of all configurations, and those whose mean is within ``noise`` of the best.
        target: The objective at 90 % of the way from the untrained policy to the best configuration.
        ascending: Whether smaller is better.
    """

    values: Mapping[int, float]
    ranked: tuple[int, ...]
    noise: float
    good: frozenset[int]
    target: float
    ascending: bool

    def reached(self, value: float) -> bool:
        """Whether a value is as good as the target."""
        return value <= self.target if self.ascending else value >= self.target


def truth(table: Table, metric: str, ascending: bool) -> Truth:
    """The truth of a table about a metric.

    Raises:
        ConfigError: Fewer than two configurations completed on all test seeds, of which there must be two.
    """
    header = table.header
    found = table.finals(metric, header.test_seeds)
    whole = {n: np.array(v, float) for n, v in found.items() if None not in v}
    if len(whole) < 2 or len(header.test_seeds) < 2:
        raise ConfigError(
            f"table: {len(whole)} configurations completed with {metric!r} on {len(header.test_seeds)} test "
            "seeds; the truth needs two of both"
        )
    sign = 1.0 if ascending else -1.0
    values = {n: float(runs.mean()) for n, runs in whole.items()}
    ranked = tuple(sorted(values, key=lambda n: sign * values[n]))
    noise = math.sqrt(float(np.mean([runs.var(ddof=1) for runs in whole.values()])))
    count = math.ceil(GOOD_SHARE * len(header.configurations))
    near = {n for n in ranked if abs(values[n] - values[ranked[0]]) <= noise}
    # The level of the target is taken over all seeds: the best of noisy means lies above the best mean.
    levels = table.finals(metric, (*header.tuning_seeds, *header.test_seeds))
    means = [sign * float(np.mean(v)) for n, v in levels.items() if n in whole and None not in v]
    start, best = _start(table, metric), sign * min(means)
    return Truth(
        values=values,
        ranked=ranked,
        noise=noise,
        good=frozenset(ranked[:count]) | near,
        target=start + TARGET_SHARE * (best - start),
        ascending=ascending,
    )


def _start(table: Table, metric: str) -> float:
    """The mean first value of the metric."""
    firsts = [
        next((row[metric] for row in run.metrics if metric in row), None)
        for run in table.runs.values()
    ]
    return float(np.mean([value for value in firsts if value is not None]))
