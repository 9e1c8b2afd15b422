"""What the GPU time went into: phases of the iterations, and the roles that worked or waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from analysis.plots import style
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WHOLE = "time/iteration"
# These are parts of other phases, or span them.
_PARTS = ("time/critical_path", "time/total", _WHOLE)
_BUSY = "util/busy_"


class Costs(NamedTuple):
    """What the plot shows.

    Attributes:
        name: Name of the sweep.
        phases: Indexed by phase, the longest first: ``seconds`` float64 of all trials. Phases that
            overlap count each in full; ``rest`` is what no phase names, where there is such time.
        roles: Indexed by role: ``busy`` and ``idle`` float64, worker-seconds of all trials.
        seconds: Seconds of all iterations together.
        gpu_hours: The bill of all trials, NaN where none is reported.
    """

    name: str
    phases: pd.DataFrame
    roles: pd.DataFrame
    seconds: float
    gpu_hours: float


def cost_data(sweep: Sweep) -> Costs:
    """Seconds by phase and by role over all trials of the sweep."""
    frame = sweep.iterations
    names = [
        c
        for c in map(str, frame.columns)
        if c.startswith("time/") and c not in _PARTS and not c.startswith("time/allreduce")
    ]
    phases = frame[names].sum().rename(lambda name: name.removeprefix("time/"))
    whole = float(frame[_WHOLE].sum()) if _WHOLE in frame else float(phases.sum())
    rest = whole - float(phases.sum())
    if rest > 0.01 * whole:
        phases["rest"] = rest
    ranked = phases[phases > 0].sort_values(ascending=False).to_frame("seconds")
    final = sweep.trials.get("final.cost/gpu_seconds")
    bill = float(final.sum()) / 3600 if final is not None and final.notna().any() else np.nan
    return Costs(sweep.name, ranked, _roles(sweep), whole, bill)


def _roles(sweep: Sweep) -> pd.DataFrame:
    frame = sweep.iterations
    roles = [c.removeprefix(_BUSY) for c in map(str, frame.columns) if c.startswith(_BUSY)]
    if _WHOLE not in frame or not roles:
        return pd.DataFrame(columns=["busy", "idle"], dtype="float64")
    counts = _workers(sweep, roles)
    rows = {}
    for role in roles:
        workers = frame["trial"].astype("str").map(counts[role]).fillna(1.0).to_numpy(np.float64)
        seconds = frame[_WHOLE].to_numpy(np.float64) * workers
        share = frame[f"{_BUSY}{role}"].to_numpy(np.float64)
        rows[role] = (np.nansum(seconds * share), np.nansum(seconds * (1 - share)))
    return pd.DataFrame.from_dict(rows, orient="index", columns=["busy", "idle"])


def _workers(sweep: Sweep, roles: list[str]) -> dict[str, pd.Series[float]]:
    """How many workers of each trial host a role."""
    placed = sweep.placements.dropna(subset=["worker"])
    hosted = placed["roles"].str.split(",")
    trials = placed["trial"].astype("str")
    return {
        role: hosted.map(lambda own, role=role: role in own).astype("float64").groupby(trials).sum()
        for role in roles
    }


def plot_costs(sweep: Sweep) -> Figure:
    """Seconds by phase, and busy and idle time by role."""
    return draw_costs(cost_data(sweep))


def draw_costs(data: Costs) -> Figure:
    """Draw ``cost_data``."""
    if data.phases.empty:
        return style.message(f"{data.name}: no trial has reported times yet")
    rows = max(len(data.phases), len(data.roles))
    both = not data.roles.empty
    figure = style.new_figure(1.5 + 0.28 * rows)
    panels = figure.subplots(1, 2 if both else 1, squeeze=False)[0]
    size, sign = style.span_of_time(float(data.phases["seconds"].max()))
    _draw_phases(panels[0], data, size)
    style.name_axes(panels[0], f"time of all trials [{sign}]", title="by phase")
    if both:
        size, sign = style.span_of_time(float(data.roles.sum(axis=1).max()))
        _draw_roles(panels[1], data.roles, size)
        style.name_axes(panels[1], f"worker time of all trials [{sign}]", title="by role")
    bill = "" if np.isnan(data.gpu_hours) else f", {data.gpu_hours:.3g} GPU-hours"
    style.say(figure, f"{data.name}: where the time went{bill}", "phases may overlap")
    return figure


def _draw_phases(axes: Axes, data: Costs, size: float) -> None:
    style.quiet(axes, grid="x")
    values = data.phases["seconds"].to_numpy() / size
    axes.barh(range(len(values)), values, height=0.66, color=style.SERIES[0], alpha=0.8, zorder=2)
    for row, value in enumerate(values):
        share = value * size / data.seconds if data.seconds else 0.0
        axes.annotate(
            f"{share:.0%}", (value, row), xytext=(3, 0), textcoords="offset points", va="center",
            fontsize=style.SMALL, color=style.INK,
        )  # fmt: skip
    axes.set_yticks(range(len(values)), list(data.phases.index))
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_xlim(0, values.max() * 1.14)


def _draw_roles(axes: Axes, roles: pd.DataFrame, size: float) -> None:
    style.quiet(axes, grid="x")
    rows = np.arange(len(roles))
    busy, idle = (roles[c].to_numpy() / size for c in ("busy", "idle"))
    axes.barh(rows, busy, height=0.66, color=style.SERIES[0], alpha=0.8, zorder=2, label="busy")
    axes.barh(
        rows, idle, left=busy, height=0.66, color="#f1f1f1", edgecolor="#bbbbbb", hatch="////",
        linewidth=0, zorder=2, label="idle",
    )  # fmt: skip
    for row, share in enumerate(busy / (busy + idle)):
        axes.annotate(
            f"{share:.0%} busy", (busy[row], row), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=style.SMALL, color=style.INK, path_effects=style.halo(), zorder=4,
        )  # fmt: skip
    axes.set_yticks(rows, list(roles.index))
    axes.set_ylim(len(roles) - 0.4, -0.6)
