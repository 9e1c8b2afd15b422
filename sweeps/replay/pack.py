"""From the raw lines of a recording to a table: ``python -m sweeps.replay.pack RECORDING TABLE``."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import ConfigError
from sweeps.replay.table import DIVERGED, Header, Run, Table

HEADER = "grid.json"
SPENT, CPU_SECONDS = "core_seconds", "cost/cpu_seconds"
COST = "core-seconds of a trial in one process; no GPU took part"


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
        base = grid["base"]
        return Header(
            base=base,
            levels={key: tuple(values) for key, values in grid["levels"].items()},
            tuning_seeds=tuple(grid["tuning_seeds"]),
            test_seeds=tuple(grid["test_seeds"]),
            iterations=int(grid.get("iterations") or base["budget"]["iterations"]),
            objective=grid["objective"],
            tied=grid.get("tied", {}),
            cost=cost,
        )
    except (OSError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{folder}: a recording holds {HEADER} with base, levels, tuning_seeds, test_seeds and objective, "
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
    total = float(line[SPENT])
    # Without a count of its own every iteration took as long.
    spent = [float(row.get(SPENT, total * place / len(rows))) for place, row in enumerate(rows, 1)]
    return Run(
        iterations=tuple(int(row["iteration"]) for row in rows),
        metrics=tuple(
            {**_measured(row, metrics), CPU_SECONDS: cost}
            for row, cost in zip(rows, spent, strict=True)
        ),
        seconds=tuple(later - earlier for earlier, later in itertools.pairwise([0.0, *spent])),
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=Path, help="folder that the recorder filled")
    parser.add_argument("table", type=Path, help="the Parquet file to write")
    args = parser.parse_args()
    try:
        table = pack(args.recording)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    table.write(args.table)
    print(f"{len(table.runs)} runs, {args.table.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
