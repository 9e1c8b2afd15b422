"""Learning curves of run directories, for comparison."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf_core.metrics import repeatable


def curve(file: Path) -> dict[int, dict[str, float]]:
    """Repeatable metrics of each iteration."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        line["iteration"]: repeatable(
            {k: v for k, v in line.items() if k not in ("iteration", "timestamp")}
        )
        for line in lines
    }
