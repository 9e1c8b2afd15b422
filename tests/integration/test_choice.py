"""Finalists of a real sweep run again on fresh seeds, and the quality of the search on a table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import analysis
from sweeps.config import SAMPLERS, SchedulerConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.ray
@pytest.mark.long
def test_the_best_trials_run_again_on_fresh_seeds(
    runner: Any, builtin_task: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    results = runner.run(
        {
            "name": "choice",
            "base": {
                "rollout": {"prompts_per_iteration": 16, "max_new_tokens": 12, "chunk_size": 8},
                "eval": {"prompts": 16, "every_iterations": 2},
                "budget": {"iterations": 2},
            },
            "space": {"ppo.kl.coef": {"float": [0.01, 0.2], "log": True}},
            "search": {"trials": 3, "sampler": "random"},
            "selection": {"top": 2, "test_seeds": [11, 12], "share": 2, "test_prompts": 0},
        },
        out,
    )
    sweep = analysis.load(out)
    assert sweep.warnings == ()
    runs = sweep.tests.trials
    assert runs["outcome"].tolist() == ["completed"] * 4
    assert sorted(runs["params.seed"]) == [11, 11, 12, 12]
    # Equal parameters on other seeds are other runs.
    for finalist, own in runs.groupby("of"):
        assert own["params.ppo.kl.coef"].nunique() == 1
        values = {*own["value"], float(sweep.trials.loc[str(finalist), "value"])}
        assert len(values) == 3
    table = analysis.finalists(sweep)
    assert results.best == table["trial"].iloc[0] == analysis.best(sweep)
    stored = json.loads((out / "best.json").read_text())
    assert stored["test"]["seeds"] == 2
    assert "seed:" not in (out / "best.yaml").read_text()
    storage = JournalStorage(JournalFileBackend(str(out / "study.log")))
    assert len(optuna.load_study(study_name="choice", storage=storage).trials) == 3


@pytest.mark.long
def test_the_benchmark_of_search_quality_plays_every_strategy() -> None:
    done = subprocess.run(
        [sys.executable, "tests/benchmarks/search_quality.py", "--quick"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["budgets"].keys() == {"12", "24", "48"}
    for budget, rows in found["budgets"].items():
        players = {"random", "tpe", "asha", "default", "blind", "misled", "plain_tune"}
        assert rows.keys() == players | {"difference", "centres"}
        for name in players:
            # Early stopping leaves less than a full trial of a budget unspent.
            assert float(budget) - 1 <= rows[name]["spent"] <= float(budget) + 0.01, (budget, name)
            low, high = rows[name]["good"][1:]
            assert 0 <= low <= high <= 1


@pytest.mark.long
def test_the_benchmark_of_search_quality_plays_every_sampler_and_scheduler() -> None:
    done = subprocess.run(
        [sys.executable, "tests/benchmarks/search_quality.py", "--all", "--repeats", "2"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    kinds = get_args(SchedulerConfig.model_fields["kind"].annotation)
    assert {name.partition(",")[0] for name in rows} == (
        {*SAMPLERS, *kinds, "default"} - {"tpe", "median", "pbt", "pb2"}
    )
    assert all(22.5 <= row["spent"] <= 24 for row in rows.values())
    assert rows["default"]["gain"] == {"good": [0, 0, 0], "to_90": [0, 0, 0]}


@pytest.mark.long
def test_the_benchmark_of_overhead_runs_both_sides_in_as_many_processes_as_run_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "tests/benchmarks/overhead.py", "--quick"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["name"], found["unit"], found["repeats"]) == ("overhead", "ms/trial", 1)
    assert {"ratio", "target", "ok", "more_cpu_ms", "rss_kb_per_trial"} <= found.keys()
    assert found["median_ours"] > 0
    assert found["median_theirs"] > 0
    assert all(found["cpu_ms"][side] > 0 for side in ("ours", "plain"))
    # Every trial but the first ones runs in the process of one before; none is started and thrown away.
    assert found["trials"] == 40
    assert found["processes"]["ours"] == 8


@pytest.mark.long
def test_the_measurement_of_guards_tells_every_cut_and_the_defaults() -> None:
    done = subprocess.run(
        [sys.executable, "tests/benchmarks/guards.py", "--quick"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    for part in (*found["cuts"], found["defaults_on_all"]):
        for name in ("recall", "false_stops", "saved"):
            low, high = part[f"{name}_interval"]
            assert 0 <= low <= part[name] <= high <= 1, name
    assert found["healthy"] >= 150
    # Half of the tuning runs of the table are measured, others with each cut.
    assert [cut["bad"] + cut["healthy"] for cut in found["cuts"]] == [360, 360]
    assert found["cuts"][0]["bad"] != found["cuts"][1]["bad"]
    for name in ("recall", "false_stops", "saved"):
        low, high = found[f"{name}_range"]
        assert low <= found[name] <= high
    for name, trials in (
        ("defaults_on_all", 720),
        ("from_another", 720),
        ("the_other_way_round", 324),
    ):
        assert found[name]["bad"] + found[name]["healthy"] == trials
    # Limits that a table of other trials gave keep what is asked of them.
    assert found["from_another"]["recall"] >= 0.95
    assert found["from_another"]["false_stops"] <= 0.02
    assert found["from_another"]["saved"] >= 0.4
