"""Which trial held which GPU when, and how much of them stood idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.plots import style
from analysis.plots.learning_curves import best_or_none
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LANES = 64
_BEGIN, _END = (
    ("placed", "started"),
    (
        "ended",
        "retried",
        "paused",
        "interrupted",
        "queued",
        "waiting",
    ),
)
_MOST_RIMMED = 60
_ROUNDING = 1e-6


class Timeline(NamedTuple):
    """What the plot shows.

    Attributes:
        name: Name of the sweep.
        bars: One row per stay of a trial on a lane: ``trial`` str, ``lane`` int64, ``begin`` and
            ``end`` float64 (seconds since the sweep began), ``share`` float64 (of the GPU, above 0
            to 1), ``fate`` str.
        lanes: Names of the lanes: node and GPU, or places where trials need no GPU.
        idle: Share of GPU time from the first to the last line of the ledger that no trial held.
        hidden: Lanes beyond those drawn.
        best: The best eligible trial, or None.
    """

    name: str
    bars: pd.DataFrame
    lanes: list[str]
    idle: float
    hidden: int
    best: str | None


def timeline_data(sweep: Sweep) -> Timeline:
    """Stays of trials on GPUs. Which GPU of its node a trial held is not recorded: the first free."""
    stays = _stays(sweep)
    lanes = _Lanes(sweep)
    fates = style.fates(sweep.trials)
    rows = []
    # Equal times: those that leave make room first, and a stay of no length needs none.
    for trial, begin, end in sorted(stays, key=lambda stay: stay[1]):
        for lane, share in lanes.take(trial, begin, end):
            rows.append((trial, lane, begin, end, share, str(fates.get(trial, "unfinished"))))
    columns = ["trial", "lane", "begin", "end", "share", "fate"]
    bars = pd.DataFrame(rows, columns=columns).astype({"lane": "int64", "share": "float64"})
    span = max((end for *_, end in stays), default=0.0)
    held = float(((bars["end"] - bars["begin"]) * bars["share"]).sum())
    whole = span * len(lanes.names)
    idle = max(0.0, 1.0 - held / whole) if whole > 0 else float("nan")
    hidden = max(0, len(lanes.names) - _MOST_LANES)
    names = lanes.names[:_MOST_LANES]
    best = best_or_none(sweep)
    return Timeline(sweep.name, bars[bars["lane"] < len(names)], names, idle, hidden, best)


def _stays(sweep: Sweep) -> list[tuple[str, float, float]]:
    """Trial, begin and end in seconds since the first line; one that runs ends with the last sign."""
    events = sweep.events.dropna(subset=["trial", "time"])
    if events.empty:
        return []
    first, last = float(events["time"].min()), float(events["time"].max())
    last = max(last, float(sweep.iterations["timestamp"].max() if len(sweep.iterations) else last))
    since: dict[str, float] = {}
    found = []
    for trial, state, time in zip(events["trial"], events["state"], events["time"], strict=True):
        if state in _BEGIN:
            since.setdefault(trial, time)
        elif state in _END and trial in since:
            found.append((str(trial), since.pop(trial) - first, time - first))
    found += [(str(trial), begin - first, last - first) for trial, begin in since.items()]
    return found


class _Lanes:
    """GPUs of the nodes, and until when which share of each is taken."""

    def __init__(self, sweep: Sweep) -> None:
        bundles = sweep.placements.drop_duplicates(["trial", "bundle"])
        self.needs: dict[str, list[tuple[str, float]]] = {}
        wanted = (bundles[name].tolist() for name in ("trial", "node", "gpus"))
        for trial, node, gpus in zip(*wanted, strict=True):
            held = 0.0 if pd.isna(gpus) else float(gpus)
            self.needs.setdefault(str(trial), []).append((str(node), held))
        # Trials without a GPU are drawn too, in lanes of their own.
        self.plain = not any(gpus > 0 for own in self.needs.values() for _, gpus in own)
        self.names: list[str] = []
        self.of_node: dict[str, list[int]] = {}
        self.taken: list[list[tuple[float, float]]] = []
        if not self.plain:
            for place, node in enumerate((sweep.info.get("cluster") or {}).get("nodes") or []):
                self._add(node, place)

    def _add(self, node: Any, place: int) -> None:
        name = str(node.get("name") or f"node {place}")
        for gpu in range(int(node.get("gpus") or 0)):
            self._lane(str(node.get("id") or name), f"{name} GPU {gpu}")

    def _lane(self, node: str, name: str) -> int:
        self.names.append(name)
        self.taken.append([])
        self.of_node.setdefault(node, []).append(len(self.names) - 1)
        return len(self.names) - 1

    def take(self, trial: str, begin: float, end: float) -> list[tuple[int, float]]:
        """Lanes and shares for a trial from ``begin`` to ``end``."""
        if self.plain:
            return [(self._fit("", 1.0, begin, end), 1.0)]
        found = []
        for node, gpus in self.needs.get(trial, []):
            whole = int(gpus + _ROUNDING)
            shares = [1.0] * whole + [gpus - whole] * (gpus - whole > _ROUNDING)
            found += [(self._fit(node, share, begin, end), share) for share in shares]
        return found

    def _fit(self, node: str, share: float, begin: float, end: float) -> int:
        for lane in self.of_node.get(node, []):
            held = [(s, until) for s, until in self.taken[lane] if until > begin + _ROUNDING]
            if sum(s for s, _ in held) + share <= 1 + _ROUNDING:
                self.taken[lane] = [*held, (share, end)]
                return lane
        count = len(self.of_node.get(node, []))
        lane = self._lane(node, f"place {count}" if self.plain else f"GPU {len(self.names)}")
        self.taken[lane] = [(share, end)]
        return lane


def plot_timeline(sweep: Sweep) -> Figure:
    """Trials on GPUs over time, by outcome; what is left white was idle."""
    return draw_timeline(timeline_data(sweep))


def draw_timeline(data: Timeline) -> Figure:
    """Draw ``timeline_data``."""
    if data.bars.empty:
        return style.message(f"{data.name}: no trial has been placed yet")
    lanes = len(data.lanes)
    figure = style.new_figure(float(np.clip(1.4 + 0.3 * lanes, 2.4, 9.0)))
    axes = figure.add_subplot()
    style.quiet(axes, grid="x")
    end = float(data.bars["end"].max())
    size, sign = style.span_of_time(end)
    axes.barh(
        range(lanes), end / size, height=0.8, color="none", edgecolor="#d8d8d8", hatch="////",
        linewidth=0, zorder=1,
    )  # fmt: skip
    _draw_bars(axes, data, size)
    step = -(-lanes // 24)
    axes.set_yticks(range(0, lanes, step), data.lanes[::step])
    axes.set_ylim(lanes - 0.4, -0.6)
    axes.set_xlim(0, end / size)
    style.name_axes(axes, f"time since the sweep began [{sign}]")
    counts = data.bars.groupby("fate")["trial"].nunique()
    present = [(fate, int(counts[fate])) for fate in style.LOOKS if fate in counts]
    hidden = f", {data.hidden} more lanes not drawn" if data.hidden else ""
    title = f"{data.name}: {data.idle:.0%} of the time idle (hatched){hidden}"
    style.heading(figure, title, present, data.best, lines=False)
    return figure


def _draw_bars(axes: Axes, data: Timeline, size: float) -> None:
    rows = data.bars
    wide = rows["share"].to_numpy() * 0.8
    offsets = _offsets(rows)
    # Rims tell few bars apart and would hide many.
    rim = 0.6 if rows.groupby("lane").size().max() <= _MOST_RIMMED else 0.0
    for fate, group in rows.groupby("fate"):
        chosen = rows.index.get_indexer(group.index)
        axes.barh(
            group["lane"] - 0.4 + offsets[chosen], (group["end"] - group["begin"]) / size,
            left=group["begin"] / size, height=wide[chosen], align="edge",
            color=style.LOOKS[str(fate)].color, edgecolor="white", linewidth=rim, zorder=3,
        )  # fmt: skip
    _name_bars(axes, rows, size, data.best)


def _offsets(rows: pd.DataFrame) -> np.ndarray:
    """Where in its lane the share of a GPU is drawn: above those it shares the GPU with."""
    offsets = np.zeros(len(rows))
    for _, lane in rows.reset_index(drop=True).groupby("lane"):
        held: list[tuple[float, float, float]] = []
        for place, row in zip(lane.index, _stays_of(lane), strict=True):
            held = [h for h in held if h[0] > row.begin + _ROUNDING]
            taken: Sequence[float] = sorted(h[1] for h in held)
            start = 0.0
            for low in taken:
                if start + row.share * 0.8 <= low + _ROUNDING:
                    break
                start = max(start, max(h[2] for h in held if h[1] == low))
            offsets[place] = start
            held.append((row.end, start, start + row.share * 0.8))
    return offsets


def _name_bars(axes: Axes, rows: pd.DataFrame, size: float, best: str | None) -> None:
    """Ids inside the bars that are wide enough for them; the best in any case."""
    whole = float(rows["end"].max())
    for stay in _stays_of(rows):
        wide = (stay.end - stay.begin) / whole
        if stay.trial != best and (wide < 0.012 * len(stay.trial) or stay.share < 0.5):
            continue
        axes.text(
            (stay.begin + stay.end) / 2 / size, stay.lane, stay.trial, ha="center", va="center",
            fontsize=style.SMALL - 1, color=style.BEST, clip_on=True, zorder=5,
            fontweight="bold" if stay.trial == best else "normal", path_effects=style.halo(),
        )  # fmt: skip


class _Stay(NamedTuple):
    trial: str
    lane: int
    begin: float
    end: float
    share: float


def _stays_of(rows: pd.DataFrame) -> list[_Stay]:
    columns = [rows[name].tolist() for name in _Stay._fields]
    return [_Stay(*values) for values in zip(*columns, strict=True)]
