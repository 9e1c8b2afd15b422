"""Copies a finished sweep into ``data/NAME``, small enough to commit: without checkpoints, or packed as Parquet
beside the last judgement.

rlhf-sweep run quickstart --out runs/quickstart
python analysis/notebooks/record.py runs/quickstart quickstart
rlhf-sweep run analysis/notebooks/wide.yaml --out runs/wide
python analysis/notebooks/record.py runs/wide wide --packed
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import analysis

DATA = Path(__file__).with_name("data")
# What names this machine, or is large.
LEFT_OUT = shutil.ignore_patterns(
    "checkpoints", "*.png", "error.txt", "report.json", "driver.lock", "events.jsonl"
)


def record(source: Path, name: str, packed: bool) -> Path:
    """Replaces ``data/NAME`` by the run directory ``source``."""
    target = DATA / name
    if not (source / "sweep.json").is_file():
        raise SystemExit(f"{source} is no run directory")
    shutil.rmtree(target, ignore_errors=True)
    if packed:
        analysis.load(source).to_parquet(target)
        if (source / "best.json").is_file():
            shutil.copy(source / "best.json", target)
    else:
        shutil.copytree(source, target, ignore=LEFT_OUT)
    return target


if __name__ == "__main__":
    options, named = sys.argv[3:], sys.argv[1:3]
    if len(named) != 2 or options not in ([], ["--packed"]):
        raise SystemExit(__doc__)
    record(Path(named[0]), named[1], bool(options))
