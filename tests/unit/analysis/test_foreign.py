"""Sweeps of Ray Tune, Optuna and W&B."""

from __future__ import annotations

import json
import re

import optuna
import pandas as pd
import pytest

import analysis
from rlhf_core.errors import ConfigError


@pytest.fixture
def experiment(tmp_path):
    """Three trials as Ray Tune leaves them: done, failed, cut off; the second without result.json."""
    for number, (lr, scores) in enumerate(((0.1, [1.0, 2.0]), (0.2, [3.0, 4.0]), (0.3, [0.5]))):
        folder = tmp_path / "exp" / f"trainable_{number}"
        folder.mkdir(parents=True)
        (folder / "params.json").write_text(json.dumps({"lr": lr, "model": {"kind": "a"}}))
        results = [
            {
                "score": score, "loss": {"kl": score / 2}, "training_iteration": i + 1,
                "trial_id": f"id{number}", "timestamp": 1000 + 10 * number + i, "pid": 7,
                "done": number < 2 and i == len(scores) - 1, "time_this_iter_s": 1.5,
                "config": {"lr": lr}, "node_ip": "10.0.0.1",
            }
            for i, score in enumerate(scores)
        ]  # fmt: skip
        if number == 1:
            pd.json_normalize(results, sep="/").to_csv(folder / "progress.csv", index=False)
            (folder / "error.txt").write_text("Traceback\n  ...\nValueError: boom\n")
        else:
            text = "".join(json.dumps(result) + "\n" for result in results)
            (folder / "result.json").write_text(text + ('{"torn' if number == 2 else ""))
    return tmp_path / "exp"


def test_a_tune_experiment(experiment):
    sweep = analysis.load(experiment, metric="score", direction="maximize")
    trials = sweep.trials
    assert list(trials.index) == ["id0", "id1", "id2"]
    assert trials["state"].tolist() == ["ended", "ended", "interrupted"]
    assert trials["outcome"].astype("object").tolist()[:2] == ["completed", "failed"]
    assert trials.loc["id1", "reason"] == "ValueError: boom"
    assert trials["params.lr"].tolist() == [0.1, 0.2, 0.3]
    assert trials["params.model.kind"].tolist() == ["a", "a", "a"]
    assert trials["value"].tolist() == [2.0, 4.0, 0.5]
    assert list(sweep.iterations.columns) == [
        "trial", "iteration", "timestamp", "loss/kl", "score", "time/iteration",
    ]  # fmt: skip
    assert analysis.best(sweep) == "id0"
    assert any("torn last line" in line for line in sweep.warnings)
    assert analysis.plot_learning_curves(sweep, ["score"]).axes


def test_tune_states_no_objective(experiment):
    with pytest.raises(ConfigError, match="objective"):
        _ = analysis.load(experiment).metric


def objective(trial):
    x = trial.suggest_float("x", 1e-3, 1.0, log=True)
    trial.suggest_categorical("kind", ["a", "b"])
    for step in range(3):
        trial.report(x * step, step)
    if trial.number == 1:
        raise optuna.TrialPruned
    if trial.number == 2:
        raise ValueError("boom")
    trial.set_user_attr("cost", 2.5)
    trial.set_user_attr("note", "text")
    return x


@pytest.fixture
def storage(tmp_path):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    address = f"sqlite:///{tmp_path}/studies.db"
    study = optuna.create_study(study_name="mine", storage=address, direction="minimize")
    study.optimize(objective, n_trials=5, catch=ValueError)
    return address, study


def test_an_optuna_study_by_address_and_in_memory(storage):
    address, study = storage
    sweep = analysis.load(address)
    trials = sweep.trials
    assert trials["outcome"].astype("object").tolist() == [
        "completed", "stopped", "failed", "completed", "completed",
    ]  # fmt: skip
    assert (sweep.name, sweep.metric, sweep.direction) == ("mine", "value", "minimize")
    assert trials["params.kind"].dtype == "category"
    assert sweep.axes["x"].log
    assert trials.loc["t0000", "final.cost"] == 2.5
    assert trials.loc["t0000", "value"] == study.trials[0].value
    assert len(sweep.iterations) == 15
    assert analysis.best(sweep) == f"t{study.best_trial.number:04d}"
    pd.testing.assert_frame_equal(trials, analysis.load(study).trials)


def test_an_optuna_journal_and_several_studies(tmp_path):
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    for name in ("one", "two"):
        study = optuna.create_study(study_name=name, storage=storage, directions=["minimize"] * 2)
        study.add_trial(optuna.trial.create_trial(values=[1.0, 2.0]))
    with pytest.raises(ConfigError, match="one, two"):
        analysis.load(tmp_path / "study.log")
    with pytest.raises(ConfigError, match="no study 'on'"):
        analysis.load(tmp_path / "study.log", study="on")
    trials = analysis.load(tmp_path / "study.log", study="two").trials
    assert trials.loc["t0000", ["final.value/0", "final.value/1"]].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("address", ["sqlite:////nowhere/x.db", "missing.log"])
def test_no_storage_is_one_line(address):
    with pytest.raises(ConfigError, match="no Optuna storage") as caught:
        analysis.load(address)
    assert len(str(caught.value).splitlines()) <= 4


def test_what_is_no_study(tmp_path):
    with pytest.raises(ConfigError, match="got int"):
        analysis.load(7)


def test_a_wandb_table_of_runs(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text(
        "Name,State,Created,Runtime,lr,model,eval/heldout,note\n"
        "happy-1,finished,2026-01-01T10:00:00Z,60,0.1,a,0.5,x\n"
        "happy-1,crashed,2026-01-01T11:00:00Z,30,0.2,b,,\n"
        "slow-2,running,2026-01-01T12:00:00Z,,0.3,a,0.9,\n"
    )
    sweep = analysis.load(file, metric="eval/heldout", direction="maximize")
    trials = sweep.trials
    assert list(trials.index) == ["happy-1", "happy-1#2", "slow-2"]
    assert trials["state"].tolist() == ["ended", "ended", "started"]
    assert trials["params.lr"].tolist() == [0.1, 0.2, 0.3]
    assert trials["params.model"].tolist() == ["a", "b", "a"]
    assert trials["value"].fillna(-1).tolist() == [0.5, -1.0, 0.9]
    assert sweep.events["time"].max() - sweep.events["time"].min() == 7200
    assert analysis.best(sweep) == "happy-1"


def test_a_wandb_chart(tmp_path):
    file = tmp_path / "chart.csv"
    file.write_text(
        '"Step","a - reward/proxy","a - reward/proxy__MIN","b - reward/proxy"\n0,1.0,0.9,2.0\n10,1.5,1.4,\n'
    )
    sweep = analysis.load(file)
    assert sweep.iterations["reward/proxy"].tolist() == [1.0, 1.5, 2.0]
    assert sweep.iterations["iteration"].tolist() == [0, 10, 0]
    assert list(sweep.trials.index) == ["a", "b"]


def test_another_csv_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="Name"):
        analysis.load(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("named", "line"),
    [
        (
            {"metric": "eval/heldot", "direction": "max"},
            "'eval/heldot'; did you mean 'eval/heldout'",
        ),
        ({"metric": "eval/heldout"}, "direction: name it beside 'eval/heldout'"),
        ({"metric": "eval/heldout", "direction": "up"}, "but is 'up'"),
        ({"direction": "max"}, "states no objective; name its metric, too"),
        ({}, "states no objective; name it, as in analysis.load"),
    ],
)
def test_an_objective_that_is_not_named_rightly_is_one_line(tmp_path, named, line):
    (tmp_path / "runs.csv").write_text("Name,State,eval/heldout,lr\na,finished,1.0,0.1\n")
    with pytest.raises(ConfigError, match=re.escape(line)):
        analysis.best(analysis.load(tmp_path / "runs.csv", **named))
