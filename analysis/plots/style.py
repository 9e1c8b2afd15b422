"""The look that all plots share: palette, quiet axes, robust limits, an atomic ``save``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from analysis.files import replacing
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTH = 8.0
DPI = 200
TEXT = 9.0
ITERATION = "iteration"
SMALL = 8.0
# Numbers whose distance may have no number cannot be drawn to scale.
LARGEST = 1e300
INK = "#333333"
FAINT = "#8a8a8a"
GRID = "#e9e9e9"
BEST = "#000000"
# Perceptually even, and read alike with colour vision deficiencies and in grey.
SCALE = "cividis"
# For things that are no outcomes; Okabe and Ito again.
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")


@dataclass(frozen=True)
class Look:
    """How one outcome is drawn. Shape and fill tell outcomes apart without colour."""

    color: str
    marker: str = "o"
    filled: bool = True


# Okabe and Ito, "Color Universal Design": distinct under all common colour vision deficiencies.
LOOKS: Mapping[str, Look] = {
    "completed": Look("#0072B2"),
    "stopped": Look("#E69F00", "o", filled=False),
    "diverged": Look("#D55E00", "x"),
    "infeasible": Look("#555555", "|"),
    "failed": Look("#CC79A7", "s", filled=False),
    "lost": Look("#999999", "d", filled=False),
    "running": Look("#009E73", "^"),
    "unfinished": Look("#999999", "^", filled=False),
}


def fates(trials: pd.DataFrame) -> pd.Series[Any]:
    """How each trial is drawn: its outcome, else ``running`` or ``unfinished``, by trial id."""
    outcome = trials["outcome"].astype("object")
    rest = np.where(trials["state"] == "started", "running", "unfinished")
    fate = outcome.where(outcome.notna(), pd.Series(rest, index=trials.index))
    return fate.where(fate.isin(list(LOOKS)), "unfinished").astype("str").rename("fate")


def new_figure(height: float) -> Figure:
    """A figure of the common width that belongs to no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), dpi=100, layout="constrained", facecolor="white")


def quiet(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Take away the frame, keep a light grid behind the data."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bbbbbb")
    axes.set_axisbelow(True)
    axes.grid(True, axis=grid, color=GRID, linewidth=0.7)
    axes.tick_params(length=2.5, color="#bbbbbb", labelcolor=INK, labelsize=SMALL)


def strength(count: int) -> float:
    """Opacity of one of ``count`` marks, so that many remain a picture."""
    return float(np.clip(5.0 / np.sqrt(max(count, 1)), 0.2, 0.9))


def robust_limits(values: Any, keep: Any = (), pad: float = 0.06) -> tuple[float, float] | None:
    """Limits that a few runaway values cannot take over.

    Args:
        values: Numbers to show; NaN is ignored.
        keep: Numbers that must lie inside.
        pad: Margin as a share of the span.

    Returns:
        Low and high, or None where nothing is finite.
    """
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return None
    finite = np.clip(finite, -LARGEST, LARGEST)
    low, high = np.quantile(finite, [0.25, 0.75])
    if high > low:
        reach = 4.0 * (high - low)
        low, high = max(finite.min(), low - reach), min(finite.max(), high + reach)
    else:
        low, high = finite.min(), finite.max()
    held = np.asarray(keep, dtype=np.float64)
    held = held[np.isfinite(held)]
    if held.size:
        held = np.clip(held, -LARGEST, LARGEST)
        low, high = min(low, held.min()), max(high, held.max())
    span = (high - low) or abs(high) or 1.0
    return float(low - pad * span), float(high + pad * span)


def say(figure: Figure, title: str, note: str = "") -> None:
    """The title of a figure without outcomes, and a line below it that says how to read it."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=TEXT + 2, color=INK)
    if note:
        figure.supxlabel(note, x=0.01, ha="left", fontsize=SMALL, color=FAINT)


def name_axes(axes: Axes, x: str = "", y: str = "", title: str = "") -> None:
    """Labels in the common size; the title stands at the left. Iterations are counted in whole numbers."""
    from matplotlib.ticker import MaxNLocator

    if x == ITERATION:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    if x:
        axes.set_xlabel(x, fontsize=TEXT, color=INK)
    if y:
        axes.set_ylabel(y, fontsize=TEXT, color=INK)
    if title:
        axes.set_title(title, loc="left", fontsize=TEXT, color=INK)


def span_of_time(seconds: float) -> tuple[float, str]:
    """Seconds in one of the unit that suits so many of them, and its sign: s, min or h."""
    for size, sign in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return size, sign
    return 1.0, "s"


def heading(
    figure: Figure, title: str, present: Sequence[tuple[str, int]], best: str | None, lines: bool
) -> None:
    """The title, and one legend of outcomes with their counts; trials have no legend of their own.

    Args:
        figure: Drawn so far.
        title: First line.
        present: Outcomes and how many trials had each.
        best: The highlighted trial.
        lines: Whether trials are lines (or points).
    """
    handles = [_handle(LOOKS[fate], f"{count} {fate}", lines) for fate, count in present]
    if best is not None:
        handles.append(_best_handle(f"best, {best}", lines))
    legend = figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=min(5, max(1, len(handles))),
        title=title,
        title_fontsize=TEXT + 2,
        alignment="left",
        frameon=False,
        fontsize=TEXT,
        labelcolor=INK,
        handlelength=1.6 if lines else 0.8,
        columnspacing=1.6,
        borderpad=0.1,
    )
    legend.get_title().set_color(INK)


def _handle(look: Look, label: str, lines: bool) -> Line2D:
    from matplotlib.lines import Line2D

    face = look.color if look.filled else "none"
    return Line2D(
        [],
        [],
        color=look.color,
        marker=look.marker,
        markerfacecolor=face,
        markersize=5,
        linewidth=1.4 if lines else 0.0,
        label=label,
    )


def _best_handle(label: str, lines: bool) -> Line2D:
    from matplotlib.lines import Line2D

    if lines:
        return Line2D([], [], color=BEST, linewidth=2.2, label=label)
    return Line2D(
        [],
        [],
        color=BEST,
        marker="o",
        markerfacecolor="none",
        markersize=8,
        markeredgewidth=1.8,
        linewidth=0.0,
        label=label,
    )


def faces(look: Look) -> dict[str, Any]:
    """Colours of a scatter; markers made of strokes have no face to fill."""
    if look.marker in ("x", "|"):
        return {"color": look.color}
    return {"facecolors": look.color if look.filled else "none", "edgecolors": look.color}


def halo() -> list[Any]:
    """A white rim that keeps a label legible over lines."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground="white")]


def message(text: str) -> Figure:
    """A figure that says why there is nothing to draw."""
    figure = new_figure(1.2)
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=TEXT + 1, color=FAINT)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the format of the path's suffix; a reader never sees half a file.

    Args:
        figure: Any matplotlib figure.
        path: Ends with ``.png``, ``.svg``, ``.pdf`` or another format matplotlib writes. Folders
            are made as needed.

    Returns:
        The path.

    Raises:
        ConfigError: matplotlib does not write that format.
    """
    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    known = sorted(figure.canvas.get_supported_filetypes())
    if kind not in known:
        raise ConfigError(
            f"a plot's suffix must be one of {', '.join(known)}, got {target.name!r}; use .png"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as draft:
        figure.savefig(draft, format=kind, dpi=DPI)
    return target
