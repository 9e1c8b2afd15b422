"""By how much the busiest node of a trial exceeds the mean of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis.plots import style
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRIC = "util/imbalance"
FLAGGED = 0.15
_MOST_TRIALS = 30


class Imbalance(NamedTuple):
    """What the plot shows.

    Attributes:
        name: Name of the sweep.
        points: Long: ``trial`` category, ``iteration`` int64, ``imbalance`` float64 (0.15: the
            busiest node works 15 % more than the mean). Only where a trial had several nodes.
        trials: Indexed by trial, the least balanced first: ``median``, ``low``, ``high`` (quartiles
            over iterations), ``nodes`` int64.
    """

    name: str
    points: pd.DataFrame
    trials: pd.DataFrame


def imbalance_data(sweep: Sweep) -> Imbalance:
    """The imbalance of every trial on several nodes."""
    frame = sweep.iterations
    if METRIC not in frame:
        points = frame[["trial", "iteration"]].iloc[:0].assign(imbalance=np.nan)
    else:
        held = frame.loc[frame["iteration"] > 0, ["trial", "iteration", METRIC]].dropna()
        points = held.rename(columns={METRIC: "imbalance"})
    grouped = points.groupby(points["trial"].astype("str"))["imbalance"]
    nodes = sweep.placements.groupby(sweep.placements["trial"].astype("str"))["node"].nunique()
    trials = pd.DataFrame(
        {
            "median": grouped.median(),
            "low": grouped.quantile(0.25),
            "high": grouped.quantile(0.75),
        }
    )
    trials["nodes"] = nodes.reindex(trials.index).fillna(0).astype("int64")
    return Imbalance(sweep.name, points, trials.sort_values("median", ascending=False))


def plot_imbalance(sweep: Sweep) -> Figure:
    """Node imbalance by trial and over the iterations, against the 15 % at which it is flagged."""
    return draw_imbalance(imbalance_data(sweep))


def draw_imbalance(data: Imbalance) -> Figure:
    """Draw ``imbalance_data``: the trials that are least balanced, and the course of all."""
    if data.points.empty:
        return style.message(f"{data.name}: no trial worked on several nodes")
    figure = style.new_figure(3.2)
    left, right = figure.subplots(1, 2)
    _draw_trials(left, data.trials.head(_MOST_TRIALS))
    _draw_course(right, data.points)
    for axes in (left, right):
        axes.axhline(100 * FLAGGED, color=style.LOOKS["diverged"].color, linewidth=1.0)
        axes.set_ylim(0, None)
    above = int((data.trials["median"] > FLAGGED).sum())
    shown = f", the {_MOST_TRIALS} worst shown" if len(data.trials) > _MOST_TRIALS else ""
    title = f"{data.name}: {above} of {len(data.trials)} trials above {FLAGGED:.0%}{shown}"
    style.say(
        figure, title, "how much more the busiest node works than the mean of a trial's nodes"
    )
    return figure


def _draw_trials(axes: Axes, trials: pd.DataFrame) -> None:
    style.quiet(axes, grid="y")
    places = np.arange(len(trials))
    axes.vlines(
        places, 100 * trials["low"], 100 * trials["high"], color=style.SERIES[0], linewidth=3,
        alpha=0.35,
    )  # fmt: skip
    axes.scatter(places, 100 * trials["median"], s=18, color=style.SERIES[0], zorder=3)
    step = -(-len(trials) // 10)
    axes.set_xticks(places[::step], list(trials.index[::step]), rotation=45, ha="right")
    style.name_axes(axes, y="imbalance [%]", title="trials: median and quartiles")


def _draw_course(axes: Axes, points: pd.DataFrame) -> None:
    style.quiet(axes)
    grouped = (100 * points["imbalance"]).groupby(points["iteration"])
    low, middle, high = (grouped.quantile(q) for q in (0.25, 0.5, 0.75))
    axes.fill_between(middle.index, low, high, color=style.SERIES[0], alpha=0.2, linewidth=0)
    axes.plot(middle.index, middle, color=style.SERIES[0], linewidth=1.6)
    style.name_axes(axes, style.ITERATION, title="all trials: median and quartiles")
