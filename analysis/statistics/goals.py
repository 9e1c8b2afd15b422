"""Several objectives: the front of what may be chosen, and how much of the box it had covered when."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.compare import best_so_far
from analysis.eligible import why_not
from analysis.statistics.budget import spent_hours
from analysis.statistics.pareto import pareto_front, signed, volume
from analysis.sweep import Sweep

# Of orders of the trials, and how many points of each; beyond three objectives one volume takes too long.
_ORDERS = 60
_PLACES = 40
_MOST_RANDOM = 3
# Of fewer trials the corners of the box are the trials themselves.
_FEWEST = 4


def objective_front(sweep: Sweep) -> pd.DataFrame:
    """Every objective of every trial of the search, and which trials are on the front.

    Returns:
        Indexed by trial: a float64 column for each objective, by the name of its metric (the last
        value), ``eligible`` bool, and ``front`` bool: eligible, every objective measured, and no
        other such trial at least as good in all and better in one. ``attrs["covered"]`` is the
        hypervolume of the front between the worst and the best of each objective over these trials,
        as a share of that box (NaN of fewer than four trials, or where one objective does not vary).

    Raises:
        ConfigError: ``sweep.json`` states no objective or an unreadable constraint.
    """
    sweep = sweep.searched
    columns = {
        goal.metric: sweep.ranked_by(goal.metric).trials["value"] for goal in sweep.objectives
    }
    frame = pd.DataFrame(columns, index=sweep.trials.index).astype("float64")
    known = frame.notna().all(axis=1)
    frame["eligible"] = (why_not(sweep) == "").to_numpy()
    rows = frame["eligible"] & known
    frame["front"] = False
    frame.attrs["covered"] = np.nan
    if rows.any():
        points = frame.loc[rows, list(columns)].to_numpy()
        frame.loc[rows, "front"] = pareto_front(points, _larger(sweep))
        costs = _in_box(signed(points, _larger(sweep)))
        frame.attrs["covered"] = np.nan if costs is None else volume(costs, np.ones(costs.shape[1]))
    return frame


def _larger(sweep: Sweep) -> list[bool]:
    return [not goal.ascending for goal in sweep.objectives]


def _in_box(costs: np.ndarray) -> np.ndarray | None:
    """Costs from 0, the best of each column, to 1, the worst; None of few, or where one does not vary."""
    best, worst = costs.min(axis=0), costs.max(axis=0)
    known = len(costs) >= _FEWEST and (worst > best).all()
    return (costs - best) / (worst - best) if known else None


def volume_course(sweep: Sweep) -> pd.DataFrame:
    """The front's hypervolume against the bill, beside the same trials in random order.

    The box is that of ``objective_front``, which is known at the end only.

    Returns:
        One row per ended trial, in the order of their ends: ``ended`` int64, ``trial`` str,
        ``outcome`` category, ``seconds``, ``gpu_hours`` float64 (as ``search_course``), ``eligible``
        and ``front`` bool (at the end), ``volume`` float64 (share of the box, 0 to 1), ``random``,
        ``random_low`` and ``random_high`` float64: mean and 90 % range over 60 orders of these trials,
        linear between forty places; NaN for more than three objectives.

    Raises:
        ConfigError: As ``objective_front``.
    """
    course = best_so_far(sweep).drop(columns=["value", "best"])
    course["gpu_hours"] = spent_hours(sweep, course["trial"])
    table = objective_front(sweep).reindex(course["trial"])
    course["front"] = table["front"].fillna(False).to_numpy(dtype=bool)
    goals = [goal.metric for goal in sweep.objectives]
    held = table[goals].to_numpy(np.float64)
    counted = table["eligible"].to_numpy(dtype=bool) & np.isfinite(held).all(axis=1)
    costs = np.full(held.shape, np.nan)
    boxed = _in_box(signed(held[counted], _larger(sweep))) if counted.any() else None
    names = ["volume", "random", "random_low", "random_high"]
    if boxed is None:
        return course.assign(**dict.fromkeys(names, np.nan))
    costs[counted] = boxed
    course["volume"] = list(_volumes(costs))
    unknown = dict.fromkeys(names[1:], np.full(len(costs), np.nan))
    return course.assign(**(_random(costs) if len(goals) <= _MOST_RANDOM else unknown))


def _volumes(costs: np.ndarray) -> Iterator[float]:
    """The volume after each trial; one without costs changes nothing."""
    front, corner, covered = np.empty((0, costs.shape[1])), np.ones(costs.shape[1]), 0.0
    for own in costs:
        if np.isfinite(own).all() and not (front <= own).all(axis=1).any():
            front = np.vstack([front[~(own <= front).all(axis=1)], own])
            covered = volume(front, corner)
        yield covered


def _random(costs: np.ndarray) -> dict[str, np.ndarray]:
    """Mean and 90 % range of the volume over random orders, at every count of trials."""
    rng, count = np.random.default_rng(0), len(costs)
    places = np.unique(np.linspace(1, count, min(count, _PLACES)).round().astype(int))
    drawn = []
    for _ in range(_ORDERS):
        order = rng.permutation(count)
        front, last, own = np.empty((0, costs.shape[1])), 0, []
        for place in places:
            chunk = costs[order[last:place]]
            front, last = _thinned(np.vstack([front, chunk[np.isfinite(chunk).all(axis=1)]])), place
            own.append(volume(front, np.ones(costs.shape[1])))
        drawn.append(own)
    held = np.array(drawn)
    low, high = np.quantile(held, [0.05, 0.95], axis=0)
    every = np.arange(1, count + 1)
    bands = {"random": held.mean(axis=0), "random_low": low, "random_high": high}
    return {name: np.interp(every, places, values) for name, values in bands.items()}


def _thinned(costs: np.ndarray) -> np.ndarray:
    return costs[pareto_front(costs, [False] * costs.shape[1])] if len(costs) else costs
