"""A driver of trials with and without a GPU, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_core.runtime.placement import Node
from sweeps.decide.waiting import Waiting
from sweeps.driver import SweepDriver
from sweeps.load import load_sweep
from sweeps.record import RunDirectory
from sweeps.tuning.study import Study

SMALL, LARGE = Node("small", 8.0, 0.0, 8.0), Node("large", 8.0, 1.0, 8.0)


def make(tmp_path: Path, **values: Any) -> SweepDriver:
    loaded = load_sweep(
        {
            "program": "sweep_helpers:GpuScriptProgram",
            "space": {"gpus": {"choice": [0, 1]}},
            "search": {
                "trials": 4, "objective": "script/loss", "direction": "minimize",
                "points": [{"gpus": 1}, {"gpus": 0}, {"gpus": 1}, {"gpus": 0}],
            },
            "scheduler": {"kind": "none"},
            **values,
        }
    )  # fmt: skip
    study: Any = Study(tmp_path, "s", loaded.config.search, loaded.space, lambda params: [])
    driver = SweepDriver(loaded, RunDirectory(tmp_path), study, [SMALL, LARGE], 1)
    driver.waiting = Waiting(notice_s=10, every_s=5, patience_s=60)
    return driver


def started(driver: SweepDriver) -> str:
    record = driver.next_trial()
    assert record is not None
    return record.trial
