"""``rlhf-sweep inspect``: where the roles of trials are, and how busy they were."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.errors import ConfigError, nearest
from sweeps.commands.files import path_argument
from sweeps.picture import draw_trial, draw_trials, with_services
from sweeps.terminal import make_console

if TYPE_CHECKING:
    from analysis.load import Sweep


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "inspect",
        help="draw which role of which trial is where, and how busy it was",
        description="Draw which role of which trial sits in which bundle of which node: from a run directory, "
        "running or not, or the placement groups of a live Ray cluster.",
    )
    parser.add_argument(
        "directory",
        nargs="?",
        type=path_argument,
        metavar="DIR",
        help="a run directory; or name --address",
    )
    parser.add_argument("--trial", metavar="ID", help="one trial in detail")
    parser.add_argument(
        "--address", metavar="ADDRESS", help="a live cluster instead: auto or HOST:PORT"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if (args.directory is None) == (args.address is None):
        raise ConfigError("inspect: name a run directory or --address, one of the two")
    lines = _cluster(args.address) if args.address else _directory(args.directory, args.trial)
    console = make_console()
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    return 0


def _directory(directory: Path, trial: str | None) -> Iterator[str]:
    import analysis
    from analysis.packed import is_packed
    from sweeps.busy import busy_lines

    sweep = analysis.load(directory)
    stored = (sweep.info.get("cluster") or {}).get("nodes") or []
    nodes = [_whole(node, place) for place, node in enumerate(stored)]
    records = _placements(directory, sweep)
    if trial is not None and trial not in records:
        raise ConfigError(
            f"--trial: {directory} holds no placement of trial {trial!r}{nearest(trial, records)}"
        )
    chosen = list(records) if trial is None else [trial]
    if not chosen:
        packed = "; a packed sweep keeps the node of each worker alone: load(...).placements"
        yield f"no placement of a trial in {directory}{packed if is_packed(directory) else ' yet'}"
        return
    services = _services(directory)
    if len(chosen) == 1:
        named = (records[chosen[0]].get("services") or {}).values()
        mine = [services[name] for name in named if name in services]
        yield from draw_trial(chosen[0], with_services(records[chosen[0]], mine), nodes)
    else:
        states = {**dict.fromkeys(services, "shared"), **_states(sweep)}
        yield from draw_trials({**services, **records}, nodes, states)
    found = busy_lines(sweep.iterations, chosen)
    yield from ["", *found] if found else []


def _whole(node: dict[str, Any], place: int) -> dict[str, Any]:
    """A node of ``sweep.json`` with what is drawn of it, where it was left out."""
    usual = {"name": f"node {place}", "cpus": 0, "gpus": 0, "memory_gb": 0}
    return usual | {key: value for key, value in node.items() if value is not None}


def _placements(directory: Path, sweep: Sweep) -> dict[str, dict[str, Any]]:
    """What each trial's ``placement.json`` holds, where it is there and whole."""
    folders = [directory / "trials" / str(trial) for trial in sweep.trials.index]
    return dict(_read(folders))


def _services(directory: Path) -> dict[str, dict[str, Any]]:
    """The same of each service that trials share."""
    return dict(_read(sorted((directory / "services").glob("*"))))


def _read(folders: Iterable[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    from analysis import shapes
    from analysis.files import read_object

    for folder in folders:
        # What is wrong with it stands in the warnings of the sweep.
        found = read_object(folder / "placement.json", folder.name, [], shapes.PLACEMENT)
        if found and found.get("bundles"):
            yield folder.name, found


def _states(sweep: Sweep) -> dict[str, str]:
    frame = sweep.trials
    return {
        str(trial): str(row["outcome"]) if row["state"] == "ended" else str(row["state"])
        for trial, row in frame.iterrows()
    }


def _cluster(address: str) -> Iterator[str]:
    from dataclasses import asdict

    from sweeps.config import ClusterConfig
    from sweeps.tuning import cluster

    with cluster.running(ClusterConfig(address=address)) as nodes:
        placed, waiting = cluster.groups()
        yield from draw_trials(placed, [asdict(node) for node in nodes], {})
    for name, what in waiting.items():
        yield f"waits for nodes: group {name}, {what}"
