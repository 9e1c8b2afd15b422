"""From the raw lines of a recording to a table."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.errors import ConfigError
from sweeps.replay.table import DIVERGED, Header, Run, Table

HEADER = "grid.json"
SECONDS = "time/iteration"
COST = (
    "core-seconds of the whole trial in one process, spread over its iterations as time/iteration is; "
    "GPUs were logical"
)


def pack(folder: Path, metrics: Collection[str] | None = None, cost: str = COST) -> Table:
    """The table of a recording.

    Args:
        folder: Holds ``grid.json`` and ``*.jsonl`` files with one line for each run (docs/replay.md).
        metrics: Those to keep; None keeps all.
        cost: What the seconds are, in words.

    Raises:
        ConfigError: The folder is no recording, a line does not belong to it, or runs on tuning seeds are missing.
    """
    header = _header(folder, cost)
    runs = dict(_runs(folder, header, metrics))
    wanted = [
        (number, seed)
        for number in range(len(header.configurations))
        for seed in header.tuning_seeds
    ]
    missing = [key for key in wanted if key not in runs]
    if missing:
        number, seed = missing[0]
        raise ConfigError(
            f"{folder}: {len(missing)} of {len(wanted)} runs on tuning seeds are missing, the first is "
            f"configuration {number} with seed {seed}; let the recorder finish"
        )
    return Table(header, runs)


def _header(folder: Path, cost: str) -> Header:
    try:
        grid = json.loads((folder / HEADER).read_text())
        levels = {key: tuple(values) for key, values in grid["levels"].items()}
        tuning, test = tuple(grid["tuning_seeds"]), tuple(grid["test_seeds"])
        return Header(grid["base"], levels, tuning, test, int(grid["iterations"]), cost)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{folder}: a recording holds {HEADER} with base, levels, tuning_seeds, test_seeds and iterations, "
            f"but reading it failed: {error!r}"
        ) from None


def _runs(
    folder: Path, header: Header, metrics: Collection[str] | None
) -> Iterator[tuple[tuple[int, int], Run]]:
    known = (*header.tuning_seeds, *header.test_seeds)
    for place, line in _lines(folder):
        number, seed = header.nearest(line["params"]), int(line["seed"])
        if number != line["config"] or seed not in known:
            raise ConfigError(
                f"{place}: configuration {line['config']} with seed {seed} is none of {HEADER}; "
                "the recording is of another grid"
            )
        yield (number, seed), _run(line, metrics)


def _lines(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(folder.glob("*.jsonl")):
        for count, text in enumerate(file.read_text().splitlines(), 1):
            try:
                yield f"{file.name}:{count}", json.loads(text)
            except ValueError:
                # A recorder that was killed leaves a torn line and repeats the run.
                continue


def _run(line: Mapping[str, Any], metrics: Collection[str] | None) -> Run:
    rows = line["iterations"] or [{"iteration": 0}]
    seconds = _spread(float(line["core_seconds"]), [row.get(SECONDS) for row in rows])
    return Run(
        iterations=tuple(int(row["iteration"]) for row in rows),
        metrics=tuple(_measured(row, metrics) for row in rows),
        seconds=tuple(seconds),
        outcome=str(line["outcome"]),
        reason=str(line["reason"]) if line["outcome"] == DIVERGED else "",
    )


def _measured(row: Mapping[str, Any], metrics: Collection[str] | None) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if "/" in name
        and (metrics is None or name in metrics)
        and isinstance(value, int | float)
        and math.isfinite(value)
    }


def _spread(total: float, measured: list[float | None]) -> list[float]:
    """``total`` in the proportion of what was measured; what was not measured counts as a mean one."""
    known = [value for value in measured if value]
    mean = float(np.mean(known)) if known else 1.0
    weights = np.array([value or mean for value in measured])
    return list(total * weights / weights.sum())
