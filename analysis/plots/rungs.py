"""How many trials live on through the iterations, and when their rank can be believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis.plots import style
from analysis.statistics.budget import budget_correlation
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Survival(NamedTuple):
    """What the plot shows.

    Attributes:
        name: Name of the sweep.
        alive: Indexed by iteration: how many trials reached it (int64), one column for each fate
            they had in the end.
        agreement: ``analysis.statistics.budget_correlation`` of the objective.
        grace: First iteration at which the scheduler may stop a trial, or None.
    """

    name: str
    alive: pd.DataFrame
    agreement: pd.DataFrame
    grace: int | None


def survival_data(sweep: Sweep) -> Survival:
    """Trials alive at each iteration, and the rank correlation with the end."""
    reached = sweep.iterations.groupby("trial", observed=True)["iteration"].max()
    reached.index = reached.index.astype("str")
    fates = style.fates(sweep.trials).reindex(reached.index)
    last = int(reached.max()) if len(reached) else -1
    steps = np.arange(last + 1)
    alive = {
        fate: (reached[fates == fate].to_numpy()[:, None] >= steps).sum(axis=0)
        for fate in style.LOOKS
        if (fates == fate).any()
    }
    frame = pd.DataFrame(alive, index=pd.Index(steps, name="iteration"))
    try:
        agreement = budget_correlation(sweep)
    except ConfigError:
        agreement = pd.DataFrame(columns=["iteration", "trials", "rho", "low", "high", "kept"])
    scheduler = (sweep.info.get("config") or {}).get("scheduler") or {}
    counted = scheduler.get("resource") in (None, "iterations")
    cuts = counted and scheduler.get("kind") in ("asha", "hyperband", "median")
    grace = scheduler.get("grace") if cuts else None
    return Survival(sweep.name, frame, agreement, grace)


def plot_survival(sweep: Sweep) -> Figure:
    """Trials alive at each iteration, and how far ranks at that iteration are those at the end."""
    return draw_survival(survival_data(sweep))


def draw_survival(data: Survival) -> Figure:
    """Draw ``survival_data``."""
    if data.alive.empty:
        return style.message(f"{data.name}: no trial has reported yet")
    both = len(data.agreement) > 0
    figure = style.new_figure(3.4)
    panels = figure.subplots(1, 2 if both else 1, squeeze=False)[0]
    _draw_alive(panels[0], data)
    if both:
        _draw_agreement(panels[1], data.agreement)
    for axes in panels:
        axes.set_xlim(0, max(1, data.alive.index[-1]))
        if data.grace is not None:
            axes.axvline(data.grace, color=style.FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
            axes.annotate(
                "grace", (data.grace, 1), xycoords=("data", "axes fraction"), xytext=(3, -9),
                textcoords="offset points", fontsize=style.SMALL, color=style.FAINT,
                path_effects=style.halo(),
            )  # fmt: skip
    counts = data.alive.iloc[0]
    present = [(str(fate), int(count)) for fate, count in counts.items()]
    style.heading(figure, f"{data.name}: who lives on", present, None, lines=False)
    return figure


def _draw_alive(axes: Axes, data: Survival) -> None:
    from matplotlib.ticker import MaxNLocator

    style.quiet(axes, grid="y")
    # Those that live longest at the bottom, so that the upper edge falls only where trials end.
    order = data.alive.sum().sort_values(ascending=False).index
    floor = np.zeros(len(data.alive))
    steps = data.alive.index.to_numpy(float)
    for fate in order:
        top = floor + data.alive[fate].to_numpy(float)
        axes.fill_between(
            steps, floor, top, step="post", color=style.LOOKS[fate].color, alpha=0.75, linewidth=0
        )
        axes.step(steps, top, where="post", color="white", linewidth=0.8)
        floor = top
    axes.set_ylim(0, None)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    style.name_axes(axes, style.ITERATION, "trials alive")


def _draw_agreement(axes: Axes, agreement: pd.DataFrame) -> None:
    style.quiet(axes)
    x = agreement["iteration"].to_numpy(float)
    band = (agreement["low"].to_numpy(float), agreement["high"].to_numpy(float))
    axes.fill_between(x, *band, color=style.SERIES[0], alpha=0.18, linewidth=0)
    axes.plot(
        x, agreement["rho"], "o-", color=style.SERIES[0], linewidth=1.6, markersize=3.5,
        label="rank correlation, 95 %",
    )  # fmt: skip
    axes.plot(
        x, agreement["kept"], "s--", color=style.SERIES[1], linewidth=1.2, markersize=3.5,
        label="of the final best third found",
    )  # fmt: skip
    axes.axhline(0, color="#bbbbbb", linewidth=0.8, zorder=1)
    axes.set_ylim(-1.02, 1.05)
    axes.legend(loc="lower right", frameon=False, fontsize=style.SMALL, labelcolor=style.INK)
    style.name_axes(axes, style.ITERATION, "agreement with the end")
