"""Learning curves: held-out reward, learned reward and KL of every trial over its iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis.leaderboard import best
from analysis.load import Sweep
from analysis.names import axis_label, no_such, number
from analysis.objective import Constraint
from analysis.plots import style
from rlhf_core.errors import ConfigError
from rlhf_core.metrics import entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAIN = ("eval/heldout", "reward/heldout")
_FURTHER = ("reward/proxy", "kl/response")
_SIGNS = {"<=": "≤", ">=": "≥"}


class Curves(NamedTuple):
    """What the learning curves show.

    Attributes:
        name: Name of the sweep.
        points: Long frame: ``metric`` category, ``trial`` str, ``iteration`` int64, ``value``
            float64 (the catalogue's unit), ``fate`` category (the outcome, else ``running`` or
            ``unfinished``). Finite values only, in order of trial and iteration.
        metrics: The panels; the first is the large one.
        best: The best eligible trial, or None.
        constraints: Those on one of the metrics.
    """

    name: str
    points: pd.DataFrame
    metrics: tuple[str, ...]
    best: str | None
    constraints: tuple[Constraint, ...]


def learning_curve_data(sweep: Sweep, metrics: Sequence[str] | None = None) -> Curves:
    """The curves of a sweep.

    Args:
        sweep: A loaded sweep.
        metrics: Panels to show; by default the objectives (else a held-out reward), ``reward/proxy``
            and ``kl/response``. Those that no trial reports are left out.

    Raises:
        ConfigError: A metric is neither in the catalogue nor reported; near misses are named.
    """
    frame = sweep.iterations
    measured = frame.drop(columns=["trial", "iteration", "timestamp"]).notna().any()
    reported = [str(m) for m in measured.index[measured]]
    unknown = next((m for m in metrics or () if m not in frame and entry(m) is None), None)
    if unknown is not None:
        raise ConfigError(no_such("metric", unknown, reported))
    wanted = list(metrics) if metrics is not None else _panels(sweep, reported)
    chosen = tuple(m for m in dict.fromkeys(wanted) if m in reported)
    long = frame.melt(["trial", "iteration"], list(chosen), var_name="metric").dropna()
    fates = style.fates(sweep.trials)
    long["fate"] = pd.Categorical(long["trial"].map(fates), categories=list(style.LOOKS))
    long["metric"] = pd.Categorical(long["metric"], categories=chosen)
    points = long[["metric", "trial", "iteration", "value", "fate"]]
    bounds = tuple(c for c in sweep.constraints if c.metric in chosen)
    return Curves(sweep.name, points, chosen, best_or_none(sweep), bounds)


def _panels(sweep: Sweep, reported: Sequence[str]) -> list[str]:
    first, *others = (goal.metric for goal in sweep.objectives)
    main = [m for m in (first, *_MAIN) if m in reported][:1]
    return [*main, *others, *_FURTHER]


def best_or_none(sweep: Sweep) -> str | None:
    """The best eligible trial, or None where there is none yet."""
    try:
        return best(sweep)
    except ConfigError:
        return None


def plot_learning_curves(sweep: Sweep, metrics: Sequence[str] | None = None) -> Figure:
    """Learning curves of all trials by outcome, the best one highlighted and named.

    Args:
        sweep: A loaded sweep.
        metrics: As in ``learning_curve_data``.
    """
    return draw_learning_curves(learning_curve_data(sweep, metrics))


def draw_learning_curves(data: Curves) -> Figure:
    """Draw ``learning_curve_data``: the first metric large, the others in a row below."""
    if data.points.empty:
        return style.message(f"{data.name}: no trial has reported yet")
    rows = -(-(len(data.metrics) - 1) // 2)
    figure = style.new_figure(3.4 + 2.2 * rows)
    grid = figure.add_gridspec(1 + rows, 2, height_ratios=[1.5] + [1.0] * rows)
    for place, metric in enumerate(data.metrics):
        alone = place == 0 or (place == len(data.metrics) - 1 and place % 2 == 1)
        row, column = (0, 0) if place == 0 else (1 + (place - 1) // 2, (place - 1) % 2)
        axes = figure.add_subplot(grid[row, :] if alone else grid[row, column])
        _draw_panel(axes, data, metric, large=place == 0)
    counts = data.points.groupby("fate", observed=True)["trial"].nunique()
    present = [(str(fate), int(count)) for fate, count in counts.items()]
    style.heading(figure, data.name, present, data.best, lines=True)
    return figure


def _draw_panel(axes: Axes, data: Curves, metric: str, large: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    points = data.points[data.points["metric"] == metric]
    style.quiet(axes)
    axes.set_title(axis_label(metric), loc="left", fontsize=style.TEXT, color=style.INK)
    axes.set_xlabel("iteration", fontsize=style.SMALL, color=style.INK)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    alpha = style.strength(points["trial"].nunique())
    for fate, group in points[points["trial"] != data.best].groupby("fate", observed=True):
        _draw_lines(axes, group, str(fate), alpha)
    own = points[points["trial"] == data.best]
    _draw_best(axes, own, label=data.best if large else None)
    _set_limits(axes, points, own)
    for constraint in data.constraints:
        if constraint.metric == metric:
            _draw_bound(axes, constraint)


def _draw_lines(axes: Axes, group: pd.DataFrame, fate: str, alpha: float) -> None:
    from matplotlib.collections import LineCollection

    look, cut_off = style.LOOKS[fate], fate != "completed"
    lines = [part[["iteration", "value"]].to_numpy(float) for _, part in group.groupby("trial")]
    drawn = LineCollection(lines, colors=look.color, linewidths=1.0, alpha=alpha, zorder=2)
    axes.add_collection(drawn)
    # The end tells where a trial was cut off, and is all there is of a trial with one value.
    ends = np.array([line[-1] for line in lines if len(line) == 1 or cut_off])
    if len(ends):
        axes.scatter(
            ends[:, 0],
            ends[:, 1],
            s=9,
            marker=look.marker,
            linewidths=0.8,
            zorder=3,
            alpha=min(1.0, 2 * alpha),
            **style.faces(look),
        )


def _draw_best(axes: Axes, own: pd.DataFrame, label: str | None) -> None:
    if own.empty:
        return
    x, y = own["iteration"].to_numpy(float), own["value"].to_numpy(float)
    axes.plot(x, y, color=style.BEST, linewidth=2.0, zorder=5)
    axes.plot(x[-1:], y[-1:], "o", color=style.BEST, markersize=4, zorder=5)
    if label is not None:
        axes.annotate(
            f"{label}  {number(float(y[-1]))}",
            (x[-1], y[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            ha="left",
            fontsize=style.TEXT,
            color=style.BEST,
            zorder=6,
            path_effects=style.halo(),
            annotation_clip=False,
        )


def _set_limits(axes: Axes, points: pd.DataFrame, own: pd.DataFrame) -> None:
    tame = points.loc[points["fate"] != "diverged", "value"]
    limits = style.robust_limits(tame if len(tame) else points["value"], own["value"])
    if limits is not None:
        axes.set_ylim(*limits)
        outside = points[(points["value"] < limits[0]) | (points["value"] > limits[1])]
        left = outside["trial"].nunique()
        if left:
            axes.set_title(
                f"{left} {'curve leaves' if left == 1 else 'curves leave'} the frame",
                loc="right",
                fontsize=style.SMALL,
                color=style.FAINT,
            )
    first, last = points["iteration"].min(), points["iteration"].max()
    axes.set_xlim(first - 0.02 * max(last - first, 1), last + 0.02 * max(last - first, 1))


def _draw_bound(axes: Axes, constraint: Constraint) -> None:
    low, high = axes.get_ylim()
    if not low <= constraint.bound <= high:
        return
    axes.axhline(constraint.bound, color=style.FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.annotate(
        f"{_SIGNS.get(constraint.operator, constraint.operator)} {number(constraint.bound)}",
        (0.0, constraint.bound),
        xycoords=("axes fraction", "data"),
        xytext=(3, 2),
        textcoords="offset points",
        fontsize=style.SMALL,
        color=style.FAINT,
        path_effects=style.halo(),
    )
