"""What a system setting buys: staleness and sync interval, CPUs per GPU, against reward, speed and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis.names import axis_label, number
from analysis.plots import style
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW = 12


class Relations(NamedTuple):
    """What the plot shows.

    Attributes:
        title: What is asked.
        points: Indexed by trial: a float64 column for each cause and effect, and ``fate`` str.
        causes: Columns along x, with their labels.
        effects: Columns along y, with their labels.
    """

    title: str
    points: pd.DataFrame
    causes: dict[str, str]
    effects: dict[str, str]


def staleness_data(sweep: Sweep) -> Relations:
    """Sync interval and mean staleness of each trial, against the objective and its speed."""
    points = _speed(sweep)
    points["interval"] = _param(sweep, "sync.interval")
    points["staleness"] = _mean(sweep, "staleness/mean")
    causes = {"interval": "sync.interval [iterations]", "staleness": "mean staleness [versions]"}
    effects = {"value": axis_label(sweep.metric), "rate": "iterations per minute"}
    return _relations(f"{sweep.name}: stale weights", points, causes, effects)


def ratio_data(sweep: Sweep) -> Relations:
    """CPUs for each GPU of each trial, as placed, against throughput and the bill."""
    points = _speed(sweep)
    bundles = sweep.placements.drop_duplicates(["trial", "bundle"])
    # The head of a trial has no GPU, and its CPU feeds none.
    bundles = bundles[bundles["gpus"] > 0]
    sums = bundles.groupby(bundles["trial"].astype("str"))[["cpus", "gpus"]].sum()
    points["ratio"] = (sums["cpus"] / sums["gpus"]).reindex(points.index)
    points["tokens"] = _mean(sweep, "rollout/tokens_per_second")
    spent, done = (sweep.trials.get(f"final.cost/{c}") for c in ("gpu_seconds", "episodes"))
    if spent is not None and done is not None:
        points["bill"] = spent / done.where(done > 0) * 1000
    causes = {"ratio": "CPUs per GPU"}
    effects = {
        "tokens": axis_label("rollout/tokens_per_second"),
        "rate": "iterations per minute",
        "bill": "GPU s per 1,000 episodes",
    }
    return _relations(f"{sweep.name}: CPUs for each GPU", points, causes, effects)


def _speed(sweep: Sweep) -> pd.DataFrame:
    points = sweep.trials[["value"]].assign(fate=style.fates(sweep.trials))
    points["rate"] = 60.0 / _mean(sweep, "time/iteration")
    return points


def _param(sweep: Sweep, key: str) -> pd.Series[float]:
    column = sweep.trials.get(f"params.{key}")
    if column is None:
        return pd.Series(np.nan, sweep.trials.index)
    return pd.to_numeric(column.astype("object"), errors="coerce").astype("float64")


def _mean(sweep: Sweep, metric: str) -> pd.Series[float]:
    """Mean over a trial's iterations after the evaluation before the first update."""
    frame = sweep.iterations
    if metric not in frame:
        return pd.Series(np.nan, sweep.trials.index)
    rows = frame[frame["iteration"] > 0]
    means = rows.groupby(rows["trial"].astype("str"))[metric].mean()
    return means.reindex(sweep.trials.index)


def _relations(
    title: str, points: pd.DataFrame, causes: dict[str, str], effects: dict[str, str]
) -> Relations:
    """Without causes that do not vary and effects that nobody measured."""
    varied = {c: label for c, label in causes.items() if points[c].nunique() > 1}
    known = {e: label for e, label in effects.items() if e in points and points[e].notna().any()}
    return Relations(title, points, varied, known)


def plot_staleness(sweep: Sweep) -> Figure:
    """Sync interval and staleness against reward and speed."""
    return draw_relations(staleness_data(sweep))


def plot_ratio(sweep: Sweep) -> Figure:
    """CPUs per GPU against throughput and cost."""
    return draw_relations(ratio_data(sweep))


def draw_relations(data: Relations) -> Figure:
    """Draw causes along x and effects along y, with medians of completed trials."""
    if not data.causes or not data.effects:
        return style.message(f"{data.title}: it did not vary, or nothing was measured")
    # One cause: its effects side by side; several: a grid.
    flat = len(data.causes) == 1
    pairs = [[(c, e) for c in data.causes] for e in data.effects]
    if flat:
        pairs = [[(next(iter(data.causes)), e) for e in data.effects]]
    figure = style.new_figure(0.9 + 2.3 * len(pairs))
    grid = figure.subplots(len(pairs), len(pairs[0]), squeeze=False)
    for level, (row, line) in enumerate(zip(grid, pairs, strict=True)):
        for place, (axes, (cause, effect)) in enumerate(zip(row, line, strict=True)):
            bottom = level == len(pairs) - 1
            _draw_panel(axes, data, cause, effect)
            style.name_axes(
                axes,
                data.causes[cause] if bottom else "",
                data.effects[effect] if flat or place == 0 else "",
            )
    counts = data.points["fate"].value_counts()
    present = [(fate, int(counts[fate])) for fate in style.LOOKS if fate in counts]
    style.heading(figure, data.title, present, None, lines=False)
    return figure


def _draw_panel(axes: Axes, data: Relations, cause: str, effect: str) -> None:
    style.quiet(axes)
    points = data.points.dropna(subset=[cause, effect])
    values = sorted(points[cause].unique())
    named = 1 < len(values) <= _FEW
    codes = {value: float(place) for place, value in enumerate(values)}
    x = points[cause].map(codes) if named else points[cause]
    spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(x)) if named else 0.0
    alpha = style.strength(len(points))
    shown = x + spread
    for fate, rows in points.groupby("fate"):
        look = style.LOOKS[str(fate)]
        axes.scatter(
            shown[rows.index], rows[effect], s=18, marker=look.marker, alpha=alpha,
            linewidths=0.9, zorder=3, **style.faces(look),
        )  # fmt: skip
    if named:
        _name_columns(axes, values)
        _draw_medians(axes, points[points["fate"] == "completed"], x, effect)
    limits = style.robust_limits(points[effect])
    if limits is not None:
        axes.set_ylim(*limits)


def _name_columns(axes: Axes, values: Sequence[float]) -> None:
    axes.set_xticks(range(len(values)), [number(float(v)) for v in values])
    axes.set_xlim(-0.6, len(values) - 0.4)


def _draw_medians(axes: Axes, done: pd.DataFrame, place: pd.Series[float], effect: str) -> None:
    medians = done[effect].groupby(place[done.index]).median()
    for x, value in medians.items():
        axes.hlines(
            value, float(str(x)) - 0.28, float(str(x)) + 0.28, color=style.INK, lw=1.6, zorder=5
        )
