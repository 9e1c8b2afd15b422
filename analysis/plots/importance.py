"""Which parameters matter, by two measures, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis.names import shorten
from analysis.plots import style
from analysis.statistics.parameters import Method, importance
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ASKS: dict[Method, str] = {
    "ped-anova": "PED-ANOVA: what sets the best apart",
    "fanova": "fANOVA: what explains the spread",
}
_MOST = 12
_MOST_RESAMPLED = 120


class Importances(NamedTuple):
    """What the plot shows.

    Attributes:
        name: Name of the sweep.
        trials: How many completed trials it rests on.
        tables: By method, as ``analysis.statistics.importance`` gives them.
    """

    name: str
    trials: int
    tables: dict[Method, pd.DataFrame]


def importance_data(sweep: Sweep, repeats: int = 30) -> Importances:
    """Both importances; ``repeats`` resamples of the trials give the intervals."""
    trials = sweep.searched.trials
    done = trials[(trials["outcome"] == "completed") & trials["value"].notna()]
    # A forest of many trials takes seconds; resampling it would take minutes.
    forests = repeats // 3 if len(done) <= _MOST_RESAMPLED else 0
    counts: dict[Method, int] = {"ped-anova": repeats, "fanova": forests}
    tables = {method: importance(sweep, method, count) for method, count in counts.items()}
    return Importances(sweep.name, len(done), tables)


def plot_importance(sweep: Sweep, repeats: int = 30) -> Figure:
    """Bars of importance with 95 % intervals over resampled trials."""
    return draw_importance(importance_data(sweep, repeats))


def draw_importance(data: Importances) -> Figure:
    """Draw ``importance_data``: parameters in the order of the first measure."""
    first = data.tables["ped-anova"]
    if first.empty:
        return style.message(
            f"{data.name}: importance needs six completed trials and two varied parameters"
        )
    order = list(first.index[:_MOST])
    figure = style.new_figure(1.2 + 0.34 * len(order))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (method, table) in zip(panels, data.tables.items(), strict=True):
        _draw_bars(axes, table.reindex(order))
        style.name_axes(axes, "share of importance", title=_ASKS[method])
    names = shorten(order)
    panels[0].set_yticks(range(len(order)), [names[key] for key in order])
    note = f"{data.trials} completed trials; lines: 95 % of resampled trials"
    style.say(figure, f"{data.name}: what matters", note)
    return figure


def _draw_bars(axes: Axes, table: pd.DataFrame) -> None:
    style.quiet(axes, grid="x")
    rows = np.arange(len(table))
    axes.barh(rows, table["importance"], height=0.62, color=style.SERIES[0], alpha=0.75, zorder=2)
    axes.hlines(rows, table["low"], table["high"], color=style.INK, linewidth=1.3, zorder=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(table) - 0.4, -0.6)
