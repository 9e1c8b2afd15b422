"""What a sweep's budget bought: early ranks against final ones, and the search against chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import gammaln

from analysis.compare import best_so_far
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError, nearest

_FEWEST = 4
SECONDS_PER_HOUR = 3600.0


def budget_correlation(
    sweep: Sweep, metric: str | None = None, repeats: int = 500, seed: int = 0
) -> pd.DataFrame:
    """How well the rank at an iteration foretells the rank at the end, over completed trials.

    Args:
        sweep: A loaded sweep.
        metric: What is ranked early; the objective by default. The end is always the objective.
        repeats: Resamples of trials for the interval.
        seed: Of the resampling.

    Returns:
        One row per iteration at which four trials or more were measured: ``iteration`` int64,
        ``trials`` int64, ``rho`` float64 (Spearman), ``low`` and ``high`` (95 %), ``kept`` float64,
        the share of the final best third that is in the best third at that iteration. Signs are
        those of "larger is better" for both.

    Raises:
        ConfigError: No trial reports the metric; near misses are named.
    """
    sweep = sweep.searched
    wanted = metric or sweep.metric
    if wanted not in sweep.iterations:
        hint = nearest(wanted, map(str, sweep.iterations.columns[3:]))
        raise ConfigError(f"metric: no trial reports {wanted!r}{hint}")
    done = sweep.trials[(sweep.trials["outcome"] == "completed") & sweep.trials["value"].notna()]
    sign = -1.0 if sweep.objective.ascending else 1.0
    final = sign * done["value"]
    rows = sweep.iterations[["trial", "iteration", wanted]].dropna()
    rng = np.random.default_rng(seed)
    found = []
    for iteration, group in rows.groupby("iteration"):
        early = sign * group.set_index(group["trial"].astype("str"))[wanted]
        both = pd.concat([early, final], axis=1, join="inner").to_numpy()
        if len(both) >= _FEWEST:
            found.append((iteration, len(both), *_agreement(both, repeats, rng)))
    frame = pd.DataFrame(found, columns=["iteration", "trials", "rho", "low", "high", "kept"])
    return frame.astype({"iteration": "int64", "trials": "int64"})


def _agreement(
    both: np.ndarray, repeats: int, rng: np.random.Generator
) -> tuple[float, float, float, float]:
    drawn = [_rho(both[rng.integers(0, len(both), len(both))]) for _ in range(repeats)]
    known = [d for d in drawn if d == d] or [np.nan]
    low, high = np.quantile(known, [0.025, 0.975])
    third = max(1, round(len(both) / 3))
    early, last = (set(np.argsort(-column, kind="stable")[:third]) for column in both.T)
    return _rho(both), float(low), float(high), len(early & last) / third


def _rho(both: np.ndarray) -> float:
    """Spearman's correlation, NaN where one side does not vary."""
    ranks = stats.rankdata(both, axis=0)
    ranks = ranks - ranks.mean(axis=0)
    norm = np.sqrt((ranks**2).sum(axis=0).prod())
    return float((ranks[:, 0] * ranks[:, 1]).sum() / norm) if norm > 0 else np.nan


def expected_best(values: Any, draws: Any, ascending: bool = False) -> pd.DataFrame:
    """The best of n of these values in random order: its mean and its 5th and 95th percentile.

    Exact, over all orders without replacement, so that the best of all draws is the best value.

    Args:
        values: Finite numbers, one for each trial.
        draws: Numbers of draws, each from 1 to the number of values.
        ascending: Whether smaller is better.

    Returns:
        Indexed by ``draws``: ``mean``, ``low``, ``high`` float64.

    Raises:
        ConfigError: A number of draws has no meaning for these values.
    """
    held = np.asarray(values, dtype=np.float64)
    counts = np.atleast_1d(np.asarray(draws, dtype=np.int64))
    if not len(held) or not np.isfinite(held).all() or counts.min() < 1 or counts.max() > len(held):
        raise ConfigError(
            f"draws must lie between 1 and the number of values, {len(held)}, all of them finite"
        )
    ordered = np.sort(-held if ascending else held)
    place = np.arange(1, len(held) + 1)
    rows = []
    for count in counts:
        # P(best <= k-th smallest) = C(k, n) / C(N, n)
        below = np.where(
            place >= count, np.exp(_choose(place, count) - _choose(len(held), count)), 0.0
        )
        below[-1] = 1.0
        mean = float((ordered * np.diff(below, prepend=0.0)).sum())
        low, high = (ordered[np.searchsorted(below, q)] for q in (0.05, 0.95))
        rows.append((-mean, -high, -low) if ascending else (mean, low, high))
    return pd.DataFrame(
        rows, columns=["mean", "low", "high"], index=pd.Index(counts, name="draws"), dtype="float64"
    )


def _choose(n: Any, k: Any) -> Any:
    """Logarithm of the binomial coefficient."""
    below = np.maximum(np.asarray(n) - k, 0)
    return gammaln(np.asarray(n) + 1.0) - gammaln(k + 1.0) - gammaln(below + 1.0)


def spent_hours(sweep: Sweep, trials: pd.Series[Any]) -> np.ndarray:
    """GPU-hours spent by these trials and the ones before; NaN where none reports ``cost/gpu_seconds``."""
    cost = sweep.trials.get("final.cost/gpu_seconds", pd.Series(np.nan, sweep.trials.index))
    spent = cost.reindex(trials).to_numpy(np.float64)
    hours = np.nan_to_num(spent).cumsum() / SECONDS_PER_HOUR
    return hours if np.isfinite(spent).any() else np.full(len(spent), np.nan)


def search_course(sweep: Sweep) -> pd.DataFrame:
    """``analysis.best_so_far`` against the bill, beside the same trials in random order.

    Returns:
        The columns of ``best_so_far``, then ``gpu_hours`` float64 (cumulative, of ended trials; NaN
        where no trial reports ``cost/gpu_seconds``), ``random``, ``random_low`` and ``random_high``
        float64: mean and 90 % range of the best of as many of these trials in random order. Trials
        that may not be chosen count there as the worst eligible value.

    Raises:
        ConfigError: ``sweep.json`` states no objective or an unreadable constraint.
    """
    course = best_so_far(sweep)
    course["gpu_hours"] = spent_hours(sweep, course["trial"])
    known = course["value"].where(course["eligible"])
    columns = {"mean": "random", "low": "random_low", "high": "random_high"}
    if known.notna().any():
        smaller = sweep.objective.ascending
        floor = known.max() if smaller else known.min()
        reference = expected_best(known.fillna(floor), course["ended"], smaller)
        for source, name in columns.items():
            course[name] = reference[source].to_numpy()
    else:
        course = course.assign(**dict.fromkeys(columns.values(), np.nan))
    return course
