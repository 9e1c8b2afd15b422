"""The folder of a ``ray.tune`` experiment: one folder per trial with ``result.json`` or ``progress.csv``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from analysis.files import read_lines, read_object
from analysis.foreign.build import Foreign, Record, flat
from analysis.sweep import Sweep

_RESULTS = ("result.json", "progress.csv")
# What Tune adds to each result and what is no metric.
_TUNE_OWN = frozenset(
    (
        "config",
        "pid",
        "node_ip",
        "hostname",
        "date",
        "trial_id",
        "experiment_id",
        "experiment_tag",
        "done",
        "should_checkpoint",
        "checkpoint_dir_name",
        "training_iteration",
        "timestamp",
        "iterations_since_restore",
        "time_since_restore",
        "timesteps_total",
        "timesteps_since_restore",
        "episodes_total",
    )
)
_OWN_NAMES = {
    "time_this_iter_s": "time/iteration",
    "time_total_s": "time/total",
}


def trial_folders(path: Path) -> list[Path]:
    """The trials' folders of an experiment, in order; none where ``path`` is no experiment."""
    if not path.is_dir():
        return []
    marks = ("params.json", "params.pkl", *_RESULTS)
    return sorted(
        folder
        for folder in path.iterdir()
        if folder.is_dir() and any((folder / name).exists() for name in marks)
    )


def from_experiment(path: Path, folders: list[Path]) -> Sweep:
    """Read an experiment; Tune's own fields are left out, except the times of iterations.

    A trial whose last result says ``done`` is completed, one with ``error.txt`` failed, any other
    interrupted. The objective is not recorded by Tune: pass ``metric`` and ``direction``.
    """
    found = Foreign(path.name, path)
    for number, folder in enumerate(folders):
        results = _results(folder, found.warnings)
        trial = str(results[-1].get("trial_id") or folder.name) if results else folder.name
        config = read_object(folder / "params.json", f"{folder.name}/params.json", found.warnings)
        if config is None and results:
            config = results[-1].get("config")
        found.params[trial] = flat(config or {}, ".")
        found.states[trial] = {"number": number, **_state(folder, results)}
        if results:
            found.lines[trial] = [_line(result) for result in results]
        else:
            found.warnings.append(f"{folder.name}: no result.json or progress.csv with results")
    return found.sweep()


def _results(folder: Path, warnings: list[str]) -> list[dict[str, Any]]:
    for name in _RESULTS:
        file = folder / name
        if not file.exists() or file.stat().st_size == 0:
            continue
        if name == "result.json":
            return read_lines(file, f"{folder.name}/{name}", warnings)
        rows = pd.read_csv(file).to_dict("records")
        return [{str(k): v for k, v in row.items()} for row in rows]
    return []


def _state(folder: Path, results: list[dict[str, Any]]) -> dict[str, Any]:
    error = folder / "error.txt"
    first, last = (results[0], results[-1]) if results else ({}, {})
    times = {"started": first.get("timestamp"), "ended_at": last.get("timestamp")}
    if error.exists():
        lines = error.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = lines[-1] if lines else ""
        return {"state": "ended", "outcome": "failed", "reason": reason, **times}
    if last.get("done"):
        return {"state": "ended", "outcome": "completed", **times}
    return {"state": "interrupted", "started": times["started"]}


def _line(result: Record) -> Record:
    named = flat({k: v for k, v in result.items() if k not in _TUNE_OWN}, "/")
    line = {
        _OWN_NAMES.get(name, name): value
        for name, value in named.items()
        if not name.startswith("config/") and isinstance(value, int | float)
    }
    return {
        "iteration": int(result.get("training_iteration") or 0),
        "timestamp": result.get("timestamp"),
        **line,
    }
