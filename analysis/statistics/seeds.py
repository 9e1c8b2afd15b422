"""How much of what separates trials is their configuration, and how much is the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.space import SEED
from analysis.statistics.robust import bootstrap
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError


class SeedNoise(NamedTuple):
    """Spread between configurations and between seeds of one configuration.

    Attributes:
        between: Standard deviation of the true means of configurations, 0 where the data show none.
        within: Standard deviation of the runs of one configuration.
        share: Part of the variance that configurations explain (intraclass correlation), 0 to 1.
        low: Lower bound of ``share`` at 95 %, configurations resampled.
        high: Upper bound of it.
    """

    between: float
    within: float
    share: float
    low: float
    high: float


def seed_noise(groups: Sequence[Any], repeats: int = 1000, seed: int = 0) -> SeedNoise:
    """One-way random effects (method of moments) over runs of several configurations.

    Args:
        groups: One array of scores for each configuration; those of a single run say nothing of
            seeds and are left out.
        repeats: Resamples of configurations for the interval.
        seed: Of the resampling.

    Raises:
        ConfigError: Fewer than two configurations have two runs or more.
    """
    arrays = [np.asarray(g, dtype=np.float64) for g in groups if len(g) > 1]
    if len(arrays) < 2:
        raise ConfigError(
            f"seed noise needs two configurations with two seeds each, got {len(arrays)}; "
            "run the best trials again on other seeds"
        )
    between, within = _components(arrays)
    rng = np.random.default_rng(seed)
    shares = []
    for _ in range(repeats):
        drawn = [arrays[i] for i in rng.integers(0, len(arrays), len(arrays))]
        shares.append(_share(*_components(drawn)))
    low, high = np.quantile(shares, [0.025, 0.975])
    return SeedNoise(
        float(np.sqrt(between)),
        float(np.sqrt(within)),
        _share(between, within),
        float(low),
        float(high),
    )


def _components(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    """Variance between and within groups of unequal size."""
    sizes = np.array([a.size for a in arrays])
    total, count = int(sizes.sum()), len(arrays)
    means = np.array([a.mean() for a in arrays])
    whole = float((sizes * means).sum() / total)
    within = float(sum(((a - a.mean()) ** 2).sum() for a in arrays) / (total - count))
    spread = float((sizes * (means - whole) ** 2).sum() / (count - 1))
    typical = (total - float((sizes**2).sum()) / total) / (count - 1)
    return max(0.0, (spread - within) / typical), within


def _share(between: float, within: float) -> float:
    total = between + within
    return between / total if total > 0 else 0.0


def replicates(sweep: Sweep) -> dict[tuple[str, ...], pd.Series[Any]]:
    """The values of completed trials that differ in nothing but their seed.

    Where finalists ran on test seeds these are their runs, without the trials of the search: what made a trial a
    finalist is no fair draw of its configuration.

    Returns:
        By configuration (the ids of its trials), the objective of at least two trials by id.
    """
    done = sweep.trials[(sweep.trials["outcome"] == "completed") & sweep.trials["value"].notna()]
    tests = done[done["purpose"] == "test"]
    if len(tests):
        named = tests.groupby("of", sort=False)["value"]
        return {(str(of), *map(str, own.index)): own for of, own in named if len(own) > 1}
    params = [c for c in done.columns if c.startswith("params.") and c != f"params.{SEED}"]
    if done.empty or not params:
        return {}
    keys = done[params].astype("object").map(repr).agg("|".join, axis=1)
    groups = [rows["value"] for _, rows in done.groupby(keys, sort=False)]
    return {tuple(map(str, group.index)): group for group in groups if len(group) > 1}


def seed_table(groups: Mapping[tuple[str, ...], pd.Series[Any]], ascending: bool) -> pd.DataFrame:
    """Interquartile mean and 95 % interval of each configuration, the best first.

    Returns:
        Columns ``trial`` str (the first of the configuration), ``seeds`` int64, ``iqm``, ``low``,
        ``high`` float64 in the unit of the objective, and ``values`` (arrays).
    """
    rows = []
    for trials, values in groups.items():
        found = bootstrap([values.to_numpy()])
        rows.append((trials[0], len(values), *found, values.to_numpy()))
    frame = pd.DataFrame(rows, columns=["trial", "seeds", "iqm", "low", "high", "values"])
    return frame.sort_values("iqm", ascending=ascending, kind="stable", ignore_index=True)
