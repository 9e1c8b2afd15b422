"""A run directory of this toolkit, read as docs/run_directory.md describes it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import frames, shapes
from analysis.files import read_document, read_lines, read_object
from analysis.metrics_files import read_metrics
from analysis.space import axes
from analysis.sweep import UNDER_WAY, Sweep
from rlhf_core.errors import ConfigError
from search_spaces import SCHEMA_VERSION as SPACE_VERSION

_MOST_NAMED = 5


def from_run_directory(root: Path, cache: bool | None = None) -> Sweep:
    """The sweep in ``root``; see ``analysis.load``."""
    warnings: list[str] = []
    info = _sweep_file(root)
    space = _space_file(root, warnings)
    info |= {"began": _began(root, warnings)}
    ledger = _lines(root / "trials.jsonl", "trials.jsonl", warnings)
    states = frames.last_states(ledger)
    _add_unlisted(root, states, warnings)
    params, placements, missing = _read_documents(root, states, warnings)
    at_rest = not any(state.get("state") in UNDER_WAY for state in states.values())
    iterations, silent, found = read_metrics(root, list(states), cache, at_rest)
    warnings += found
    expected = [t for t in silent if _should_have_reported(states[t])]
    missing = {"metrics.jsonl": expected} | missing
    warnings += [f"{file}: missing for {_listed(t)}" for file, t in missing.items() if t]
    placed = [row for t, doc in placements.items() for row in frames.placement_rows(t, doc)]
    trials = frames.trials_frame(states, params, axes(space), str(info.get("name") or root.name))
    asked = info.get("trials")
    warnings += unfinished(trials, asked if isinstance(asked, int) else 0)
    return Sweep(
        path=root,
        info=info,
        space=space,
        trials=with_metrics(trials, iterations, info),
        iterations=iterations,
        placements=frames.placements_frame(placed),
        events=frames.events_frame(ledger),
        warnings=tuple(warnings),
    )


def unfinished(trials: pd.DataFrame, asked: int) -> list[str]:
    """What is missing of a sweep that has not reached its end, in one line; none of one that has."""
    ended, searched = trials["state"] == "ended", trials["purpose"] == "search"
    tests = len(trials) - int(searched.sum())
    total = max(asked + tests, len(trials))
    if ended.sum() == total:
        return []
    words = []
    for state, rows in trials[~ended].groupby("state", observed=True):
        words.append(f"{state} {_listed([str(trial) for trial in rows.index])}")
    if total > len(trials):
        words.append(f"{total - len(trials)} not begun")
    return [f"unfinished: {int(ended.sum())} of {total} trials have ended; {'; '.join(words)}"]


def _sweep_file(root: Path) -> dict[str, Any]:
    try:
        return read_document(root / "sweep.json", "sweep.json", shapes.SWEEP)
    except (FileNotFoundError, NotADirectoryError):
        what = "has none" if root.is_dir() else "is no directory"
        raise ConfigError(
            f"a run directory holds sweep.json, {root} {what}; "
            "point at a directory that `rlhf-sweep run` wrote"
        ) from None


def _began(root: Path, warnings: list[str]) -> list[float]:
    """When each driver of the sweep began; none where an older version wrote the directory."""
    if not (root / "events.jsonl").exists():
        return []
    lines = read_lines(root / "events.jsonl", "events.jsonl", warnings, shapes.EVENT)
    return [float(line["time"]) for line in lines if line["event"] == "began"]


def _space_file(root: Path, warnings: list[str]) -> dict[str, Any]:
    try:
        return read_document(root / "space.json", "space.json", shapes.SPACE, SPACE_VERSION)
    except FileNotFoundError:
        warnings.append("space.json: missing; scales and choices of the parameters are unknown")
        return {}


def _lines(path: Path, name: str, warnings: list[str]) -> list[dict[str, Any]]:
    try:
        return read_lines(path, name, warnings, shapes.LEDGER)
    except FileNotFoundError:
        warnings.append(f"{name}: missing")
        return []


def _add_unlisted(root: Path, states: dict[str, dict[str, Any]], warnings: list[str]) -> None:
    try:
        with os.scandir(root / "trials") as entries:
            found = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return
    for trial in found:
        if trial not in states:
            warnings.append(f"trials.jsonl: no line of trial {trial}, which has a folder")
            states[trial] = {"state": "unknown", "durations": {}}


Documents = dict[str, dict[str, Any]]


def _read_documents(
    root: Path, states: Mapping[str, Any], warnings: list[str]
) -> tuple[Documents, Documents, dict[str, list[str]]]:
    """Parameters and placement of each trial, and who lacks which file though it has reported."""
    found: tuple[Documents, Documents] = ({}, {})
    missing: dict[str, list[str]] = {"params.json": [], "placement.json": []}
    kinds = (shapes.PARAMS, shapes.PLACEMENT)
    for trial, state in states.items():
        for held, shape, (name, without) in zip(found, kinds, missing.items(), strict=True):
            place = f"trials/{trial}/{name}"
            document = read_object(f"{root}/{place}", place, warnings, shape)
            if document is not None:
                held[trial] = document
            elif _should_have_reported(state):
                without.append(trial)
    return *found, missing


def _should_have_reported(state: Mapping[str, Any]) -> bool:
    return state.get("outcome") in ("completed", "stopped")


def _listed(trials: Sequence[str]) -> str:
    shown = ", ".join(trials[:_MOST_NAMED])
    rest = len(trials) - _MOST_NAMED
    return shown + (f" and {rest} more trials" if rest > 0 else "")


def with_metrics(
    trials: pd.DataFrame, iterations: pd.DataFrame, info: Mapping[str, Any]
) -> pd.DataFrame:
    """``trials`` with the last value of every metric, and how far each trial came."""
    joined = trials.join(frames.final_values(iterations))
    reached = iterations.groupby("trial")["iteration"].max()
    reached = reached.set_axis(reached.index.astype("str")).reindex(joined.index)
    ended = joined["state"] == "ended"
    known = joined["iteration"].where(ended)
    joined["iteration"] = known.fillna(reached.astype("Int64")).fillna(joined["iteration"])
    objective = info.get("objective")
    column = f"final.{objective.get('metric')}" if isinstance(objective, Mapping) else ""
    if column in joined:
        joined["value"] = joined["value"].where(ended, joined[column])
    return joined
