"""A disk without room ends the sweep in order, whoever meets it first; no trial is blamed for it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.search import Searcher

from rlhf_core.runtime.placement import Node
from rlhf_core.store import LocalStore
from sweeps.driver import SweepDriver
from sweeps.load import load_sweep
from sweeps.record import RunDirectory
from sweeps.tuning.plugins import DRIVERS, NothingRecorded, SweepCallback, SweepSearcher
from sweeps.tuning.study import Study
from sweeps.tuning.trainable import ProgramTrainable

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[SweepDriver]:
    search = {"trials": 4, "objective": "script/loss", "direction": "minimize"}
    program = {"program": "sweep_helpers:ScriptProgram", "scheduler": {"kind": "none"}}
    loaded = load_sweep({**program, "space": {"x": {"float": [0.0, 6.0]}}, "search": search})
    study = Study(tmp_path, "s", loaded.config.search, loaded.space, lambda params: [])
    driver = SweepDriver(loaded, RunDirectory(tmp_path), study, [Node("a", 8.0, 0.0, 8.0)], 2)
    DRIVERS["key"] = driver
    yield driver
    del DRIVERS["key"]


def plugins(driver: SweepDriver) -> tuple[SweepSearcher, SweepCallback, Any]:
    searcher, callback = SweepSearcher("key", {}), SweepCallback("key", None)
    return searcher, callback, SimpleNamespace(config=searcher.suggest("tune"))


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_recorded_after_a_line_that_found_no_room(
    driver: SweepDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher, callback, trial = plugins(driver)

    def fails(*_: object) -> None:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "append", fails)
        callback.on_trial_start(0, [], trial)
    before = files(tmp_path)
    # There is room again, but what came in between is lost.
    callback.on_trial_result(0, [], trial, {"iteration": 1, "script/loss": 1.0})
    callback.on_trial_complete(0, [], trial)
    assert searcher.suggest("next") == Searcher.FINISHED
    with pytest.raises(NothingRecorded):
        callback.on_step_end(0, [])
    assert files(tmp_path) == before
    assert driver.broken is FULL
    assert driver.problems == []


def test_a_journal_without_room_counts_as_well(
    driver: SweepDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, callback, trial = plugins(driver)

    def fails(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(driver.study, "tell", fails)
    callback.on_trial_complete(0, [], trial)
    assert driver.broken is FULL


class RoleError(RuntimeError):
    """As Ray hands on the error of a role."""

    cause = FULL


@pytest.mark.parametrize("error", [FULL, RoleError("No space left on device")])
def test_a_trial_that_found_no_room_does_not_fail(
    driver: SweepDriver, tmp_path: Path, error: Exception
) -> None:
    class Trainable(ProgramTrainable):
        def __init__(self) -> None:
            self.setup({})

        def _step(self) -> dict[str, Any]:
            raise error

    _, callback, trial = plugins(driver)
    before = files(tmp_path)
    result = Trainable().step()
    assert result["done"]
    callback.on_trial_result(0, [], trial, result)
    callback.on_trial_complete(0, [], trial)
    assert driver.broken is not None
    assert "t0000" in str(driver.broken)
    assert files(tmp_path) == before
