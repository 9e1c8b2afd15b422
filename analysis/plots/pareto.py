"""Reward against KL: every trial, the front, and the fronts of smaller budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis.names import axis_label, number
from analysis.objective import Constraint
from analysis.plots import style
from analysis.plots.learning_curves import best_or_none
from analysis.statistics.budget import search_course
from analysis.statistics.pareto import pareto_front, trade_off
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = (0.25, 0.5, 1.0)
_KL = ("eval/kl_response", "kl/response")
_FEWEST_FOR_VOLUME = 4
_LINES = ((0, (1, 2)), (0, (4, 3)), "solid")


class Front(NamedTuple):
    """What the plot shows.

    Attributes:
        name: Name of the sweep.
        metric: The objective.
        points: ``analysis.statistics.trade_off``, with ``fate`` str.
        fronts: For each share of the bill, the trials no other one beats in objective and KL that
            had ended by then.
        covered: Share of the box of value and KL that the front covers, 0 to 1; NaN where none.
        bound: The constraint on the KL, or None.
        best: The best eligible trial, or None.
    """

    name: str
    metric: str
    points: pd.DataFrame
    fronts: dict[float, pd.DataFrame]
    covered: float
    bound: Constraint | None
    best: str | None


def front_data(sweep: Sweep) -> Front:
    """Objective and KL of every trial, and the fronts after a quarter, half and all of the bill."""
    points = trade_off(sweep)
    completed = int((sweep.trials.loc[points.index, "outcome"] == "completed").sum())
    enough = completed >= _FEWEST_FOR_VOLUME
    covered = float(points.attrs.get("hypervolume", np.nan)) if enough else np.nan
    points["fate"] = style.fates(sweep.trials).reindex(points.index)
    course = search_course(sweep).set_index("trial")
    bill = course["gpu_hours"].fillna(course["ended"].astype("float64"))
    larger = [not sweep.objective.ascending, False]
    fronts = {}
    for share in SHARES:
        ended = bill.index[bill <= share * bill.max()] if len(bill) else []
        held = points.loc[points.index.isin(ended) & (points["fate"] == "completed").to_numpy()]
        if len(held):
            chosen = held[pareto_front(held[["value", "kl"]].to_numpy(), larger)]
            fronts[share] = chosen.sort_values("kl")
    bound = next((c for c in sweep.constraints if c.metric in _KL), None)
    return Front(sweep.name, sweep.metric, points, fronts, covered, bound, best_or_none(sweep))


def plot_front(sweep: Sweep) -> Figure:
    """Objective against KL, with the front of the sweep and of a quarter and half of its bill."""
    return draw_front(front_data(sweep))


def draw_front(data: Front) -> Figure:
    """Draw ``front_data``."""
    if data.points.empty:
        return style.message(f"{data.name}: no trial has measured objective and KL yet")
    figure = style.new_figure(4.6)
    axes = figure.add_subplot()
    style.quiet(axes)
    _draw_points(axes, data)
    for (share, front), dash in zip(data.fronts.items(), _LINES[-len(data.fronts) :], strict=True):
        label = "front" if share == 1 else f"front after {share:.0%} of the bill"
        # Steps: what lies between two trials of a front was not reached.
        axes.step(
            front["kl"], front["value"], where="post", linestyle=dash, color=style.INK,
            linewidth=1.5 if share == 1 else 1.1, zorder=4, label=label,
        )  # fmt: skip
    _set_frame(axes, data)
    style.name_axes(axes, axis_label(_KL[0]), axis_label(data.metric))
    axes.legend(loc="best", frameon=False, fontsize=style.SMALL, labelcolor=style.INK)
    counts = data.points["fate"].value_counts()
    present = [(fate, int(counts[fate])) for fate in style.LOOKS if fate in counts]
    covered = "" if np.isnan(data.covered) else f", front covers {data.covered:.0%} of the box"
    style.heading(figure, f"{data.name}: reward against KL{covered}", present, data.best, False)
    return figure


def _draw_points(axes: Axes, data: Front) -> None:
    alpha = style.strength(len(data.points))
    for fate, rows in data.points.groupby("fate"):
        look = style.LOOKS[str(fate)]
        axes.scatter(
            rows["kl"], rows["value"], s=22, marker=look.marker, alpha=alpha, linewidths=0.9,
            zorder=3, **style.faces(look),
        )  # fmt: skip
    if data.best in data.points.index:
        own = data.points.loc[data.best]
        axes.scatter(
            [own["kl"]], [own["value"]], s=90, facecolors="none", edgecolors=style.BEST,
            linewidths=1.8, zorder=6,
        )  # fmt: skip


def _set_frame(axes: Axes, data: Front) -> None:
    points = data.points
    tame = points[points["fate"] == "completed"] if len(data.fronts) else points
    kept = pd.concat(list(data.fronts.values())) if data.fronts else points.iloc[:0]
    for set_limits, column in ((axes.set_xlim, "kl"), (axes.set_ylim, "value")):
        limits = style.robust_limits(tame[column], kept[column])
        if limits is not None:
            set_limits(*limits)
    if data.bound is not None and data.bound.bound <= axes.get_xlim()[1]:
        axes.axvline(data.bound.bound, color=style.FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(
            f"KL {data.bound.operator} {number(data.bound.bound)}", (data.bound.bound, 0.02),
            xycoords=("data", "axes fraction"), xytext=(3, 0), textcoords="offset points",
            fontsize=style.SMALL, color=style.FAINT,
        )  # fmt: skip
