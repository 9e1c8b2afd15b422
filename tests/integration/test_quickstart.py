"""The main job as a newcomer does it: the quickstart, its winner alone, and the same on text of one's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from curves import curve

import analysis

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[2]
RATED_TEXT = Path(
    os.environ.get("RLHF_SWEEPS_RATED_TEXT", ROOT.parent / "shared/data/movie_reviews.tsv")
)


def command(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sweeps.cli", *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def judged(directory: Path) -> dict[str, Any]:
    judgement: dict[str, Any] = json.loads(command("best", str(directory), "--json"))["judgement"]
    return judgement


def assert_learned(judgement: dict[str, Any]) -> None:
    assert judgement["metric"] == "heldout"
    assert judgement["prompts"] >= 128
    assert judgement["standard_errors"] >= 3
    assert judgement["kl_response"] < 20


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quickstart") / "run"
    printed = command("run", "quickstart", "--out", str(out))
    assert "logical GPUs" in printed
    assert "standard errors" in printed
    return out


def test_the_quickstart_finds_a_policy_that_is_better_on_unseen_prompts(quickstart: Path) -> None:
    sweep = analysis.load(quickstart)
    assert len(sweep.trials) >= 8
    assert set(sweep.trials["outcome"]) <= {"completed", "stopped", "diverged"}
    searched = {name for name in sweep.trials if name.startswith("params.")}
    assert {
        "params.ppo.clip_range_low",
        "params.sync.interval",
        "params.resources.cpus_per_gpu",
        "params.optim.policy.lr",
        "params.ppo.kl.coef",
    } <= searched
    assert_learned(judged(quickstart))


def test_the_winner_alone_repeats_its_curve_bit_for_bit(quickstart: Path, tmp_path: Path) -> None:
    best = json.loads((quickstart / "best.json").read_text())["trial"]
    command("train", str(quickstart / "best.yaml"), "--out", str(tmp_path / "again"))
    again = curve(tmp_path / "again/metrics.jsonl")
    assert len(again) == 21
    assert again == curve(quickstart / f"trials/{best}/metrics.jsonl")


def test_a_trial_that_is_cut_in_two_equals_one_that_is_not(tmp_path: Path) -> None:
    config, short = ["train", "tiny", "--set", "eval.every_iterations=2"], "budget.iterations=3"
    command(*config, "--set", "budget.iterations=6", "--out", str(tmp_path / "whole"))
    command(*config, "--set", short, "--out", str(tmp_path / "parts"))
    command(*config, "--set", "budget.iterations=6", "--out", str(tmp_path / "parts"), "--resume")
    whole, parts = (curve(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts"))
    # Where the first part ended there is an evaluation that the whole does not have.
    parts[3] = {k: v for k, v in parts[3].items() if not k.startswith("eval/")}
    assert parts == whole


def test_the_rehearsal_places_split_roles_on_three_nodes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command("run", "rehearsal", "--out", str(out))
    sweep = analysis.load(out)
    assert sweep.trials["outcome"].tolist() == ["completed"] * 2
    assert len(sweep.info["cluster"]["nodes"]) == 3
    for trial in sweep.trials.index:
        mine = sweep.placements[sweep.placements["trial"] == trial]
        assert len(mine) == 7
        assert mine["node"].notna().all()
        assert mine["gpus"].sum() == 5


@pytest.mark.skipif(
    not RATED_TEXT.exists(), reason="no rated text; name one in RLHF_SWEEPS_RATED_TEXT"
)
def test_the_same_holds_on_real_movie_reviews(tmp_path: Path) -> None:
    task, out = tmp_path / "task", tmp_path / "run"
    command("prepare", "--data", str(RATED_TEXT), "--out", str(task))
    options = {"search.trials": 4, "base.data.task": str(task)}
    sets = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    command("run", "quickstart", "--out", str(out), *sets)
    assert_learned(judged(out))
