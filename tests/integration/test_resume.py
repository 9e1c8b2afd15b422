"""A sweep whose driver is killed again and again ends as one that nothing disturbed."""

from __future__ import annotations

import io
import json
import multiprocessing
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from curves import curve
from rich.console import Console

import analysis
from rlhf_core.config import load_trial
from rlhf_core.errors import StorageError
from rlhf_core.metrics import repeatable
from sweeps import Sweep
from sweeps.cli import main
from sweeps.train import train

pytestmark = [pytest.mark.ray, pytest.mark.long]
KILLS, TRIALS, STEPS = 22, 12, 5


def drive(values: dict[str, Any], out: str) -> None:
    Sweep.from_dict(values).run(out, Console(file=io.StringIO()), resume=True)


@pytest.fixture(scope="module")
def drivers() -> Any:
    """Makes processes that have imported everything already, but know nothing of a sweep."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sweeps.sweep", "sweeps.tuning.runner", "sweeps.tuning.study"])
    return context


def diary_sweep(address: str, diary: Path) -> dict[str, Any]:
    return {
        "name": "diary",
        "program": "sweep_helpers:DiaryProgram",
        "base": {"steps": STEPS, "pause": 0.05, "diary": str(diary)},
        "space": {"x": {"float": [0.0, 6.0]}},
        "search": {
            "trials": TRIALS,
            "max_concurrent": 1,
            "objective": "script/loss",
            "direction": "minimize",
            "startup_trials": 4,
        },
        "scheduler": {"kind": "median", "grace": 2, "min_trials": 3},
        "selection": {"test_prompts": 0},
        "cluster": {"address": address},
    }


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def ended(out: Path) -> dict[str, Any]:
    """Outcome and value of each trial that the ledger says has ended; a torn line says nothing."""
    found: dict[str, Any] = {}
    for text in lines(out / "trials.jsonl"):
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if line["state"] == "ended":
            found[line["trial"]] = (line["outcome"], line["value"], line["number"])
    return found


@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_at_random_moments_loses_nothing_and_repeats_nothing(
    ray_address: str, drivers: Any, tmp_path: Path
) -> None:
    out, diary = tmp_path / "killed", tmp_path / "diary"
    values, moments = diary_sweep(ray_address, diary), random.Random(0)
    kills = 0
    finished: dict[str, Any] = {}
    while True:
        before, seen = len(lines(diary)), len(lines(diary)) + len(lines(out / "trials.jsonl"))
        process = drivers.Process(target=drive, args=(values, str(out)))
        process.start()
        steps, rest = moments.randint(0, 5), moments.uniform(0.0, 0.2)
        while process.is_alive() and kills < KILLS:
            if len(lines(diary)) + len(lines(out / "trials.jsonl")) >= seen + steps:
                time.sleep(rest)
                process.kill()
                kills += 1
                break
            time.sleep(0.02)
        process.join(90)
        again = {line.split()[0] for line in lines(diary)[before:]}
        assert again.isdisjoint(finished), "a finished trial ran again"
        now = ended(out)
        assert {t: now.get(t) for t in finished} == finished
        finished = now
        if process.exitcode == 0:
            break
        assert process.exitcode == -9
    assert kills == KILLS

    calm, calm_diary = tmp_path / "calm", tmp_path / "calm_diary"
    drive(diary_sweep(ray_address, calm_diary), str(calm))
    assert finished == ended(calm)
    disturbed, undisturbed = analysis.load(out), analysis.load(calm)
    assert analysis.best(disturbed) == analysis.best(undisturbed)
    column = "params.x"
    assert disturbed.trials[column].tolist() == undisturbed.trials[column].tolist()
    curves = [s.iterations[["trial", "iteration", "script/loss"]] for s in (disturbed, undisturbed)]
    assert curves[0].to_dict("list") == curves[1].to_dict("list")
    # A step that was under way when its process died is the only one that may be computed twice.
    repeated = Counter(line for line in lines(diary) if " step " in line)
    assert set(repeated) == {line for line in lines(calm_diary) if " step " in line}
    assert sum(repeated.values()) - len(repeated) <= KILLS


def test_a_ppo_trial_whose_driver_was_killed_goes_on_bit_for_bit(
    drivers: Any, builtin_task: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    values = {
        "base": {
            "extends": "tiny",
            "rollout": {"prompts_per_iteration": 16, "max_new_tokens": 8},
            "eval": {"prompts": 8, "every_iterations": 2},
            "budget": {"iterations": 8},
            "checkpoint": {"every_iterations": 2},
        },
        "space": {"ppo.kl.coef": {"float": [0.01, 0.2]}},
        "search": {"trials": 1},
        "scheduler": {"kind": "none"},
        "selection": {"test_prompts": 0},
        "cluster": {"rehearse": {"nodes": 1, "cpus": 8, "gpus": 2}},
    }
    process = drivers.Process(target=drive, args=(values, str(out)))
    process.start()
    metrics = out / "trials/t0000/metrics.jsonl"
    while len(lines(metrics)) < 6 and process.is_alive():
        time.sleep(0.01)
    process.kill()
    process.join()
    assert 6 <= len(lines(metrics)) < 9
    last = drivers.Process(target=drive, args=(values, str(out)))
    last.start()
    last.join(120)
    assert last.exitcode == 0
    sweep = analysis.load(out)
    assert sweep.events["state"].tolist().count("interrupted") == 1
    assert sweep.trials.loc["t0000", "iteration"] == 8
    alone = train(load_trial(out / "trials/t0000/config.json"))
    assert curve(metrics) == {m.iteration: repeatable(m.values) for m in alone}


def wait_for(process: Any, what: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert process.is_alive(), process.exitcode
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_running_sweep_is_steered(ray_address: str, drivers: Any, tmp_path: Path) -> None:
    out, diary = tmp_path / "run", tmp_path / "diary"
    values = diary_sweep(ray_address, diary)
    values["base"] |= {"steps": 60, "pause": 0.1}
    values |= {"search": {**values["search"], "trials": 2}, "scheduler": {"kind": "none"}}
    process = drivers.Process(target=drive, args=(values, str(out)))
    process.start()
    wait_for(process, lambda: "t0000 step 3" in lines(diary))
    assert main(["pause", str(out), "t0000"]) == 0
    wait_for(process, lambda: "t0001 step 3" in lines(diary))
    saved = sum("t0000 step" in line for line in lines(diary))
    assert main(["resume-trial", str(out), "t0000"]) == 0
    assert main(["extend", str(out), "--trials", "3"]) == 0
    assert main(["stop", str(out), "t0001"]) == 0
    process.join(120)
    assert process.exitcode == 0
    assert f"t0000 begin {saved}" in lines(diary)
    assert sorted(ended(out)) == ["t0000", "t0001", "t0002"]
    assert [ended(out)[t][0] for t in sorted(ended(out))] == ["completed", "stopped", "completed"]
    states = analysis.load(out).events.groupby("trial", observed=True)["state"].agg(list)
    assert states["t0000"] == [
        *("queued", "placed", "started", "paused"),
        *("queued", "placed", "started", "ended"),
    ]
    assert sum("t0000 step" in line for line in lines(diary)) == 60


def drive_and_tell(values: dict[str, Any], out: str, told: str) -> None:
    try:
        drive(values, out)
    except StorageError as error:
        Path(told).write_text(str(error))
        raise SystemExit(1) from None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 140 kB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=140k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may mount nothing")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_ends_the_sweep_in_order_and_it_goes_on_when_there_is_room(
    ray_address: str, drivers: Any, small_disk: Path, tmp_path: Path
) -> None:
    out, told, diary = small_disk / "run", tmp_path / "told", tmp_path / "diary"
    values = diary_sweep(ray_address, diary)
    values["scheduler"] = {"kind": "none"}
    process = drivers.Process(target=drive_and_tell, args=(values, str(out), str(told)))
    process.start()
    process.join(120)
    assert process.exitcode == 1
    assert "No space left on device" in told.read_text()
    assert f"`rlhf-sweep resume {out}`" in told.read_text()
    assert told.read_text().count("\n") == 0
    finished = ended(out)
    assert 0 < len(finished) < TRIALS
    assert {outcome for outcome, *_ in finished.values()} == {"completed"}
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    drive(values, str(out))
    assert {trial: ended(out)[trial] for trial in finished} == finished
    assert [outcome for outcome, *_ in ended(out).values()] == ["completed"] * TRIALS
    steps = Counter(line for line in lines(diary) if " step " in line)
    assert len(steps) == TRIALS * STEPS
    assert sum(steps.values()) <= len(steps) + 1
