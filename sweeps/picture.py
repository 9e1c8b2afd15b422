"""Where the roles of trials are, drawn as text: from a plan, or from what ``placement.json`` says. Pure.

At most 100 columns and no colour, so that it can be pasted anywhere.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlhf_core.runtime.placement import Node, PlacementPlan

WIDTH = 100
MOST_CELLS = 8
Record = Mapping[str, Any]


def planned(plan: PlacementPlan, place: Sequence[int]) -> dict[str, Any]:
    """The record that ``draw_trial`` takes, of a plan whose bundles lie on the nodes with these positions.

    Args:
        plan: The trial.
        place: Node of every bundle; bears the node's position as its id.
    """
    record = plan.as_dict()
    for bundle, node in zip(record["bundles"], place, strict=True):
        bundle["node"] = str(node)
    return record


def with_services(record: Record, services: Sequence[Record]) -> dict[str, Any]:
    """The record of a trial with the bundles of its services beside its own, as ``draw_trial`` takes it."""
    bundles, workers = list(record.get("bundles") or []), list(record.get("workers") or [])
    count = itertools.count()
    for service in services:
        index = {bundle["index"]: f"s{next(count)}" for bundle in service["bundles"]}
        bundles += [{**b, "index": index[b["index"]], "shared": True} for b in service["bundles"]]
        workers += [
            {**w, "bundle": index[w["bundle"]], "shared": True}
            for w in service.get("workers") or []
        ]
    return {**record, "bundles": bundles, "workers": workers}


def numbered(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """Nodes as ``draw_trial`` takes them, with their positions as ids."""
    return [{**asdict(node), "id": str(i)} for i, node in enumerate(nodes)]


def draw_trial(trial: str, record: Record, nodes: Sequence[Record]) -> list[str]:
    """Lines that show one trial: each node with a row for each worker, and the GPUs it has.

    Args:
        trial: Its name, or nothing.
        record: As in ``placement.json``.
        nodes: As ``cluster.nodes`` of ``sweep.json``; those that hold nothing are summed up in a line.
    """
    bundles = _by_node(record, nodes)
    # Nodes that an autoscaler could add have no id yet.
    nodes = [node for node in nodes if node.get("id")]
    used = [node for node in nodes if node["id"] in bundles]
    strategy, layout = record.get("strategy", "?"), record.get("layout", "?")
    placed = [bundle for found in bundles.values() for bundle in found]
    shared = sum(bool(bundle.get("shared")) for bundle in placed)
    beside = f" and {shared} shared" if shared else ""
    lines = [
        f"{trial + ': ' if trial else ''}layout {layout}, {strategy}, "
        f"{amount(len(placed) - shared, 'bundle')}{beside} on {len(used)} of {amount(len(nodes), 'node')}"
    ]
    for node in used:
        lines += ["", _node_line(node), *_rows(record, bundles[node["id"]], node)]
    idle = [str(node["name"]) for node in nodes if node["id"] not in bundles]
    if idle:
        lines += ["", *textwrap.wrap(f"holds nothing: {', '.join(idle)}", WIDTH)]
    return lines


def draw_trials(
    records: Mapping[str, Record], nodes: Sequence[Record], states: Mapping[str, str]
) -> list[str]:
    """Lines that show many trials: each node with a line for each trial that has bundles there.

    Args:
        records: ``{trial: as in placement.json}``.
        nodes: As in ``draw_trial``.
        states: ``{trial: a word}``.
    """
    lines: list[str] = []
    width = max(6, *(len(trial) for trial in records))
    for node in (node for node in nodes if node.get("id")):
        lines += ["", _node_line(node)]
        found = False
        for trial, record in records.items():
            bundles = _by_node(record, nodes).get(node["id"], [])
            if bundles:
                found = True
                head = f"  {trial:<{width}} {states.get(trial, ''):<11} "
                text = " | ".join(_short(record, bundles))
                lines += textwrap.wrap(
                    text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)
                )
        lines += [] if found else ["  -"]
    return lines[1:]


def _by_node(record: Record, nodes: Sequence[Record]) -> dict[str, list[Record]]:
    """Bundles by node id; those whose node is not known are left out."""
    known = {node.get("id") for node in nodes}
    found: dict[str, list[Record]] = {}
    for bundle in record.get("bundles") or []:
        node = bundle.get("node")
        if node in known:
            found.setdefault(node, []).append(bundle)
    return found


def _node_line(node: Record) -> str:
    parts = [
        amount(node["cpus"], "CPU"),
        amount(node["gpus"], "GPU"),
        f"{node['memory_gb']:.4g} GB",
    ]
    parts += [amount(a, name, "") for name, a in (node.get("custom") or {}).items()]
    shown = [f"{k}={v}" for k, v in (node.get("labels") or {}).items() if "node-group" not in k]
    return f"{node['name']}: {', '.join(parts)}" + (f"  [{' '.join(shown)}]" if shown else "")


def _rows(record: Record, bundles: Sequence[Record], node: Record) -> Iterator[str]:
    """A heading, and a row for each worker of these bundles, or for the bundle where it hosts none."""
    seats = [(bundle, worker) for bundle in bundles for worker in _seats(record, bundle)]
    shares = [worker.get("share") or bundle for bundle, worker in seats]
    asked = [
        (share.get("gpus") or 0.0, worker.get("gpus"))
        for share, (_, worker) in zip(shares, seats, strict=True)
    ]
    devices = _Devices(int(node["gpus"]), asked)
    yield _row("", "worker", ("CPUs", "GPUs", "GB"), devices.heading())
    before = None
    for (bundle, worker), share, cells in zip(seats, shares, devices.cells(), strict=True):
        index = "" if bundle["index"] == before else str(bundle["index"])
        before = bundle["index"]
        sizes = tuple(_number(share.get(key)) for key in ("cpus", "gpus", "memory_gb"))
        yield _row(index, _holds(bundle, worker), sizes, cells)


def _row(bundle: str, holds: str, sizes: tuple[str, ...], cells: str) -> str:
    cpus, gpus, memory = sizes
    return f"  {bundle:>4}  {holds:<22} {cpus:>6} {gpus:>6} {memory:>7}  {cells}".rstrip()


def _number(value: float | None) -> str:
    return f"{value:.3g}" if value else ""


def _seats(record: Record, bundle: Record) -> list[Record]:
    workers = [w for w in record.get("workers") or [] if w.get("bundle") == bundle["index"]]
    return workers or [{}]


def _holds(bundle: Record, worker: Record) -> str:
    if not worker:
        return str(bundle.get("owner", "-"))[:22]
    if len(worker.get("roles") or []) > 1:
        return "all roles"
    shared = " (shared)" if worker.get("shared") else ""
    return f"{worker['name']} {worker['index']}{shared}"[:22]


class _Devices:
    """The GPUs of a node as cells of a row, filled from the left by what comes first.

    Args:
        count: How many there are.
        asked: GPUs of each row, and the devices it was given where that is known.
    """

    def __init__(self, count: int, asked: Sequence[tuple[float, Sequence[str] | None]]) -> None:
        self.count, self.asked = count, asked
        self.filled = [0.0] * count
        # Shares of each row by device.
        self.held = [self._held(gpus, devices) for gpus, devices in asked]
        self.sharers = [sum(i in held for held in self.held) for i in range(count)]
        usual = 6 if count <= 4 else 4
        room = (WIDTH - len(_row("", "", ("", "", ""), "|"))) // count - 1 if self.drawn else usual
        most = max(self.sharers, default=0)
        self.width = max(usual, min(most, room))
        self.apart = most <= self.width

    @property
    def drawn(self) -> bool:
        return 0 < self.count <= MOST_CELLS

    def heading(self) -> str:
        """Numbers of the devices."""
        if not self.drawn:
            return ""
        names = [f"{'GPU ' if self.width >= 6 else ''}{i}" for i in range(self.count)]
        return "|" + "|".join(f"{name:<{self.width}}" for name in names) + "|"

    def cells(self) -> Iterator[str]:
        """``|###   |      |`` for half of the first of two GPUs; ``| 50%|    |`` where columns are too few."""
        if not self.drawn:
            yield from (f"GPU {', '.join(given)}" if given else "" for _, given in self.asked)
            return
        draw = self._bars if self.apart else self._percentages
        for cells in draw():
            yield "|" + "|".join(cells) + "|"

    def _percentages(self) -> Iterator[list[str]]:
        for held in self.held:
            texts = [f"{held[i]:.0%}" if i in held else "" for i in range(self.count)]
            yield [f"{text:>{self.width}}" for text in texts]

    def _bars(self) -> Iterator[list[str]]:
        """Each sharer of a device has a column of its own at least."""
        share, drawn, left = [0.0] * self.count, [0] * self.count, list(self.sharers)
        for held in self.held:
            cells = [" " * self.width] * self.count
            for i, part in held.items():
                left[i] -= 1
                start = max(drawn[i], min(round(share[i] * self.width), self.width - left[i] - 1))
                share[i] += part
                stop = min(round(share[i] * self.width), self.width - left[i])
                drawn[i] = max(stop, start + 1)
                bar = " " * start + "#" * (drawn[i] - start)
                cells[i] = f"{bar:<{self.width}}"
            yield cells

    def _held(self, gpus: float, devices: Sequence[str] | None) -> dict[int, float]:
        """The devices that were really given, or those that Ray would give: the fullest with room."""
        share = gpus if gpus < 1 else 1.0
        chosen = self._chosen(gpus, devices)
        for device in chosen:
            self.filled[device] += share
        return dict.fromkeys(chosen, share)

    def _chosen(self, gpus: float, devices: Sequence[str] | None) -> list[int]:
        given = [int(d) for d in devices or [] if str(d).isdigit() and int(d) < self.count]
        if given or gpus <= 0:
            return given
        if gpus >= 1:
            return [i for i, filled in enumerate(self.filled) if filled == 0][: int(gpus)]
        room = [i for i, filled in enumerate(self.filled) if filled + gpus <= 1 + 1e-3]
        return [max(room, key=lambda i: (self.filled[i], -i))] if room else []


def _short(record: Record, bundles: Sequence[Record]) -> Iterator[str]:
    """``0 head``, ``1-2 rollout``, ``3 critic, reward``: consecutive bundles of the same roles in one piece."""
    named = [(int(b["index"]), _roles(record, b)) for b in bundles]
    for (_, roles), run in itertools.groupby(enumerate(named), lambda p: (p[1][0] - p[0], p[1][1])):
        indices = [index for _, (index, _) in run]
        first, last = indices[0], indices[-1]
        yield f"{first} {roles}" if first == last else f"{first}-{last} {roles}"


def _roles(record: Record, bundle: Record) -> str:
    seats = [worker for worker in _seats(record, bundle) if worker]
    if not seats:
        return str(bundle.get("owner", "-"))
    if len(seats) == 1 and len(seats[0].get("roles") or []) > 1:
        return "all roles"
    counts: dict[str, int] = {}
    for worker in seats:
        counts[worker["name"]] = counts.get(worker["name"], 0) + 1
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counts.items())


def amount(count: float, unit: str, plural: str = "s") -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{count:.4g} {unit}" + ("" if count == 1 else plural)
