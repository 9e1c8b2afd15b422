"""Configurations that ran on several seeds: every run, the interquartile mean and its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis.names import axis_label, number
from analysis.plots import style
from analysis.statistics.seeds import SeedNoise, replicates, seed_noise, seed_table
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 20


class SeedSpread(NamedTuple):
    """What the plot shows.

    Attributes:
        name: Name of the sweep.
        metric: The objective.
        table: ``analysis.statistics.seed_table``, the best first.
        noise: Spread between configurations and seeds; None of fewer than two configurations.
    """

    name: str
    metric: str
    table: pd.DataFrame
    noise: SeedNoise | None


def seed_data(sweep: Sweep) -> SeedSpread:
    """Completed trials that differ in nothing but their seed."""
    groups = replicates(sweep)
    noise = seed_noise([g.to_numpy() for g in groups.values()]) if len(groups) > 1 else None
    table = seed_table(groups, sweep.objective.ascending)
    return SeedSpread(sweep.name, sweep.metric, table, noise)


def plot_seeds(sweep: Sweep) -> Figure:
    """The spread of repeated configurations over their seeds."""
    return draw_seeds(seed_data(sweep))


def draw_seeds(data: SeedSpread) -> Figure:
    """Draw ``seed_data``, at most the twenty best."""
    if data.table.empty:
        return style.message(f"{data.name}: no configuration was completed on two seeds")
    table = data.table.head(_MOST)
    figure = style.new_figure(1.4 + 0.34 * len(table))
    axes = figure.add_subplot()
    style.quiet(axes, grid="x")
    rows = np.arange(len(table))
    for row, values in enumerate(table["values"]):
        axes.scatter(
            values, np.full(len(values), row), s=20, facecolors="none", edgecolors=style.SERIES[0],
            linewidths=1.0, zorder=3,
        )  # fmt: skip
    axes.hlines(rows, table["low"], table["high"], color=style.INK, linewidth=1.6, zorder=4)
    axes.scatter(table["iqm"], rows, s=34, marker="D", color=style.INK, zorder=5)
    names = [f"{t}, {n} seeds" for t, n in zip(table["trial"], table["seeds"], strict=True)]
    axes.set_yticks(rows, names)
    axes.set_ylim(len(table) - 0.4, -0.6)
    style.name_axes(axes, axis_label(data.metric))
    note = "circles: runs; diamond: interquartile mean; line: 95 % of resampled runs"
    style.say(figure, f"{data.name}: seeds{_verdict(data.noise)}", note)
    return figure


def _verdict(noise: SeedNoise | None) -> str:
    if noise is None:
        return ""
    return (
        f", configurations explain {noise.share:.0%} of the variance "
        f"({noise.low:.0%} to {noise.high:.0%}), seeds scatter by {number(noise.within, 2)}"
    )
