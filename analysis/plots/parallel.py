"""Parallel coordinates: every trial a line through its parameters to its objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.names import number, shorten
from analysis.plots import style
from analysis.plots.parameters import ParameterPoints, parameter_data
from analysis.plots.scales import positions
from analysis.plots.ticks import wrap
from analysis.space import Axis
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LABELS = 6


def plot_parallel(sweep: Sweep) -> Figure:
    """All trials through all parameters and objectives, coloured by the objective that ranks."""
    return draw_parallel(parameter_data(sweep))


def draw_parallel(data: ParameterPoints) -> Figure:
    """Draw ``parameter_data``; a line ends where a trial has no such parameter."""
    if data.points.empty or not data.axes or data.points["value"].isna().all():
        return style.message(f"{data.name}: no trial with parameters and a value yet")
    figure = style.new_figure(4.2)
    axes = figure.add_subplot()
    _bare(axes)
    columns = []
    names = shorten(axis.key for axis in data.axes)
    for place, axis in enumerate(data.axes):
        heights, labels = _heights(data, axis)
        columns.append(heights)
        _draw_scale(axes, place, wrap(names[axis.key]), labels)
    for metric in data.others:
        heights, low, high = _value_heights(data, f"final.{metric}")
        _draw_scale(axes, len(columns), wrap(metric), _ends(low, high), bold=True)
        columns.append(heights)
    value, low, high = _value_heights(data, "value")
    _draw_scale(axes, len(columns), wrap(data.metric), _ends(low, high), bold=True)
    _draw_lines(axes, data, np.column_stack([*columns, value]))
    axes.set_xlim(-0.25, len(columns) + 0.3)
    axes.set_ylim(-0.06, 1.12)
    colours = _colour_bar(figure, axes, low, high)
    colours.set_label(data.metric, fontsize=style.SMALL, color=style.INK)
    style.say(figure, f"{data.name}: parameters of every trial", _note(data))
    return figure


def _note(data: ParameterPoints) -> str:
    without = int(data.points["value"].isna().sum())
    text = "each line is a trial; grey: not completed"
    text += f"; {without} without a value not drawn" if without else ""
    return text + (f"; black: the best, {data.best}" if data.best else "")


def _bare(axes: Axes) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xticks([])
    axes.set_yticks([])


def _heights(data: ParameterPoints, axis: Axis) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Where each trial crosses an axis, from 0 to 1, and the labels of the axis."""
    place, names = positions(data.points[axis.key], axis)
    held = place.to_numpy(np.float64)
    if names is not None:
        top = max(len(names) - 1, 1)
        step = -(-len(names) // _MOST_LABELS)
        return held / top, [(i / top, n) for i, n in enumerate(names) if i % step == 0]
    low = axis.low if axis.low is not None else float(np.nanmin(held))
    high = axis.high if axis.high is not None else float(np.nanmax(held))
    if axis.log and low > 0:
        middle = float(np.sqrt(low * high))
        scaled = np.log(held / low) / (np.log(high / low) or 1.0)
    else:
        middle = (low + high) / 2
        scaled = (held - low) / ((high - low) or 1.0)
    ends = [(0.0, number(low)), (1.0, number(high))]
    whole = axis.kind == "int" and not axis.log and middle != int(middle)
    return scaled, ends if whole else [*ends, (0.5, number(middle))]


def _ends(low: float, high: float) -> list[tuple[float, str]]:
    return [(0.0, number(low)), (0.5, number((low + high) / 2)), (1.0, number(high))]


def _value_heights(data: ParameterPoints, column: str) -> tuple[np.ndarray, float, float]:
    values = data.points[column]
    done = values[data.points["fate"] == "completed"]
    keep = values[values.index == data.best]
    low, high = style.robust_limits(done if done.notna().any() else values, keep, 0.0) or (0.0, 1.0)
    scaled = (values.to_numpy(np.float64) - low) / (high - low)
    return np.clip(scaled, 0.0, 1.0), low, high


def _draw_scale(
    axes: Axes, place: int, name: str, labels: list[tuple[float, str]], bold: bool = False
) -> None:
    axes.plot([place, place], [0, 1], color="#bbbbbb", linewidth=1.0, zorder=4)
    axes.text(
        place, 1.04, name, ha="center", va="bottom", fontsize=style.SMALL, color=style.INK,
        fontweight="bold" if bold else "normal",
    )  # fmt: skip
    for height, text in labels:
        axes.text(
            place + 0.04, height, text, ha="left", va="center", fontsize=style.SMALL - 1,
            color=style.INK, path_effects=style.halo(), zorder=7,
        )  # fmt: skip


def _draw_lines(axes: Axes, data: ParameterPoints, heights: np.ndarray) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    known = ~np.isnan(heights[:, -1])
    done = (data.points["fate"] == "completed").to_numpy() & known
    own = (data.points.index == data.best) & known
    alpha = style.strength(int(done.sum()))
    places = np.arange(heights.shape[1])
    for chosen, colours, look in (
        (known & ~done, "#cccccc", (0.8, 0.7, 1)),
        (done & ~own, colormaps[style.SCALE](heights[done & ~own, -1]), (1.2, alpha, 2)),
        (own, style.BEST, (2.2, 1.0, 5)),
    ):
        lines: list[Any] = [np.column_stack([places, row]) for row in heights[chosen]]
        width, strength, layer = look
        axes.add_collection(
            LineCollection(lines, colors=colours, linewidths=width, alpha=strength, zorder=layer)
        )


def _colour_bar(figure: Figure, axes: Axes, low: float, high: float) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    bar = figure.colorbar(
        ScalarMappable(Normalize(low, high), style.SCALE), ax=axes, fraction=0.025, pad=0.02
    )
    bar.ax.tick_params(labelsize=style.SMALL, labelcolor=style.INK)
    bar.ax.set_frame_on(False)
    return bar
