"""The objective against each searched parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.load import Sweep
from analysis.names import axis_label, no_such, shorten
from analysis.plots import style
from analysis.plots.learning_curves import best_or_none
from analysis.plots.scales import positions, set_scale
from analysis.space import SEED, Axis
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STRIP = 0.10
_MOST_BINS, _FEWEST_IN_BIN = 8, 4


class ParameterPoints(NamedTuple):
    """What the parameter plot shows.

    Attributes:
        name: Name of the sweep.
        metric: The objective.
        points: One row per trial: index ``trial``, ``value`` float64 (the objective, NaN where
            there is none), ``fate`` str (the outcome, else ``running`` or ``unfinished``), and a
            column per parameter, named by its dotted key, with the dtype of ``Sweep.trials``.
        axes: The parameters that took at least two values, in the order of the space.
        best: The best eligible trial, or None.
        others: Further objectives; ``points`` holds the last value of each as ``final.<metric>``.
    """

    name: str
    metric: str
    points: pd.DataFrame
    axes: tuple[Axis, ...]
    best: str | None
    others: tuple[str, ...] = ()


def parameter_data(sweep: Sweep, params: Sequence[str] | None = None) -> ParameterPoints:
    """Objective and parameters of every trial.

    Args:
        sweep: A loaded sweep.
        params: Dotted keys to show; by default all that took at least two values, but for the seed.

    Raises:
        ConfigError: The sweep has no such parameter; near misses are named.
    """
    trials = sweep.searched.trials
    held = {key: axis for key, axis in sweep.axes.items() if f"params.{key}" in trials}
    unknown = next((key for key in params or () if key not in sweep.axes), None)
    if unknown is not None:
        raise ConfigError(no_such("parameter", unknown, sweep.axes))
    varied = [k for k in held if k != SEED and trials[f"params.{k}"].nunique() > 1]
    chosen = [key for key in (varied if params is None else params) if key in held]
    points = trials[["value"]].assign(fate=style.fates(trials))
    others = tuple(g.metric for g in sweep.objectives[1:] if f"final.{g.metric}" in trials)
    columns = {key: trials[f"params.{key}"] for key in chosen}
    columns |= {f"final.{metric}": trials[f"final.{metric}"] for metric in others}
    return ParameterPoints(
        sweep.name,
        sweep.metric,
        pd.concat([points, pd.DataFrame(columns, index=points.index)], axis=1),
        tuple(held[key] for key in chosen),
        best_or_none(sweep),
        others,
    )


def plot_parameters(sweep: Sweep, params: Sequence[str] | None = None) -> Figure:
    """The objective against each parameter; trials without a value stand in a strip below.

    Args:
        sweep: A loaded sweep.
        params: As in ``parameter_data``.
    """
    return draw_parameters(parameter_data(sweep, params))


def draw_parameters(data: ParameterPoints) -> Figure:
    """Draw ``parameter_data`` as small multiples that share the axis of the objective."""
    if data.points.empty or not data.axes:
        return style.message(f"{data.name}: no parameter took two values yet")
    count = len(data.axes)
    across = 2 if count in (2, 4) else min(3, count)
    down = -(-count // across)
    figure = style.new_figure(0.9 + (2.1 if down > 1 else 2.6) * down)
    names = shorten(axis.key for axis in data.axes)
    limits = _limits(data)
    beyond = _beyond(data.points["value"], limits)
    grid = figure.add_gridspec(down, across)
    for place, axis in enumerate(data.axes):
        axes = figure.add_subplot(grid[divmod(place, across)])
        _draw_panel(axes, data, axis, limits)
        _label(axes, data, axis, names[axis.key], first=place % across == 0)
    figure.supylabel(axis_label(data.metric), fontsize=style.TEXT, color=style.INK)
    counts = data.points["fate"].value_counts()
    present = [(fate, int(counts[fate])) for fate in style.LOOKS if fate in counts]
    # In the heading: above one panel it would look like that panel's title.
    title = f"{data.name}: {beyond}" if beyond else data.name
    style.heading(figure, title, present, data.best, lines=False)
    return figure


def _limits(data: ParameterPoints) -> tuple[float, float]:
    """The objective's range, with a strip below it for trials that have no value."""
    values = data.points["value"]
    tame = values[data.points["fate"] != "diverged"]
    shown = tame if tame.notna().any() else values
    keep = values[values.index == data.best]
    low, high = style.robust_limits(shown, keep) or (0.0, 1.0)
    if values.isna().any():
        low -= (high - low) * _STRIP / (1 - _STRIP)
    return low, high


def _beyond(values: pd.Series[Any], limits: tuple[float, float]) -> str:
    count = int(((values < limits[0]) | (values > limits[1])).sum())
    if not count:
        return ""
    trials = "trial lies" if count == 1 else "trials lie"
    return f"{count} {trials} beyond the frame, drawn at the edge of each panel"


def _draw_panel(axes: Axes, data: ParameterPoints, axis: Axis, limits: tuple[float, float]) -> None:
    axes.set_ylim(*limits)
    place, ticks = positions(data.points[axis.key], axis)
    style.quiet(axes, grid="both" if ticks is None else "y")
    set_scale(axes, place, axis, ticks)
    if ticks is None:
        _draw_course(axes, data.points, place, axis)
    else:
        _draw_medians(axes, data.points, place)
    alpha = style.strength(len(data.points))
    size = float(np.clip(600 / len(data.points), 9, 26))
    for fate, rows in data.points.groupby("fate"):
        x = place.loc[rows.index].to_numpy(float)
        _draw_marks(axes, x, rows["value"].to_numpy(float), style.LOOKS[str(fate)], (size, alpha))
    if data.best is not None and data.best in place.index:
        own = data.points["value"].loc[data.best]
        axes.scatter(
            [place.loc[data.best]],
            [own],
            s=70,
            facecolors="none",
            edgecolors=style.BEST,
            linewidths=1.8,
            zorder=6,
        )


def _draw_medians(axes: Axes, points: pd.DataFrame, place: pd.Series[Any]) -> None:
    done = points["fate"] == "completed"
    medians = points.loc[done, "value"].groupby(place[done]).median()
    for x, value in zip(medians.index.to_numpy(float), medians, strict=True):
        if pd.notna(value):
            axes.hlines(value, x - 0.28, x + 0.28, color=style.INK, lw=1.6, zorder=5)


def _draw_course(axes: Axes, points: pd.DataFrame, place: pd.Series[Any], axis: Axis) -> None:
    """Medians of completed trials over bins of equally many; none of too few."""
    done = (points["fate"] == "completed") & points["value"].notna() & place.notna()
    bins = min(_MOST_BINS, int(done.sum()) // _FEWEST_IN_BIN)
    if bins < 2:
        return
    codes = pd.qcut(place[done], bins, labels=False, duplicates="drop")
    medians = points.loc[done, "value"].groupby(codes).median()
    x = np.log(place[done]) if axis.log else place[done]
    middles = x.groupby(codes).median()
    middles = np.exp(middles) if axis.log else middles
    axes.plot(middles, medians, color=style.INK, lw=1.4, zorder=5, path_effects=style.halo())


def _draw_marks(
    axes: Axes, x: np.ndarray, y: np.ndarray, look: style.Look, weight: tuple[float, float]
) -> None:
    size, alpha = weight
    low, high = axes.get_ylim()
    none = np.isnan(y)
    shown = np.clip(y, low, high)
    shown[none] = low + 0.4 * _STRIP * (high - low)
    axes.scatter(
        x,
        shown,
        s=size,
        marker=look.marker,
        alpha=alpha,
        linewidths=1.0,
        zorder=3,
        clip_on=False,
        **style.faces(look),
    )


def _label(axes: Axes, data: ParameterPoints, axis: Axis, name: str, first: bool) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator

    held = int(data.points[axis.key].notna().sum())
    total = len(data.points)
    text = name if held == total else f"{name}  ({held} of {total} trials)"
    axes.set_xlabel(text, fontsize=style.TEXT, color=style.INK)
    low, high = axes.get_ylim()
    ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    strip = bool(data.points["value"].isna().any())
    floor = low + _STRIP * (high - low) if strip else low
    axes.yaxis.set_major_locator(FixedLocator([t for t in ticks if floor <= t <= high]))
    if strip:
        axes.axhline(floor - 0.01 * (high - low), color="#bbbbbb", linewidth=0.7, zorder=1)
    if not first:
        axes.tick_params(axis="y", labelleft=False)
    elif strip:
        axes.text(
            -0.02,
            0.04,
            "no value",
            transform=axes.transAxes,
            ha="right",
            va="center",
            fontsize=style.SMALL - 1,
            color=style.FAINT,
        )
