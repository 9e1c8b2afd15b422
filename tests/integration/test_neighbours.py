"""Sweeps beside other Ray clusters of the machine, each with a Ray of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray
SETS = {"search.trials": 1, "base.steps": 2, "selection.test_prompts": 0, "scheduler.kind": "none"}
SWEEP = {
    "program": "sweep_helpers:ScriptProgram",
    "space": {"x": {"float": [0.0, 6.0]}},
    "search": {"objective": "script/loss", "direction": "minimize"},
}


def start(out: Path, nodes: int) -> subprocess.Popen[str]:
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".yaml")
    rehearse = {"nodes": nodes, "cpus": 2, "gpus": 0, "memory_gb": 1}
    file.write_text(json.dumps({**SWEEP, "cluster": {"rehearse": rehearse}}))
    sets = [part for key, value in SETS.items() for part in ("--set", f"{key}={value}")]
    return subprocess.Popen(
        [sys.executable, "-m", "sweeps.cli", "run", str(file), "--out", str(out), *sets],
        env={key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.long
def test_two_sweeps_run_beside_another_cluster_and_beside_each_other(
    ray_address: str, tmp_path: Path
) -> None:
    # The session's cluster wrote itself down as the machine's current one.
    sweeps = [start(tmp_path / f"run{nodes}", nodes) for nodes in (1, 2)]
    printed = [sweep.communicate(timeout=200)[0] for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], printed
    for nodes in (1, 2):
        found = json.loads((tmp_path / f"run{nodes}/sweep.json").read_text())["cluster"]["nodes"]
        assert len(found) == nodes
        assert len({node["id"] for node in found}) == nodes
