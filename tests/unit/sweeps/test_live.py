from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlhf_core.runtime.placement import Node
from sweeps.driver import SweepDriver
from sweeps.live import LiveView, time_left
from sweeps.load import load_sweep
from sweeps.outcomes import Outcome
from sweeps.record import RunDirectory
from sweeps.trial_record import TrialRecord
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


@pytest.mark.parametrize(
    ("rehearsed", "layout", "drawn"), [(True, "split", 1), (False, "split", 0), (True, "fused", 0)]
)
def test_a_rehearsal_draws_its_first_placement_once(
    tmp_path: Path, rehearsed: bool, layout: str, drawn: int
) -> None:
    from rlhf_core.config import TrialConfig, apply
    from rlhf_core.runtime.placement import plan_trial
    from sweeps.picture import planned
    from sweeps.tuning.cluster import LiveNode

    cluster = {"rehearse": {"nodes": 1}} if rehearsed else {"local": True}
    loaded = load_sweep({"base": "tiny", "cluster": cluster})
    study: Any = None
    nodes = [LiveNode("node 0", 64.0, 8.0, 512.0, id="0")]
    driver = SweepDriver(loaded, RunDirectory(tmp_path), study, [*nodes], max_concurrent=1)
    console = Console(file=io.StringIO(), width=100)
    view = LiveView(console, 10, every_s=1e9)
    view.refresh(driver)
    plan = plan_trial(apply(TrialConfig(), {"resources.layout": layout}))
    driver.first_placement = ("t0000", planned(plan, [0] * len(plan.bundles)))
    view.refresh(driver)
    view.refresh(driver)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("t0000: layout split, PACK, 7 bundles on 1 of 1 node") == drawn
    assert text.count("learner 0") == drawn
