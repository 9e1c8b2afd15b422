"""Fixtures of run directories that tests/helpers/run_directories.py writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from run_directories import Builder, simulate, simulate_cluster


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    """An empty sweep that maximises eval/heldout under eval/kl_response <= 20."""
    return Builder(tmp_path / "run")


@pytest.fixture
def every_outcome(builder: Builder) -> Builder:
    """One trial of each outcome, then one interrupted, one running and one queued."""
    builder.completed("t0000", 1.0)
    builder.completed("t0001", 2.0)
    for trial, outcome, value in (("t0002", "stopped", 0.4), ("t0003", "diverged", None)):
        builder.begin(trial)
        builder.report(trial, 1, eval__heldout=0.4, kl__response=30.0)
        builder.end(trial, outcome, value, iteration=1, reason=f"{outcome} by rule")
    builder.state("t0004", "queued")
    builder.end("t0004", "infeasible", reason="no node holds 4 GPUs", durations={"queue": 0.1})
    builder.begin("t0005")
    builder.end("t0005", "failed", reason="ValueError: boom")
    builder.begin("t0006")
    builder.end("t0006", "lost", reason="node died 3 times")
    builder.begin("t0007")
    builder.report("t0007", 1, eval__heldout=0.9)
    builder.state("t0007", "interrupted")
    builder.begin("t0008")
    builder.report("t0008", 3, eval__heldout=0.7)
    builder.state("t0009", "queued")
    return builder


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[[int], Path]:
    """Makes a directory of so many simulated trials."""

    def make(count: int) -> Path:
        builder = Builder(tmp_path / f"sim{count}", trials=count)
        simulate(builder, count)
        return builder.path

    return make


@pytest.fixture
def cluster(tmp_path: Path) -> Callable[[int], Path]:
    """Makes a directory of so many trials on two nodes."""

    def make(count: int) -> Path:
        builder = Builder(tmp_path / f"cluster{count}", trials=count)
        simulate_cluster(builder, count)
        return builder.path

    return make
