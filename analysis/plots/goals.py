"""Several objectives: against each other with their front, and how fast the search covered it."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis.names import axis_label, number
from analysis.objective import Constraint, Objective
from analysis.plots import style
from analysis.plots.course import draw_reference, places_of
from analysis.plots.learning_curves import best_or_none
from analysis.statistics.goals import objective_front, volume_course
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_PAIRED = 3
_MOST_PANELS = 6
ONE = "has one objective; search.objectives names several"


class Goals(NamedTuple):
    """What the plot of the objectives shows.

    Attributes:
        name: Name of the sweep.
        goals: The objectives, the one that ranks first.
        points: ``analysis.statistics.objective_front``, with ``fate`` str.
        covered: Share of the box between worst and best that the front covers; NaN where none.
        bounds: Constraints on one of the objectives.
        best: The best eligible trial, by the first objective, or None.
    """

    name: str
    goals: tuple[Objective, ...]
    points: pd.DataFrame
    covered: float
    bounds: tuple[Constraint, ...]
    best: str | None


def objectives_data(sweep: Sweep) -> Goals:
    """All objectives of every trial, and their front."""
    points = objective_front(sweep)
    covered = float(points.attrs["covered"])
    points["fate"] = style.fates(sweep.searched.trials)
    metrics = [goal.metric for goal in sweep.objectives]
    bounds = tuple(c for c in sweep.constraints if c.metric in metrics)
    return Goals(sweep.name, sweep.objectives, points, covered, bounds, best_or_none(sweep))


def plot_objectives(sweep: Sweep) -> Figure:
    """The objectives against each other, two by two, with the trials that no other one beats."""
    return draw_objectives(objectives_data(sweep))


def draw_objectives(data: Goals) -> Figure:
    """Draw ``objectives_data``: all pairs of up to three objectives, else the first with each other one."""
    if len(data.goals) < 2:
        return style.message(f"{data.name}: {ONE}")
    pairs = list(combinations(data.goals, 2))
    if len(data.goals) > _MOST_PAIRED:
        pairs = [pair for pair in pairs if pair[0] == data.goals[0]][:_MOST_PANELS]
    if data.points[[goal.metric for goal in data.goals]].notna().all(axis=1).sum() == 0:
        return style.message(f"{data.name}: no trial has measured all objectives yet")
    across = min(2, len(pairs))
    down = -(-len(pairs) // across)
    figure = style.new_figure(4.6 if across == 1 else 1.0 + 3.0 * down)
    grid = figure.add_gridspec(down, across)
    for place, (up, right) in enumerate(pairs):
        axes = figure.add_subplot(grid[divmod(place, across)])
        _draw_pair(axes, data, right, up)
    counts = data.points["fate"].value_counts()
    present = [(fate, int(counts[fate])) for fate in style.LOOKS if fate in counts]
    count = int(data.points["front"].sum())
    covered = "" if np.isnan(data.covered) else f", they cover {data.covered:.0%} of the box"
    title = f"{data.name}: {count} trial{'s' * (count != 1)} on the front{covered}"
    style.heading(figure, title, present, data.best, lines=False)
    return figure


def _draw_pair(axes: Axes, data: Goals, right: Objective, up: Objective) -> None:
    style.quiet(axes)
    points = data.points
    alpha = style.strength(len(points))
    for fate, rows in points.groupby("fate"):
        look = style.LOOKS[str(fate)]
        axes.scatter(
            rows[right.metric], rows[up.metric], s=22, marker=look.marker, alpha=alpha,
            linewidths=0.9, zorder=3, **style.faces(look),
        )  # fmt: skip
    front = points[points["front"]].sort_values(right.metric, ascending=right.ascending)
    # Steps: what lies between two trials of a front was not reached. Of three the shadow of a front is no line.
    axes.step(
        front[right.metric], front[up.metric], where="post", color=style.INK, zorder=4,
        linewidth=1.5 if len(data.goals) == 2 else 0.0, marker="o", markersize=4.5,
    )  # fmt: skip
    if data.best in points.index:
        own = points.loc[[data.best]]
        axes.scatter(
            own[right.metric], own[up.metric], s=90, facecolors="none", edgecolors=style.BEST,
            linewidths=1.8, zorder=6,
        )  # fmt: skip
    _set_frame(axes, data, right.metric, up.metric)
    signs = {goal: f"{axis_label(goal.metric)}, {goal.direction}" for goal in (right, up)}
    style.name_axes(axes, signs[right], signs[up])


def _set_frame(axes: Axes, data: Goals, right: str, up: str) -> None:
    points = data.points
    tame = points[points["fate"] == "completed"] if len(points) else points
    tame = tame if len(tame) else points
    keep = points[points["front"] | (points.index == data.best)]
    for set_limits, metric in ((axes.set_xlim, right), (axes.set_ylim, up)):
        limits = style.robust_limits(tame[metric], keep[metric])
        if limits is not None:
            set_limits(*limits)
    for bound in data.bounds:
        _draw_bound(axes, bound, bound.metric == right, (right, up))


def _draw_bound(axes: Axes, bound: Constraint, upright: bool, shown: tuple[str, str]) -> None:
    if bound.metric not in shown:
        return
    low, high = axes.get_xlim() if upright else axes.get_ylim()
    if not low <= bound.bound <= high:
        return
    draw = axes.axvline if upright else axes.axhline
    draw(bound.bound, color=style.FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.annotate(
        f"{bound.operator} {number(bound.bound)}",
        (bound.bound, 0.02) if upright else (0.02, bound.bound),
        xycoords=("data", "axes fraction") if upright else ("axes fraction", "data"),
        xytext=(3, 0) if upright else (0, 3),
        textcoords="offset points", fontsize=style.SMALL, color=style.FAINT,
    )  # fmt: skip


class Volume(NamedTuple):
    """What the plot of the volume shows.

    Attributes:
        name: Name of the sweep.
        goals: The objectives.
        points: ``analysis.statistics.volume_course``.
    """

    name: str
    goals: tuple[Objective, ...]
    points: pd.DataFrame


def volume_data(sweep: Sweep) -> Volume:
    """The course of the front's hypervolume."""
    return Volume(sweep.name, sweep.objectives, volume_course(sweep))


def plot_volume(sweep: Sweep) -> Figure:
    """How much of the box the front had covered, against the bill, with the random-order reference."""
    return draw_volume(volume_data(sweep))


def draw_volume(data: Volume) -> Figure:
    """Draw ``volume_data``."""
    if len(data.goals) < 2:
        return style.message(f"{data.name}: {ONE}")
    points = data.points
    if points["volume"].isna().all():
        return style.message(
            f"{data.name}: a hypervolume needs four eligible trials that differ in every objective"
        )
    figure = style.new_figure(3.6)
    axes = figure.add_subplot()
    style.quiet(axes)
    place, label = places_of(points)
    axes.step(place, points["volume"], where="post", color=style.BEST, linewidth=2.0, zorder=5)
    on_front = points["front"].to_numpy(dtype=bool)
    axes.scatter(
        place[on_front], points["volume"][on_front], s=30, color=style.SERIES[0], zorder=6,
        label="trials of the front",
    )  # fmt: skip
    draw_reference(axes, place, points)
    axes.set_ylim(-0.02, min(1.02, 1.2 * float(points["volume"].max()) + 0.02))
    style.name_axes(axes, label, "share of the box")
    style.say(figure, f"{data.name}: hypervolume so far")
    return figure
