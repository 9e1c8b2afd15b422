"""The best value so far against the GPU-hours spent, beside the same trials in random order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis.names import axis_label
from analysis.plots import style
from analysis.plots.learning_curves import best_or_none
from analysis.statistics.budget import search_course
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Course(NamedTuple):
    """What the plot shows.

    Attributes:
        name: Name of the sweep.
        metric: The objective.
        points: The columns of ``analysis.statistics.search_course``, and ``fate`` str.
        best: The best eligible trial, or None.
    """

    name: str
    metric: str
    points: pd.DataFrame
    best: str | None


def course_data(sweep: Sweep) -> Course:
    """The course of the search."""
    points = search_course(sweep)
    points["fate"] = points["trial"].map(style.fates(sweep.trials)).astype("str")
    return Course(sweep.name, sweep.metric, points, best_or_none(sweep))


def plot_course(sweep: Sweep) -> Figure:
    """Best value so far against the bill, with the random-order reference."""
    return draw_course(course_data(sweep))


def draw_course(data: Course) -> Figure:
    """Draw ``course_data``."""
    points = data.points
    if points["best"].isna().all():
        return style.message(f"{data.name}: no eligible trial has ended yet")
    figure = style.new_figure(4.0)
    axes = figure.add_subplot()
    style.quiet(axes)
    place, label = places_of(points)
    draw_reference(axes, place, points)
    alpha = style.strength(len(points))
    for fate, rows in points.groupby("fate"):
        look = style.LOOKS[str(fate)]
        axes.scatter(
            place[rows.index], rows["value"], s=16, marker=look.marker, alpha=alpha,
            linewidths=0.9, zorder=3, **style.faces(look),
        )  # fmt: skip
    axes.step(place, points["best"], where="post", color=style.BEST, linewidth=2.0, zorder=5)
    shown = points["value"].where(points["eligible"])
    limits = style.robust_limits(shown, [*points["best"], *points["random_low"]])
    if limits is not None:
        axes.set_ylim(*limits)
    style.name_axes(axes, label, axis_label(data.metric))
    counts = points["fate"].value_counts()
    present = [(fate, int(counts[fate])) for fate in style.LOOKS if fate in counts]
    style.heading(figure, f"{data.name}: best so far", present, data.best, lines=False)
    return figure


def places_of(points: pd.DataFrame) -> tuple[np.ndarray, str]:
    """Where the trials stand along the bill, else along their number, and the label of that axis."""
    hours = points["gpu_hours"].to_numpy(np.float64)
    if not np.isfinite(hours).any():
        return points["ended"].to_numpy(np.float64), "trials that have ended"
    size, sign = style.span_of_time(float(hours[-1]) * 3600)
    return hours * 3600 / size, f"GPU-{sign} spent by trials that have ended"


def draw_reference(axes: Axes, place: np.ndarray, points: pd.DataFrame) -> None:
    """The band of random orders, its mean, and the legend of both below the figure."""
    low, high = points["random_low"], points["random_high"]
    if points["random"].notna().any():
        axes.fill_between(
            place, low, high, step="post", color="#dddddd", linewidth=0, zorder=1,
            label="same trials in random order, 5 to 95 %",
        )  # fmt: skip
        axes.step(
            place, points["random"], where="post", color=style.FAINT, linewidth=1.2,
            linestyle=(0, (4, 3)), zorder=2, label="their mean",
        )  # fmt: skip
    axes.plot([], [], color=style.BEST, linewidth=2.0, label="this search")
    figure = axes.get_figure()
    if figure is not None:
        figure.legend(
            loc="outside lower left", ncols=4, frameon=False, fontsize=style.SMALL,
            labelcolor=style.INK,
        )  # fmt: skip
