"""Values of noisy runs smoothed over their parameters: the posterior mean of a Gaussian process at each of them.

The best of many noisy values is mostly a lucky one; what its neighbours reached tells how lucky. Choosing the run
of best posterior mean among those evaluated is the standard for noisy objectives (Frazier 2018, Letham et al.
2019). Nothing is optimised: length scale and noise are averaged over a grid, weighted by marginal likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.space import SEED, Axis

Floats = NDArray[np.float64]

# Fewer whole runs say nothing of how values change with parameters.
FEWEST = 5
# More are fitted by as many, evenly spread over all.
MOST = 500
# Length scales in units of a diagonal of the space, and shares of the variance that are noise.
LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
NOISES = (0.001, 0.01, 0.1, 0.2, 0.4, 0.7)
# How much further below the median than the best is above it a value counts: a crash must not set the scale.
FURTHEST = 4.0
# Where a parameter lies in its domain that a run does not have: it has no effect there.
INACTIVE = 0.5
# Part of the average below which a length scale is left out.
NO_SAY = 1e-9


class Run(NamedTuple):
    """One run of a search.

    Attributes:
        params: Its parameters by dotted key; an inactive one is left out.
        value: The objective it reached last, finite.
        whole: Whether it completed. One that was cut off is not smoothed itself; it tells which parameters are
            worse, but not how much, as its value is an early one.
    """

    params: Mapping[str, Any]
    value: float
    whole: bool


def smoothed(
    runs: Sequence[Run], axes: Mapping[str, Axis], ascending: bool = False
) -> Floats | None:
    """What each run's value would be on an average seed, as far as its parameters tell.

    Runs of equal parameters and seed are one run told twice: they count once, by the mean of those that completed.
    Runs that were cut off count where they are no more than the whole ones: many early values would set the level.

    Args:
        runs: In the order of the search.
        axes: The searched parameters; the seed is none.
        ascending: Whether smaller is better.

    Returns:
        [runs], in the unit of the values, NaN of what was cut off; equal for equal parameters. None where nothing
        can be said: fewer than five different whole runs, no parameter that varies, equal values, or numbers too
        large to compute with.
    """
    told, values = _told_once(runs)
    whole = np.array([run.whole for run in runs], dtype=bool)
    if 2 * whole[told].sum() < len(told):
        told, values = [i for i in told if whole[i]], values[whole[told]]
    if whole[told].sum() < FEWEST or values.max() == values.min():
        return None
    sign = -1.0 if ascending else 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        points = encoded([run.params for run in runs], axes)
        if not points.shape[1] or not np.isfinite(points).all():
            return None
        # Equal points get one and the same number, whatever the order of sums.
        places, place_of = np.unique(points, axis=0, return_inverse=True)
        scale = float(np.abs(values).max())
        means = _posterior(points[told], _without_crashes(sign * values / scale), places)
        found: Floats = np.where(whole, sign * scale * means[place_of.reshape(-1)], np.nan)
    return found if np.isfinite(found[whole]).all() else None


def _told_once(runs: Sequence[Run]) -> tuple[list[int], Floats]:
    """Places of the runs that differ, and their values."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, run in enumerate(runs):
        key = tuple(sorted((name, repr(value)) for name, value in run.params.items()))
        groups.setdefault(key, []).append(i)
    told = [[i for i in own if runs[i].whole] or own for own in groups.values()]
    values = [float(np.mean([runs[i].value for i in own])) for own in told]
    return [own[0] for own in told], np.array(values)


def encoded(rows: Sequence[Mapping[str, Any]], axes: Mapping[str, Axis]) -> Floats:
    """[rows, columns]: numbers by their place in the domain, on its scale; choices one-hot, a step of 1 apart.

    Parameters that do not vary over the rows have no column.
    """
    columns: list[Floats] = []
    for key, axis in axes.items():
        if key == SEED:
            continue
        held = [row.get(key, _Missing) for row in rows]
        if len({repr(value) for value in held}) > 1:
            columns += _columns(held, axis)
    return np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0))


class _Missing:
    """Marks a parameter that a run does not have: None is a value one may choose."""


def _columns(held: Sequence[Any], axis: Axis) -> list[Floats]:
    known = [value for value in held if value is not _Missing]
    if axis.values or not all(isinstance(v, int | float | np.number) for v in known):
        kinds = list(dict.fromkeys(map(str, known)))
        return [
            np.array([v is not _Missing and str(v) == kind for v in held]) / math.sqrt(2)
            for kind in kinds
        ]
    low = min(float(v) for v in (*known, axis.low) if v is not None)
    high = max(float(v) for v in (*known, axis.high) if v is not None)
    scale = _scale(axis, low, high)
    bottom, span = scale(low), scale(high) - scale(low) or 1.0
    shares = [INACTIVE if v is _Missing else (scale(float(v)) - bottom) / span for v in held]
    return [np.array(shares)]


def _scale(axis: Axis, low: float, high: float) -> Callable[[float], float]:
    if axis.kind == "logit" and low > 0 and high < 1:
        return lambda value: math.log(value) - math.log1p(-value)
    return math.log if axis.log and low > 0 else float


def _without_crashes(values: Floats) -> Floats:
    """Larger is better."""
    middle = float(np.median(values))
    reach = FURTHEST * (float(values.max()) - middle)
    return np.maximum(values, middle - reach) if reach > 0 else values


def _posterior(points: Floats, values: Floats, places: Floats) -> Floats:
    """The posterior mean at ``places`` [places, columns], averaged over the grid."""
    if len(values) > MOST:
        chosen = np.linspace(0, len(values) - 1, MOST).round().astype(int)
        points, values = points[chosen], values[chosen]
    centre, spread = float(values.mean()), float(values.std()) or 1.0
    lengths = np.array(LENGTHS) * math.sqrt(points.shape[1])
    own, across = _distances(points, points), _distances(places, points)
    fits = [_fit(own / length, (values - centre) / spread) for length in lengths]
    evidence = np.stack([fit.evidence for fit in fits])
    shares = np.exp(evidence - evidence.max())
    shares /= shares.sum()
    found = np.zeros(len(places))
    for length, fit, share in zip(lengths, fits, shares, strict=True):
        # What has no say need not be computed for thousands of places.
        if share.sum() > NO_SAY:
            found += share @ fit.means + _matern(across / length) @ (share @ fit.weights)
    return np.asarray(centre + spread * found)


class _Fit(NamedTuple):
    """With one length scale, for each share of noise: log evidence, mean, and [noises, runs] weights."""

    evidence: Floats
    means: Floats
    weights: Floats


def _fit(distance: Floats, z: Floats) -> _Fit:
    """The mean of the process is a constant with a flat prior, its variance is profiled out."""
    values, vectors = np.linalg.eigh(_matern(distance))
    seen, level = vectors.T @ z, vectors.T @ np.ones(len(z))
    noise = np.array(NOISES)[:, None]
    variance = (1 - noise) * np.maximum(values, 0.0) + noise
    sure = (level**2 / variance).sum(axis=1)
    means = (level * seen / variance).sum(axis=1) / sure
    left = seen - means[:, None] * level
    misfit = np.maximum((left**2 / variance).sum(axis=1), 1e-300)
    size = np.log(variance).sum(axis=1) + np.log(sure)
    evidence = -0.5 * (size + (len(z) - 1) * np.log(misfit))
    return _Fit(evidence, means, (1 - noise) * (left / variance) @ vectors.T)


def _distances(left: Floats, right: Floats) -> Floats:
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2 * left @ right.T
    found: Floats = np.sqrt(np.maximum(squares, 0.0))
    return found


def _matern(distance: Floats) -> Floats:
    """The Matern kernel of order 5/2."""
    r = math.sqrt(5) * distance
    return np.asarray((1 + r + r**2 / 3) * np.exp(-r))
