"""Where the values of a parameter stand on an axis, and how that axis is ticked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from analysis.names import number
from analysis.plots.ticks import column_labels, log_ticks, wrap
from analysis.space import Axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Characters below one panel.
_ROOM = 46


def positions(values: pd.Series[Any], axis: Axis) -> tuple[pd.Series[Any], list[str] | None]:
    """Where each trial stands on the axis, and the names of the columns where there are such."""
    plain = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if plain and not axis.values:
        return values.astype("float64"), None
    if isinstance(values.dtype, pd.CategoricalDtype):
        offered = list(values.cat.categories)
    else:
        offered = sorted({*values.dropna().tolist()})
    codes = {value: float(code) for code, value in enumerate(offered)}
    held = [codes.get(v, np.nan) if pd.notna(v) else np.nan for v in values]
    return pd.Series(held, index=values.index), column_labels(offered)


def set_scale(
    axes: Axes,
    place: pd.Series[Any],
    axis: Axis,
    names: Sequence[str] | None,
    along: Literal["x", "y"] = "x",
) -> None:
    """Scale, limits and ticks of one side of a panel for the values that ``positions`` placed."""
    if names is not None:
        _set_names(axes, names, along)
        return
    low = place.min() if axis.low is None else axis.low
    high = place.max() if axis.high is None else axis.high
    if axis.log and low > 0:
        _set_log(axes, low, high, along)
    else:
        _set_linear(axes, low, high, axis, along)


def _set_log(axes: Axes, low: float, high: float, along: Literal["x", "y"]) -> None:
    from matplotlib.ticker import NullLocator

    ticks, margin = log_ticks(low, high), (high / low) ** 0.05
    side = axes.xaxis if along == "x" else axes.yaxis
    axes.set(**{f"{along}scale": "log"})
    side.set_minor_locator(NullLocator())
    side.set_ticks(ticks, [number(t) for t in ticks])
    axes.set(**{f"{along}lim": (low / margin, high * margin)})


def _set_linear(axes: Axes, low: float, high: float, axis: Axis, along: Literal["x", "y"]) -> None:
    from matplotlib.ticker import MaxNLocator

    side, margin = axes.xaxis if along == "x" else axes.yaxis, 0.05 * ((high - low) or 1.0)
    side.set_major_locator(MaxNLocator(4, integer=axis.kind == "int", steps=[1, 2, 5, 10]))
    axes.set(**{f"{along}lim": (low - margin, high + margin)})


def _set_names(axes: Axes, names: Sequence[str], along: Literal["x", "y"]) -> None:
    wrapped = [wrap(name) for name in names]
    widest = max(len(line) for name in wrapped for line in name.split("\n"))
    axes.set(**{f"{along}lim": (-0.6, len(names) - 0.4)})
    if along == "y" or (widest + 1) * len(names) <= _ROOM:
        axes.set(**{f"{along}ticks": range(len(names)), f"{along}ticklabels": wrapped})
        return
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", rotation=30)
    for text in axes.get_xticklabels():
        text.set(ha="right", rotation_mode="anchor")
