from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlhf_core.runtime.placement import Node
from sweeps.driver import SweepDriver, TrialRecord
from sweeps.live import LiveView, time_left
from sweeps.load import load_sweep
from sweeps.outcomes import Outcome
from sweeps.record import RunDirectory
from sweeps.tuning.study import Study


@pytest.fixture
def driver(tmp_path: Path) -> SweepDriver:
    """Four trials, two at a time."""
    loaded = load_sweep(
        {
            "program": "sweep_helpers:ScriptProgram",
            "space": {"x": {"float": [0.0, 6.0]}},
            "search": {"trials": 4, "objective": "script/loss", "direction": "minimize"},
            "scheduler": {"kind": "none"},
        }
    )
    study: Any = Study(tmp_path, "s", loaded.config.search, loaded.space, lambda params: [])
    nodes = [Node("a", 8.0, 0.0, 8.0)]
    return SweepDriver(loaded, RunDirectory(tmp_path), study, nodes, max_concurrent=2)


def started(driver: SweepDriver) -> TrialRecord:
    record = driver.next_trial()
    assert record is not None
    driver.placed(record.trial)
    return record


def test_interrupted_trials_do_not_count_as_done(driver: SweepDriver) -> None:
    started(driver)
    started(driver)
    driver.interrupt()
    line = LiveView(Console(), 10, 1.0).headline(driver).plain
    assert line.startswith("0/4 trials done, 2 interrupted; ")


def test_nothing_is_said_of_the_time_left_before_half_a_trial(driver: SweepDriver) -> None:
    record, now = started(driver), time.time()
    record.iteration = 4
    assert time_left(driver, 10, now + 40) is None
    record.iteration = 5
    record.times["placed"] = now
    # 100 s a trial: 50 s of this one and three more of them, two at a time.
    assert time_left(driver, 10, now + 50) == pytest.approx((50 + 3 * 100) / 2)


def test_the_time_left_follows_the_trials_that_ended(driver: SweepDriver) -> None:
    first, second, now = started(driver), started(driver), time.time()
    for record, end in ((first, 10.0), (second, 30.0)):
        record.times["placed"] = now
        driver.end(record.trial, Outcome.COMPLETED)
        record.times["ended"] = now + end
    assert time_left(driver, None, now + 30) == pytest.approx(2 * 20 / 2)
    driver.given_up = "all failed alike"
    assert time_left(driver, None, now + 30) == 0
