"""A node goes away for good: trials that need it end as infeasible, and the sweep goes on around them."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_runner import Runner

import analysis
from sweeps.decide.waiting import Waiting

pytestmark = pytest.mark.ray
NODE = {"num_cpus": 4, "object_store_memory": 80 * 10**6}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A node without GPUs, on which the sweep is driven."""
    from ray.cluster_utils import Cluster

    own = Cluster(
        initialize_head=True, head_node_args={**NODE, "num_gpus": 0, "include_dashboard": False}
    )
    yield own
    own.shutdown()


@pytest.mark.long
def test_a_lost_node_ends_its_trials_only(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shorter than anybody would like to wait for a node that may come back, longer than a trial takes.
    patient = functools.partial(Waiting, notice_s=0.5, every_s=0.5, patience_s=20.0)
    monkeypatch.setattr("sweeps.driver.Waiting", patient)
    lost, out = cluster.add_node(**NODE, num_gpus=1), tmp_path / "run"

    def lose() -> None:
        while not (out / "trials.jsonl").exists():
            time.sleep(0.05)
        cluster.remove_node(lost)

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    Runner(cluster.address).run(
        {
            "program": "sweep_helpers:GpuScriptProgram",
            "base": {},
            "space": {"gpus": {"choice": [0, 1]}},
            "search": {
                "trials": 3, "max_concurrent": 1, "objective": "script/loss", "direction": "minimize",
                "points": [{"gpus": 0}, {"gpus": 1}, {"gpus": 0}],
            },
        },
        out,
    )  # fmt: skip
    thread.join()
    sweep = analysis.load(out)
    assert sweep.warnings == ()
    assert sweep.trials["outcome"].tolist() == ["completed", "infeasible", "completed"]
    reason = sweep.trials.loc["t0001", "reason"]
    assert "no node can hold bundle 0 (script: 1 CPU, 1 GPU)" in reason
    assert "lacks 1 GPU" in reason
    lines = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    steps = [(line["trial"], line["state"]) for line in lines]
    assert ("t0001", "waiting") in steps
    # Its slot went to the next trial, which ended first.
    assert steps.index(("t0002", "ended")) < steps.index(("t0001", "ended"))
