"""``resume`` and ``run --resume``: what they refuse, in one line, and a sweep of which nothing is left to run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from sweeps.claim import claimed
from sweeps.cli import main
from sweeps.load import load_sweep
from sweeps.record import RunDirectory

SWEEP = {
    "name": "s",
    "program": "sweep_helpers:ScriptProgram",
    "base": {"steps": 2},
    "space": {"x": {"float": [0.0, 6.0]}},
    "search": {"trials": 1, "objective": "script/loss", "direction": "minimize"},
    "scheduler": {"kind": "none"},
    "selection": {"test_prompts": 0},
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A sweep that has begun."""
    folder = tmp_path / "run"
    RunDirectory(folder).write_sweep(load_sweep(SWEEP), [])
    return folder


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def sweep_file(folder: Path, **changes: object) -> str:
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump({**SWEEP, **changes}))
    return str(file)


def test_a_folder_without_a_sweep_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "holds no sweep.json" in refused(["resume", str(tmp_path)], capsys)


def test_a_newer_directory_is_not_resumed(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((out / "sweep.json").read_text())
    (out / "sweep.json").write_text(json.dumps({**document, "schema_version": 2}))
    assert "schema version 2" in refused(["resume", str(out)], capsys)


@pytest.mark.parametrize(
    "change", ["base.steps=3", "search.seed=1", "cluster.affinity=zone", "guards.max_kl=3"]
)
def test_what_trials_share_stays_as_it_was(
    out: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    said = refused(["resume", str(out), "--set", change], capsys)
    assert change.split("=")[0] in said
    assert "could not be compared" in said


def test_a_second_driver_is_refused(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with claimed(out):
        assert "another driver runs this sweep" in refused(["resume", str(out)], capsys)


def test_another_sweep_does_not_go_on_in_the_folder(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", sweep_file(tmp_path, base={"steps": 9}), "--out", str(out)]
    assert "--resume" in refused(argv, capsys)
    assert "another base.steps" in refused([*argv, "--resume"], capsys)
    assert "add --out" in refused([*argv[:2], "--resume"], capsys)


def test_a_sweep_of_which_nothing_is_left_starts_no_cluster(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunDirectory(out)
    line = {"trial": "t0000", "number": 0, "iteration": 2, "value": 1.0, "durations": {"run": 1.0}}
    record.write_trial("t0000", {"x": 3.0}, {"x": 3.0})
    record.ledger({**line, "state": "queued"})
    record.metrics("t0000", 2, {"script/loss": 1.0})
    record.ledger({**line, "state": "ended", "outcome": "completed", "reason": ""})
    argv = ["run", sweep_file(tmp_path), "--out", str(out), "--resume"]
    assert main(argv) == 0
    assert "nothing was left to run: all 1 trials have ended" in capsys.readouterr().out
    assert json.loads((out / "best.json").read_text())["trial"] == "t0000"


@pytest.mark.long
def test_a_judgement_that_cannot_be_made_again_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Recorded without its checkpoints.
    recorded = Path(__file__).resolve().parents[3] / "analysis/notebooks/data/quickstart"
    shutil.copytree(recorded, tmp_path / "run")
    assert main(["resume", str(tmp_path / "run")]) == 0
    before, after = (
        json.loads((d / "best.json").read_text()) for d in (recorded, tmp_path / "run")
    )
    assert after["trial"] == before["trial"]
    assert after["judgement"] == before["judgement"] is not None
    said = " ".join(capsys.readouterr().out.split())
    assert "judgement: there is no checkpoint" in said
    assert "the former one is kept" in said
