"""The objective over two parameters: the trials, and between them what their neighbours say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from analysis.names import axis_label, shorten
from analysis.plots import style
from analysis.plots.parameters import ParameterPoints, parameter_data
from analysis.plots.scales import positions, set_scale
from analysis.space import Axis
from analysis.statistics.parameters import importance
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEWEST = 6
_RESAMPLES = 1


def contour_data(sweep: Sweep, x: str | None = None, y: str | None = None) -> ParameterPoints:
    """Objective and two parameters of every trial.

    Args:
        sweep: A loaded sweep.
        x: Dotted key; the most important parameter by default.
        y: Dotted key; the next one by default.
    """
    every = [axis.key for axis in parameter_data(sweep).axes]
    ranked = [*importance(sweep, repeats=_RESAMPLES).index] if None in (x, y) else []
    free = [key for key in dict.fromkeys([*map(str, ranked), *every]) if key not in (x, y)]
    chosen = [key if key is not None else (free.pop(0) if free else None) for key in (x, y)]
    return parameter_data(sweep, [key for key in chosen if key is not None])


def plot_contour(sweep: Sweep, x: str | None = None, y: str | None = None) -> Figure:
    """The objective over two parameters; see ``contour_data``."""
    return draw_contour(contour_data(sweep, x, y))


def draw_contour(data: ParameterPoints) -> Figure:
    """Draw ``contour_data``. Nothing is drawn outside of what the completed trials enclose."""
    done = data.points[(data.points["fate"] == "completed") & data.points["value"].notna()]
    if len(data.axes) < 2 or done.empty:
        return style.message(f"{data.name}: no completed trials with two varied parameters yet")
    figure = style.new_figure(4.6)
    axes = figure.add_subplot()
    style.quiet(axes)
    names = shorten(axis.key for axis in data.axes)
    places = []
    sides: tuple[Literal["x", "y"], ...] = ("x", "y")
    for axis, along in zip(data.axes, sides, strict=True):
        place, ticks = positions(data.points[axis.key], axis)
        set_scale(axes, place, axis, ticks, along)
        # Trials that share a value would hide one another.
        places.append(place if ticks is None else place + _jitter(len(place), along))
    x, y = (place.to_numpy(np.float64) for place in places)
    rest = ~data.points.index.isin(done.index)
    axes.scatter(x[rest], y[rest], s=14, marker="x", color="#aaaaaa", linewidths=0.9, zorder=3)
    drawn = _draw_values(axes, data, x, y, ~rest)
    if data.best is not None:
        own = data.points.index == data.best
        axes.scatter(
            x[own], y[own], s=110, facecolors="none", edgecolors=style.BEST, linewidths=1.8,
            zorder=6,
        )  # fmt: skip
    bar = figure.colorbar(drawn, ax=axes, fraction=0.04, pad=0.02)
    bar.set_label(axis_label(data.metric), fontsize=style.TEXT, color=style.INK)
    bar.ax.tick_params(labelsize=style.SMALL, labelcolor=style.INK)
    style.name_axes(axes, names[data.axes[0].key], names[data.axes[1].key])
    note = "dots: completed trials; crosses: others; ring: the best; areas: linear between trials"
    if any(axis.values for axis in data.axes):
        note = "dots: completed trials; crosses: others; ring: the best; spread out along names"
    style.say(figure, f"{data.name}: {names[data.axes[0].key]} and {names[data.axes[1].key]}", note)
    return figure


def _jitter(count: int, along: str) -> np.ndarray:
    """Fixed offsets for names, less than half the distance of two of them."""
    return np.random.default_rng(ord(along)).uniform(-0.28, 0.28, count)


def _draw_values(
    axes: Axes, data: ParameterPoints, x: np.ndarray, y: np.ndarray, done: np.ndarray
) -> Any:
    from matplotlib.colors import Normalize

    value = data.points["value"].to_numpy(np.float64)
    low, high = style.robust_limits(value[done], pad=0.0) or (0.0, 1.0)
    scale = Normalize(low, high if high > low else low + 1.0)
    scaled = [_even(v, axis) for v, axis in zip((x, y), data.axes, strict=True)]
    _draw_areas(axes, data, (x[done], y[done]), [s[done] for s in scaled], (value[done], scale))
    return axes.scatter(
        x[done], y[done], c=value[done], cmap=style.SCALE, norm=scale, s=30, edgecolors="white",
        linewidths=0.7, zorder=4,
    )  # fmt: skip


def _even(values: np.ndarray, axis: Axis) -> np.ndarray:
    """Values from 0 to 1 on the scale on which the parameter is searched."""
    scaled = np.log(values) if axis.log else values
    span = float(np.nanmax(scaled) - np.nanmin(scaled))
    return np.asarray((scaled - np.nanmin(scaled)) / (span or 1.0))


def _draw_areas(
    axes: Axes,
    data: ParameterPoints,
    drawn: tuple[np.ndarray, np.ndarray],
    scaled: list[np.ndarray],
    held: tuple[np.ndarray, Any],
) -> None:
    """Between the trials, by triangles that are even on the searched scale."""
    from matplotlib.tri import Triangulation

    value, norm = held
    points = np.column_stack(scaled)
    known = np.isfinite(points).all(axis=1)
    flat = any(len(np.unique(column[known])) < 3 for column in points.T)
    # Names have no order to interpolate along.
    named = any(axis.values for axis in data.axes)
    if known.sum() < _FEWEST or flat or named:
        return
    mesh = Triangulation(points[known, 0], points[known, 1])
    x, y = (column[known] for column in drawn)
    axes.tricontourf(
        x, y, mesh.triangles, np.clip(value[known], norm.vmin, norm.vmax), levels=8,
        cmap=style.SCALE, norm=norm, alpha=0.45, zorder=1,
    )  # fmt: skip
