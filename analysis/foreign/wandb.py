"""CSV exports of Weights & Biases: the table of runs, or the points of a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from analysis.foreign.build import Foreign
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError
from rlhf_core.metrics import entry

_STATES = {
    "finished": ("ended", "completed"),
    "failed": ("ended", "failed"),
    "crashed": ("ended", "failed"),
    "killed": ("ended", "stopped"),
    "running": ("started", None),
    "pending": ("queued", None),
}
_RUN_FIELDS = (
    "Name",
    "ID",
    "State",
    "Notes",
    "User",
    "Tags",
    "Created",
    "Runtime",
    "Sweep",
    "Group",
)
_STEPS = ("Step", "_step", "global_step", "Relative Time (Process)", "Relative Time (Wall)")


def from_csv(path: Path) -> Sweep:
    """Read an export.

    In a table of runs a column of numbers whose name holds a slash or stands in the catalogue is a
    metric (``final.<name>``), any other column a parameter: W&B does not tell the two apart. In an
    export of a chart each ``run - metric`` is a curve.

    Raises:
        ConfigError: The file is missing or neither of the two.
    """
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as CSV: {error}") from None
    found = Foreign(path.stem, path)
    step = next((name for name in _STEPS if name in table), None)
    if "Name" in table:
        _runs(table, found)
    elif step is not None:
        _chart(table, step, found)
    else:
        raise ConfigError(
            f"{path}: a W&B export has a column Name (runs) or Step (a chart), this has "
            f"{', '.join(map(str, table.columns[:6]))}"
        )
    return found.sweep()


def _runs(table: pd.DataFrame, found: Foreign) -> None:
    held = [str(c) for c in table.columns if c not in _RUN_FIELDS]
    metrics = [name for name in held if _is_metric(table[name], name)]
    for number, row in enumerate(table.to_dict("records")):
        trial = _distinct(str(row["Name"]), found.states)
        state, outcome = _STATES.get(str(row.get("State", "finished")), ("unknown", None))
        created = pd.to_datetime(str(row.get("Created")), utc=True, errors="coerce")
        started = created.timestamp() if pd.notna(created) else None
        found.states[trial] = {
            "number": number, "state": state, "outcome": outcome, "started": started,
        }  # fmt: skip
        if started is not None and outcome and pd.notna(row.get("Runtime")):
            found.states[trial]["ended_at"] = started + float(row["Runtime"])
        known = {k: v for k, v in row.items() if pd.notna(v)}
        found.params[trial] = {k: known[k] for k in held if k in known and k not in metrics}
        found.finals[trial] = {k: float(known[k]) for k in metrics if k in known}


def _is_metric(values: pd.Series[Any], name: str) -> bool:
    return pd.api.types.is_numeric_dtype(values) and ("/" in name or entry(name) is not None)


def _distinct(name: str, taken: dict[str, Any]) -> str:
    count, free = 1, name
    while free in taken:
        count += 1
        free = f"{name}#{count}"
    return free


def _chart(table: pd.DataFrame, step: str, found: Foreign) -> None:
    for column in map(str, table.columns):
        run, dash, metric = column.partition(" - ")
        if not dash or metric.endswith(("__MIN", "__MAX")):
            continue
        curve = table[[step, column]].dropna()
        lines = found.lines.setdefault(run, [])
        # The export does not say how a run ended.
        found.states.setdefault(run, {"number": len(found.states), "state": "unknown"})
        lines += [
            {"iteration": int(place), metric: float(value)}
            for place, value in curve.itertuples(index=False)
        ]
    for run, lines in found.lines.items():
        merged: dict[int, dict[str, Any]] = {}
        for line in lines:
            merged.setdefault(line["iteration"], {}).update(line)
        found.lines[run] = list(merged.values())
