"""Few scores, honestly summed up: Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice".

Scores come as strata: one array for each task, prompt set or environment, each with the scores of its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlhf_core.errors import ConfigError

Strata = Sequence[Any]


class Interval(NamedTuple):
    """A statistic and its bootstrap interval, in the unit of the scores."""

    value: float
    low: float
    high: float


def _arrays(strata: Strata) -> list[np.ndarray]:
    arrays = [np.asarray(scores, dtype=np.float64).ravel() for scores in strata]
    if not arrays or any(a.size == 0 or not np.isfinite(a).all() for a in arrays):
        raise ConfigError(
            "scores must be one or more arrays of finite numbers, none of them empty; "
            "drop what was not measured"
        )
    return arrays


def iqm(strata: Strata) -> float:
    """Interquartile mean: the mean of the pooled scores without the lowest and highest quarter.

    Of n scores ``floor(n / 4)`` are cut at either end, as ``scipy.stats.trim_mean`` does.

    Raises:
        ConfigError: A stratum is empty or holds a number that is not finite.
    """
    return float(_middle_mean(np.concatenate(_arrays(strata))))


def _middle_mean(scores: np.ndarray) -> np.ndarray:
    """The interquartile mean along the last axis, without scipy, which takes half a second to import."""
    count = scores.shape[-1]
    cut = count // 4
    parted = np.partition(scores, (cut, count - cut - 1), axis=-1)
    return np.asarray(parted[..., cut : count - cut].mean(axis=-1))


def bootstrap(
    strata: Strata,
    statistic: Callable[[Strata], float] = iqm,
    *,
    level: float = 0.95,
    repeats: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of a statistic, each stratum resampled within itself.

    Args:
        strata: Scores of the runs of each stratum.
        statistic: From strata to a number.
        level: Coverage, between 0 and 1.
        repeats: Resamples.
        seed: Equal seeds give equal intervals.

    Raises:
        ConfigError: As ``iqm``.
    """
    arrays = _arrays(strata)
    rng = np.random.default_rng(seed)
    drawn: Any
    if statistic is iqm:
        # All resamples at once; a loop takes a hundred times as long.
        pooled = [a[rng.integers(0, a.size, (repeats, a.size))] for a in arrays]
        drawn = _middle_mean(np.concatenate(pooled, axis=1))
    else:
        drawn = [
            statistic([a[rng.integers(0, a.size, a.size)] for a in arrays]) for _ in range(repeats)
        ]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(statistic(arrays)), float(low), float(high))


def probability_of_improvement(better: Strata, worse: Strata) -> float:
    """How likely a run of ``better`` beats one of ``worse``: the mean over strata, ties count half.

    Args:
        better: Scores where larger is better.
        worse: Scores of the other side on the same strata.

    Raises:
        ConfigError: The two have different numbers of strata, or as ``iqm``.
    """
    first, second = _arrays(better), _arrays(worse)
    if len(first) != len(second):
        raise ConfigError(
            f"both sides need the same strata, got {len(first)} and {len(second)}; "
            "leave out what one side lacks"
        )
    shares = []
    for x, y in zip(first, second, strict=True):
        ordered = np.sort(y)
        below = np.searchsorted(ordered, x, side="left")
        not_above = np.searchsorted(ordered, x, side="right")
        shares.append(float(np.mean((below + not_above) / 2) / y.size))
    return float(np.mean(shares))


def performance_profile(strata: Strata, thresholds: Any) -> np.ndarray:
    """Share of all runs that score above each threshold, float64 of its length."""
    scores = np.sort(np.concatenate(_arrays(strata)))
    beaten = np.searchsorted(scores, np.asarray(thresholds, dtype=np.float64), side="right")
    return 1.0 - beaten / scores.size
