"""Several goals at once: which trials no other one beats in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.eligible import why_not
from analysis.leaderboard import leaderboard
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError

SECONDS_PER_HOUR = 3600.0


def signed(points: Any, larger: Sequence[bool]) -> np.ndarray:
    """The points such that smaller is better in every column."""
    held = np.atleast_2d(np.asarray(points, dtype=np.float64))
    if held.size and (held.shape[1] != len(larger) or not np.isfinite(held).all()):
        raise ConfigError(
            f"points must be finite rows of {len(larger)} goals, got shape {held.shape}; "
            "drop what was not measured"
        )
    return held * np.where(np.asarray(larger, dtype=bool), -1.0, 1.0)


def pareto_front(points: Any, larger: Sequence[bool]) -> np.ndarray:
    """Which points no other one dominates, bool of the number of points.

    A point dominates another that is nowhere better and somewhere worse; equal points are both in.

    Args:
        points: [points, goals], finite.
        larger: For each goal, whether larger is better.

    Raises:
        ConfigError: Shapes do not fit, or a number is not finite.
    """
    costs = signed(points, larger)
    front = np.ones(len(costs), dtype=bool)
    for i, own in enumerate(costs):
        front[i] = not ((costs <= own).all(axis=1) & (costs < own).any(axis=1)).any()
    return front


def hypervolume(points: Any, reference: Any, larger: Sequence[bool]) -> float:
    """Volume between the points and a reference that is worse than what counts.

    Points that are not better than the reference in every goal add nothing. Exact, by slices along
    the last goal.

    Args:
        points: [points, goals], finite.
        reference: [goals].
        larger: For each goal, whether larger is better.

    Raises:
        ConfigError: As ``pareto_front``.
    """
    costs, corner = signed(points, larger), signed([reference], larger)[0]
    inside = costs[(costs < corner).all(axis=1)] if costs.size else costs
    return volume(inside, corner)


def volume(costs: np.ndarray, corner: np.ndarray) -> float:
    """``hypervolume`` of costs, none of them beyond the corner."""
    if not len(costs):
        return 0.0
    if costs.shape[1] == 1:
        return float(corner[0] - costs.min())
    if costs.shape[1] == 2:
        across, up = costs[np.argsort(costs[:, 0], kind="stable")].T
        widths = np.append(across[1:], corner[0]) - across
        return float(widths @ (corner[1] - np.minimum.accumulate(up)))
    order = np.argsort(costs[:, -1], kind="stable")
    levels = np.append(costs[order, -1], corner[-1])
    total = 0.0
    for count in range(1, len(order) + 1):
        height = levels[count] - levels[count - 1]
        if height > 0:
            total += height * volume(costs[order[:count], :-1], corner[:-1])
    return float(total)


def trade_off(sweep: Sweep) -> pd.DataFrame:
    """Objective, KL and cost of every trial that measured them, and which of them are on the front.

    Returns:
        Indexed by trial: ``value`` float64 (the objective), ``kl`` float64 (nats a response),
        ``gpu_hours`` float64 (NaN where unknown; it counts as a goal only if all know it),
        ``eligible`` bool, ``front`` bool (among completed trials, larger or smaller value as the
        objective says, smaller KL and cost). ``attrs["hypervolume"]`` is that of value and KL of
        the front against the worst of either, as a share of the whole box (NaN
        where one of the two does not vary).

    Raises:
        ConfigError: ``sweep.json`` states no objective or an unreadable constraint.
    """
    board = leaderboard(sweep).set_index("trial")
    frame = board[["value", "kl"]].assign(gpu_hours=board["gpu_seconds"] / SECONDS_PER_HOUR)
    frame["eligible"] = (why_not(sweep).reindex(frame.index) == "").to_numpy()
    frame = frame.dropna(subset=["value", "kl"])
    done = (board.loc[frame.index, "outcome"] == "completed").to_numpy()
    goals = ["value", "kl"] + ["gpu_hours"] * bool(len(frame) and frame["gpu_hours"].notna().all())
    larger = [not sweep.objective.ascending, False, False][: len(goals)]
    frame["front"] = False
    if done.any():
        frame.loc[done, "front"] = pareto_front(frame.loc[done, goals].to_numpy(), larger)
        frame.attrs["hypervolume"] = _share(frame.loc[done, ["value", "kl"]].to_numpy(), larger[:2])
    return frame


def _share(points: np.ndarray, larger: Sequence[bool]) -> float:
    costs = signed(points, larger)
    worst, best = costs.max(axis=0), costs.min(axis=0)
    box = float((worst - best).prod())
    return volume(costs[(costs < worst).all(axis=1)], worst) / box if box > 0 else np.nan
