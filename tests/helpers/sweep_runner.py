"""Runs sweeps of the tests on the shared cluster."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from sweeps import Sweep
from sweeps.results import Results


class Runner:
    """Runs sweeps on the shared cluster and looks for what they leave behind."""

    def __init__(self, address: str) -> None:
        self.address = address

    def run(self, values: dict[str, Any], out: Path, warm: bool = True) -> Results:
        base = {"extends": "tiny", **values.get("base", {})}
        sweep = {
            "selection": {"test_prompts": 0},
            "scheduler": {"kind": "none"},
            **values,
            "base": values["base"] if "program" in values else base,
            "cluster": {**values.get("cluster", {}), "address": self.address, "warm": warm},
        }
        return Sweep.from_dict(sweep).run(out, Console(file=io.StringIO()))
