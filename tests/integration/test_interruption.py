"""Ends a sweep from outside and looks at what is left: the directory must load, and no process may remain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import analysis

pytestmark = [pytest.mark.ray, pytest.mark.long]
MARK = "RLHF_SWEEPS_TEST_MARK"
OPTIONS = {
    "search.trials": 6,
    "base.rollout.prompts_per_iteration": 16,
    "base.budget.iterations": 200,
    "selection.test_prompts": 0,
    "tracking.print_every_s": 1,
    # No trial may end by itself before it is ended from outside.
    "guards.max_kl": "null",
    "scheduler.kind": "none",
}


class Running:
    """A sweep in a session of its own, as a terminal would start it."""

    def __init__(self, out: Path, more: dict[str, object] | None = None) -> None:
        self.out, self.mark = out, uuid.uuid4().hex
        sets = [
            part
            for key, value in {**OPTIONS, **(more or {})}.items()
            for part in ("--set", f"{key}={value}")
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sweeps.cli", "run", "quickstart", "--out", str(out), *sets],
            env={**os.environ, MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, state: str, seconds: float = 120) -> None:
        """Until a trial is in this state."""
        ledger, deadline = self.out / "trials.jsonl", time.monotonic() + seconds
        while time.monotonic() < deadline:
            if ledger.exists() and f'"state": "{state}"' in ledger.read_text():
                return
            assert self.process.poll() is None, self.process.communicate()[0]
            time.sleep(0.2)
        raise AssertionError(f"no trial was {state} within {seconds} s")

    def processes(self) -> Iterator[tuple[psutil.Process, str]]:
        """Processes that this run started and that still live, with their names; others' may end meanwhile."""
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    yield process, " ".join(process.cmdline())[:100] or process.name()
            except psutil.Error:
                continue

    def left(self) -> list[str]:
        """What still lives, by name."""
        return [name for _, name in self.processes()]

    def settled(self, seconds: float = 20) -> list[str]:
        """What is left after some time to end."""
        deadline = time.monotonic() + seconds
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.2)
        return self.left()


@pytest.fixture
def running(tmp_path: Path, builtin_task: Path) -> Iterator[Running]:
    run = Running(tmp_path / "run")
    yield run
    if run.process.poll() is None:
        run.process.kill()


def interrupt(run: Running) -> None:
    run.process.send_signal(signal.SIGINT)


def interrupt_the_group(run: Running) -> None:
    os.killpg(run.process.pid, signal.SIGINT)


def interrupt_twice(run: Running) -> None:
    os.killpg(run.process.pid, signal.SIGINT)
    time.sleep(0.5)
    os.killpg(run.process.pid, signal.SIGINT)


def terminate(run: Running) -> None:
    run.process.terminate()


@pytest.mark.parametrize("end", [interrupt, interrupt_the_group, interrupt_twice, terminate])
def test_an_interrupted_sweep_leaves_a_directory_that_loads_and_no_process(
    running: Running, end: Callable[[Running], None]
) -> None:
    running.wait_for("started")
    time.sleep(2)
    end(running)
    output = running.process.communicate(timeout=60)[0]
    assert running.process.returncode == 130, output
    assert "Traceback" not in output
    assert f"rlhf-sweep resume {running.out}" in output
    assert running.settled() == []
    sweep = analysis.load(running.out)
    assert set(sweep.trials["state"].astype(str)) == {"interrupted"}
    assert len(sweep.iterations) > 0
    status = subprocess.run(
        [sys.executable, "-m", "sweeps.cli", "status", str(running.out), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(status.stdout)["states"]["interrupted"] == len(sweep.trials)
    storage = JournalStorage(JournalFileBackend(str(running.out / "study.log")))
    study = optuna.load_study(study_name="quickstart", storage=storage)
    # They stay open: whoever resumes the sweep goes on with them.
    open_ = [trial.number for trial in study.trials if not trial.state.is_finished()]
    assert open_ == sweep.trials["number"].tolist()


@pytest.mark.parametrize("end", [interrupt, interrupt_twice, terminate])
def test_an_interrupted_sweep_leaves_no_service_on_a_cluster_that_goes_on(
    ray_address: str, tmp_path: Path, builtin_task: Path, end: Callable[[Running], None]
) -> None:
    import ray
    from ray.util import placement_group_table

    shared = {f"base.resources.roles.{r}.placement": "shared" for r in ("reference", "reward")}
    joined = {"cluster.rehearse": "null", "cluster.address": ray_address}
    run = Running(tmp_path / "run", {**shared, **joined, "search.max_concurrent": 1})
    events, deadline = run.out / "services.jsonl", time.monotonic() + 120
    while not events.exists() or events.read_text().count('"started"') < 2:
        assert time.monotonic() < deadline
        assert run.process.poll() is None
        time.sleep(0.2)
    end(run)
    output = run.process.communicate(timeout=60)[0]
    assert run.process.returncode == 130, output
    ray.init(address=ray_address, log_to_driver=False, configure_logging=False)
    try:
        deadline = time.monotonic() + 20
        while left := [g for g in placement_group_table().values() if g["state"] != "REMOVED"]:
            assert time.monotonic() < deadline, left
            time.sleep(0.2)
    finally:
        ray.shutdown()


def test_an_interruption_while_ray_starts_leaves_no_process(running: Running) -> None:
    deadline = time.monotonic() + 60
    while not any("gcs_server" in command for command in running.left()):
        assert time.monotonic() < deadline
        assert running.process.poll() is None
        time.sleep(0.1)
    interrupt_the_group(running)
    running.process.communicate(timeout=60)
    assert running.process.returncode == 130
    assert running.settled() == []


def test_a_killed_driver_leaves_a_directory_that_loads(running: Running) -> None:
    running.wait_for("started")
    time.sleep(2)
    running.process.kill()
    running.process.communicate(timeout=60)
    sweep = analysis.load(running.out)
    assert set(sweep.trials["state"].astype(str)) <= {"queued", "placed", "started"}
    assert len(sweep.iterations) > 0
    assert running.settled(60) == []


def test_a_cluster_without_nodes_ends_the_sweep(running: Running) -> None:
    running.wait_for("started")
    raylets = [process for process, _ in running.processes() if process.name() == "raylet"]
    assert len(raylets) == 1
    raylets[0].kill()
    output = running.process.communicate(timeout=150)[0]
    assert running.process.returncode == 1, output
    assert "all nodes are gone" in output
    assert running.settled() == []
    trials = analysis.load(running.out).trials
    assert set(trials["state"].astype(str)) <= {"interrupted", "ended"}
    assert set(trials["outcome"].dropna().astype(str)) <= {"lost"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_last_judgement_can_be_interrupted(
    tmp_path: Path, builtin_task: Path, number: int
) -> None:
    short = {
        "search.trials": 1,
        "base.budget.iterations": 1,
        "base.rollout.prompts_per_iteration": 8,
        "selection.test_prompts": 384,
    }
    run = Running(tmp_path / "run", short)
    deadline = time.monotonic() + 120
    while not (run.out / "leaderboard.csv").exists():
        assert time.monotonic() < deadline
        assert run.process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    run.process.send_signal(number)
    output = run.process.communicate(timeout=60)[0]
    assert run.process.returncode == 130, output
    assert not (run.out / "best.json").exists()
    assert len(analysis.load(run.out).trials) == 1
