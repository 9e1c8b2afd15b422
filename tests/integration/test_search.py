"""Searches that are not the default, through Tune: a grid to its end, objectives, a study in a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from sweep_runner import Runner

import analysis

pytestmark = [pytest.mark.ray, pytest.mark.long]
SCRIPT: dict[str, Any] = {
    "name": "script",
    "program": "sweep_helpers:ScriptProgram",
    "base": {},
    "space": {"x": {"float": [0.0, 6.0]}, "steps": {"choice": [1, 2]}},
    "scheduler": {"kind": "none"},
}


def test_a_sweep_over_a_grid_ends_with_its_last_cell_and_a_database_has_it(
    runner: Runner, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    search = {"sampler": "grid", "grid_points": 3, "trials": 50, "max_concurrent": 4}
    goals = {"objectives": {"script/loss": "minimize", "script/time": "minimize"}}
    runner.run(
        {**SCRIPT, "search": {**search, **goals}, "storage": {"study": url}}, tmp_path / "run"
    )
    sweep = analysis.load(tmp_path / "run")
    assert sweep.trials["outcome"].tolist() == ["completed"] * 6
    tried = {(row["params.x"], row["params.steps"]) for row in sweep.trials.to_dict("records")}
    assert tried == {(x, steps) for x in (0.0, 3.0, 6.0) for steps in (1, 2)}
    assert sweep.trials.loc[analysis.best(sweep), ["params.x", "params.steps"]].tolist() == [3.0, 2]
    study = optuna.load_study(study_name="script", storage=url)
    assert [t.values[0] for t in study.trials] == sweep.trials["value"].tolist()
    assert study.metric_names == ["script/loss", "script/time"]


def test_a_sampler_that_models_runs_a_sweep_of_trials_at_once(
    runner: Runner, tmp_path: Path
) -> None:
    search = {"sampler": "gp", "trials": 6, "startup_trials": 3, "max_concurrent": 2}
    objective = {"objective": "script/loss", "direction": "minimize"}
    runner.run({**SCRIPT, "search": {**search, **objective}}, tmp_path / "run")
    assert analysis.load(tmp_path / "run").trials["outcome"].tolist() == ["completed"] * 6
