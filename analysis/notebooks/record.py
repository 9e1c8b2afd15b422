"""Copies a finished sweep into ``data/NAME`` without its checkpoints, small enough to commit.

rlhf-sweep run quickstart --out runs/quickstart
python analysis/notebooks/record.py runs/quickstart quickstart
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

DATA = Path(__file__).with_name("data")
LEFT_OUT = shutil.ignore_patterns("checkpoints", "study.log", "*.png", "error.txt")


def record(source: Path, name: str) -> Path:
    """Replaces ``data/NAME`` by the run directory ``source``."""
    target = DATA / name
    if not (source / "sweep.json").is_file():
        raise SystemExit(f"{source} is no run directory")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=LEFT_OUT)
    return target


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    record(Path(sys.argv[1]), sys.argv[2])
