"""Smoothed values in a sweep: its driver and the analysis of its run directory choose alike."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import analysis
from rlhf_core.runtime.placement import Node
from sweeps.driver import SweepDriver
from sweeps.history import read_config
from sweeps.load import load_sweep
from sweeps.outcomes import Outcome
from sweeps.record import RunDirectory
from sweeps.results import chosen
from sweeps.trial_record import TrialRecord
from sweeps.tuning.study import Study

ALONE: dict[str, Any] = {"x": {"float": [0.01, 6.0], "log": True}}
# A choice, a parameter that hangs on it, and the seed.
MIXED: dict[str, Any] = {
    "x": {"float": [0.01, 6.0], "log": True, "when": {"steps": [3, 4]}},
    "steps": {"choice": [2, 3, 4]},
    "seed": {"int": [1, 3]},
}


def make(
    path: Path, space: dict[str, Any] = ALONE, trials: int = 10, **selection: Any
) -> SweepDriver:
    loaded = load_sweep(
        {
            "program": "sweep_helpers:SeededProgram",
            "space": space,
            "search": {
                "trials": trials,
                "objective": "script/loss",
                "direction": "minimize",
                "sampler": "random",
                "constraints": ["cost/x <= 5"],
            },
            "scheduler": {"kind": "none"},
            "selection": {"test_seeds": 0, **selection},
        }
    )
    study = Study(None, "s", loaded.config.search, loaded.space, lambda params: [])
    directory = RunDirectory(path)
    directory.write_sweep(loaded, [])
    return SweepDriver(loaded, directory, study, [Node("a", 8.0, 0.0, 8.0)], 2)


def begin(driver: SweepDriver) -> TrialRecord:
    record = driver.next_trial()
    assert record is not None
    driver.placed(record.trial)
    return record


def end(
    driver: SweepDriver,
    record: TrialRecord,
    loss: float,
    outcome: Outcome = Outcome.COMPLETED,
    cost: float = 1.0,
) -> None:
    driver.result(record.trial, {"iteration": 3, "script/loss": loss, "cost/x": cost})
    driver.end(record.trial, outcome=outcome)


@pytest.mark.parametrize("seed", range(4))
def test_the_driver_chooses_what_the_analysis_of_its_directory_calls_best(
    tmp_path: Path, seed: int
) -> None:
    driver, rng = make(tmp_path, MIXED, trials=14), np.random.default_rng(seed)
    ends = [*[Outcome.COMPLETED] * 10, Outcome.STOPPED, Outcome.DIVERGED, Outcome.FAILED]
    for outcome in rng.permutation(np.array(ends, dtype=object)):
        end(driver, begin(driver), float(rng.normal()), outcome)
    end(driver, begin(driver), -9.0, cost=7.0)
    sweep = analysis.load(tmp_path)
    board = analysis.leaderboard(sweep).set_index("trial")
    ranked = driver.choice.ranked(driver.records.values())
    assert len(ranked) == 10
    assert {c.trial: -c.value for c in ranked} == board["smoothed"].loc[
        board["rank"].notna()
    ].to_dict()
    assert [c.trial for c in ranked] == board.index[board["rank"].notna()].tolist()
    assert chosen(driver) == analysis.best(sweep)


def test_finalists_are_the_best_by_smoothed_values(tmp_path: Path) -> None:
    found = {}
    for smooth in (True, False):
        driver = make(tmp_path / str(smooth), top=2, test_seeds=[7, 8], share=2, smooth=smooth)
        for _ in range(10):
            record = begin(driver)
            # The smaller x the better.
            end(driver, record, math.log(record.params["x"]))
        records = driver.records.values()
        lucky = max(records, key=lambda record: record.params["x"])
        lucky.value = -5.0
        planned = driver.choice.planned(records)
        assert len(planned) == 4
        found[smooth] = lucky.trial in [trial for trial, _ in planned]
    assert found == {True: False, False: True}


def test_a_sweep_that_began_without_smoothing_goes_on_without(tmp_path: Path) -> None:
    make(tmp_path)
    assert read_config(tmp_path)["config"]["selection"]["smooth"] is True
    document = json.loads((tmp_path / "sweep.json").read_text())
    del document["config"]["selection"]["smooth"]
    (tmp_path / "sweep.json").write_text(json.dumps(document))
    assert load_sweep(read_config(tmp_path)["config"]).config.selection.smooth is False
