"""A driver that dies at any write: the next one ends with what an undisturbed one ends with."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import analysis
from rlhf_core.runtime.placement import Node
from rlhf_core.store import LocalStore
from sweeps.driver import SweepDriver
from sweeps.history import mend, read_history
from sweeps.load import load_sweep
from sweeps.outcomes import Outcome
from sweeps.record import RunDirectory
from sweeps.restore import restore
from sweeps.tuning.journal import Journal
from sweeps.tuning.study import Study

NODES = [Node("a", 8.0, 0.0, 8.0)]
STEPS = 4
SWEEP: dict[str, Any] = {
    "program": "sweep_helpers:ScriptProgram",
    "base": {"steps": STEPS},
    "space": {"x": {"float": [0.0, 6.0]}},
    "search": {
        "trials": 7,
        "objective": "script/loss",
        "direction": "minimize",
        "startup_trials": 3,
        "seed": 6,
        "points": [{"x": 2.0}, {"x": 5.0}],
    },
    "scheduler": {"kind": "median", "grace": 2, "min_trials": 2},
    "guards": {"max_kl": 10.0, "patience": 2},
}


class Killed(BaseException):
    """Stands for SIGKILL: nothing that catches exceptions may catch it."""


@dataclass
class World:
    """What outlives a driver: its directory, the trials' checkpoints and a diary of what they computed."""

    path: Path
    checkpoints: dict[str, int] = field(default_factory=dict)
    diary: list[tuple[str, int]] = field(default_factory=list)

    def driver(self, concurrent: int = 1, **values: Any) -> SweepDriver:
        """A new driver, of a new sweep or of one that goes on."""
        loaded = load_sweep({**SWEEP, **values})
        history = None
        if (self.path / "sweep.json").exists():
            mend(self.path)
            history = read_history(self.path)
        record = RunDirectory(self.path)
        record.write_sweep(loaded, [])
        record.event("began")
        study = Study(self.path, "s", loaded.config.search, loaded.space, lambda params: [])
        driver = SweepDriver(loaded, record, study, NODES, concurrent)
        if history is not None:
            restore(driver, history)
        return driver

    def run(self, driver: SweepDriver) -> None:
        """One trial after the other, as Tune calls the driver."""
        while (record := driver.next_trial()) is not None:
            driver.placed(record.trial)
            for result in self.results(record.trial, record.params["x"]):
                last = "outcome" in result
                go_on = last or driver.decide(record.trial, result)
                driver.result(record.trial, result)
                if not go_on:
                    break
            driver.end(record.trial, Outcome.COMPLETED)

    def results(self, trial: str, x: float) -> Iterator[dict[str, Any]]:
        """What the trial reports from its checkpoint on; what it reported last comes again."""
        known = self.checkpoints.get(trial, 0)
        if known:
            yield {**self.result(known, x), "again": True}
        for step in range(known + 1, STEPS + 1):
            self.diary.append((trial, step))
            self.checkpoints[trial] = step
            yield self.result(step, x)

    def result(self, step: int, x: float) -> dict[str, Any]:
        # Some trials diverge, some report a number that is not finite.
        loss = float("inf") if x > 5.8 and step == 3 else (x - 3.0) ** 2 + 1.0 / step
        end = {"outcome": "completed", "done": True} if step == STEPS else {}
        kl = 20.0 if x < 1.0 else 1.0
        return {"iteration": step, "script/loss": loss, "kl/response": kl, **end}

    def ended(self) -> dict[str, tuple[Any, ...]]:
        """What stands in the ledger of each trial that ended."""
        lines = [json.loads(line) for line in whole_lines(self.path / "trials.jsonl")]
        return {
            line["trial"]: (line["number"], line["outcome"], line["reason"], line["value"])
            for line in lines
            if line["state"] == "ended"
        }

    def suggested(self) -> dict[str, Any]:
        return {
            p.parent.name: json.loads(p.read_text()) for p in self.path.glob("trials/*/params.json")
        }


def whole_lines(path: Path) -> list[str]:
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


@contextmanager
def killed_at(write: int, torn: bool, death: BaseException | None = None) -> Iterator[list[int]]:
    """Counts writes to ledger, metrics, files and journal; at the one of this number the process dies."""
    count = [0]
    append, put, journal = LocalStore.append, LocalStore.put, Journal._write

    def counted(original: Any, tear: Any) -> Any:
        def writes(self: Any, *args: Any) -> Any:
            count[0] += 1
            if count[0] != write:
                return original(self, *args)
            if torn:
                tear(self, *args)
            raise death or Killed

        return writes

    def half_a_line(self: LocalStore, key: str, line: str) -> None:
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(line[: len(line) // 2])

    def half_a_log(self: Any, lines: list[str], *_: Any) -> None:
        with self._path.open("a") as file:
            file.write("".join(lines)[:10])
        # It died while it held the lock.
        self._lock_of_file.release = lambda: None

    with pytest.MonkeyPatch.context() as patch:
        # A killed process loses nothing that it wrote.
        patch.setattr("os.fsync", lambda _: None)
        patch.setattr(LocalStore, "append", counted(append, half_a_line))
        patch.setattr(LocalStore, "put", counted(put, lambda *_: None))
        patch.setattr(Journal, "_write", counted(journal, half_a_log))
        yield count


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, int]:
    """A sweep that ran through, and how often it wrote."""
    world = World(tmp_path_factory.mktemp("undisturbed"))
    with killed_at(-1, False) as count:
        world.run(world.driver())
    assert {outcome for _, outcome, *_ in world.ended().values()} >= {"completed", "stopped"}
    return world, count[0]


def survives(world: World, undisturbed: World, writes: list[tuple[int, bool]]) -> None:
    """Kills one driver after the other and compares the end."""
    finished: dict[str, Any] = {}
    for write, torn in [*writes, (-1, False)]:
        before = Counter(trial for trial, _ in world.diary)
        try:
            with killed_at(write, torn):
                world.run(world.driver())
        except Killed:
            pass
        after = Counter(trial for trial, _ in world.diary)
        assert [t for t in finished if after[t] > before[t]] == [], "a finished trial ran again"
        lost = {t: v for t, v in finished.items() if world.ended().get(t) != v}
        assert lost == {}
        finished = world.ended()
    assert world.ended() == undisturbed.ended()
    assert world.suggested() == undisturbed.suggested()
    # Nothing is computed twice: what was reported stands, and its trial goes on from there.
    assert Counter(world.diary) == Counter(undisturbed.diary)


@pytest.mark.parametrize("part", range(6))
def test_a_driver_that_dies_at_any_write_loses_nothing(
    undisturbed: tuple[World, int], tmp_path: Path, part: int
) -> None:
    moments = [(1 + part + 6 * i, i % 2 == 0) for i in range(4)]
    survives(World(tmp_path), undisturbed[0], moments)


@pytest.mark.parametrize("write", [20, 37, 61, 62, 63, 100])
def test_a_sweep_goes_on_after_a_full_disk(
    undisturbed: tuple[World, int], tmp_path: Path, write: int
) -> None:
    world, full = World(tmp_path), OSError(errno.ENOSPC, "No space left on device")
    with killed_at(write, True, full):
        driver = world.driver()
        with pytest.raises(OSError, match="No space left"):
            world.run(driver)
        assert driver.broke(full)
        before = sorted(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        # Nothing more is written, so that what is there is a beginning.
        driver.interrupt()
        after = sorted(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert before == after
    survives(world, undisturbed[0], [])


def test_durations_add_up_and_leave_out_the_time_between_two_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])

    def at(now: float) -> None:
        clock[0] = now

    world = World(tmp_path)
    driver = world.driver()
    record = driver.next_trial()
    assert record is not None
    at(1002.0)
    driver.placed(record.trial)
    for now, step in ((1003.0, 1), (1010.0, 2)):
        at(now)
        driver.result(record.trial, world.result(step, 2.0))
    # Killed here, and resumed an hour later.
    at(5000.0)
    driver = world.driver()
    again = driver.next_trial()
    assert again is not None
    assert again.trial == record.trial
    at(5001.0)
    driver.placed(again.trial)
    at(5002.0)
    driver.result(again.trial, {**world.result(2, 2.0), "again": True})
    at(5012.0)
    driver.result(again.trial, world.result(STEPS, 2.0))
    driver.end(again.trial, Outcome.COMPLETED)
    sweep = analysis.load(tmp_path)
    row = sweep.trials.loc["t0000"]
    assert [row[f"duration.{p}"] for p in ("queue", "start", "run")] == [3.0, 2.0, 17.0]
    assert analysis.status(sweep, now=5012.0)["elapsed"] == 22.0
    assert read_history(tmp_path).ran_s == 22.0
    assert sweep.iterations["iteration"].tolist() == [1, 2, STEPS]


@pytest.mark.long
@pytest.mark.parametrize("torn", [False, True])
def test_a_driver_that_dies_at_every_single_write_loses_nothing(
    undisturbed: tuple[World, int], tmp_path: Path, torn: bool
) -> None:
    whole, writes = undisturbed
    for write in range(1, writes + 1):
        world = World(tmp_path / str(write))
        world.path.mkdir()
        survives(world, whole, [(write, torn)])


def test_what_came_of_a_trial_is_synced_when_it_ends_and_no_report_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def named(descriptor: int) -> None:
        # Files that are replaced have another name until then.
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        synced.append(".".join(name.strip(".").split(".")[:2]))

    world = World(tmp_path)
    driver = world.driver(search={**SWEEP["search"], "trials": 1})
    monkeypatch.setattr(os, "fsync", named)
    world.run(driver)
    assert len(world.diary) == STEPS
    assert synced == ["study.log", "params.json", "metrics.jsonl", "trials.jsonl"]


def test_what_the_power_took_of_a_configuration_is_made_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    driver = world.driver()
    record = driver.next_trial()
    assert record is not None
    place = tmp_path / f"trials/{record.trial}/config.json"
    whole = place.read_text()
    for damaged in ("", "\0" * len(whole)):
        place.write_text(damaged)
        world.driver()
        assert place.read_text() == whole


def test_no_plan_is_kept_of_a_trial_that_ended(tmp_path: Path) -> None:
    world = World(tmp_path)
    driver = world.driver()
    record = driver.next_trial()
    assert record is not None
    assert driver.plan(record) is driver.plan(record)
    driver.end(record.trial, Outcome.COMPLETED)
    assert driver.plan(record) == driver.plan(record)
    assert driver._plans == {}
