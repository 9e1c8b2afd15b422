from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

import analysis
from rlhf_core.errors import ConfigError


def faults(sweep):
    """What could not be read; that a sweep has not ended is no fault."""
    return tuple(line for line in sweep.warnings if not line.startswith("unfinished:"))


def test_every_outcome_and_state_has_its_row(every_outcome):
    sweep = analysis.load(every_outcome.path)
    trials = sweep.trials
    assert list(trials.index) == [f"t{i:04d}" for i in range(10)]
    assert list(trials["outcome"].astype("object").fillna("")) == [
        "completed", "completed", "stopped", "diverged", "infeasible", "failed", "lost", "", "", "",
    ]  # fmt: skip
    assert list(trials["state"])[-3:] == ["interrupted", "started", "queued"]
    assert list(trials["number"]) == list(range(10))
    assert trials.loc["t0005", "reason"] == "ValueError: boom"
    assert faults(sweep) == ()


def test_values_come_from_the_ledger_or_the_last_measurement(every_outcome):
    trials = analysis.load(every_outcome.path).trials
    assert trials.loc["t0001", "value"] == 2.0
    assert math.isnan(trials.loc["t0003", "value"]), "a diverged trial has metrics but no value"
    assert trials.loc["t0007", "value"] == 0.9, "interrupted: the last one measured"
    assert trials.loc["t0008", "value"] == 0.7
    assert math.isnan(trials.loc["t0009", "value"])
    assert list(trials["iteration"].fillna(-1)) == [2, 2, 1, 1, -1, -1, -1, 1, 3, -1]


def test_dtypes_of_trials(builder):
    choices = {
        "optim.policy.lr": 1, "sync.interval": 3, "ppo.estimator": "rloo",
        "flag": True, "mixed": None, "resources.cpus_per_gpu": 8,
    }  # fmt: skip
    builder.completed("t0000", 1.0, params=choices)
    builder.completed("t0001", 1.0, params={"mixed": "auto", "sync.interval": 2})
    trials = analysis.load(builder.path).trials
    kinds = {c: str(t) for c, t in trials.dtypes.items()}
    assert kinds["params.optim.policy.lr"] == "float64", "the space says float"
    assert kinds["params.sync.interval"] == "Int64"
    assert kinds["params.resources.cpus_per_gpu"] == "Int64"
    assert kinds["params.flag"] == "boolean"
    assert kinds["params.ppo.estimator"] == "category"
    offered = ["gae", "rloo", "reinforce_baseline", "group_norm"]
    assert list(trials["params.ppo.estimator"].cat.categories) == offered
    assert list(trials["params.mixed"]) == ["null", "auto"]
    assert pd.isna(trials.loc["t0001", "params.flag"])
    assert kinds["number"] == kinds["iteration"] == kinds["fork_iteration"] == "Int64"
    assert kinds["state"] == kinds["outcome"] == "category"
    assert kinds["value"] == kinds["duration.queue"] == "float64"


def test_durations_and_finals(every_outcome):
    trials = analysis.load(every_outcome.path).trials
    assert trials.loc["t0000", "duration.run"] == 20.0
    assert trials.loc["t0004", "duration.queue"] == 0.1
    assert math.isnan(trials.loc["t0004", "duration.run"])
    assert trials.loc["t0000", "final.cost/gpu_seconds"] == 7.0
    assert trials.loc["t0003", "final.kl/response"] == 30.0


def test_later_line_of_an_iteration_wins_and_order_is_by_iteration(builder):
    builder.begin("t0000")
    for iteration, value in ((0, 0.0), (5, 0.5), (10, 9.0), (5, 0.6), (6, None)):
        builder.report("t0000", iteration, eval__heldout=value, extra__x=1.0 if value else None)
    frame = analysis.load(builder.path).iterations
    assert list(frame["iteration"]) == [0, 5, 6, 10]
    assert list(frame["eval/heldout"].fillna(-1)) == [0.0, 0.6, -1, 9.0]
    assert frame["iteration"].dtype == "int64"


def test_null_metrics_do_not_hide_the_last_finite_value(builder):
    builder.begin("t0000")
    builder.report("t0000", 1, eval__heldout=0.3)
    builder.report("t0000", 2, eval__heldout=None)
    assert analysis.load(builder.path).trials.loc["t0000", "final.eval/heldout"] == 0.3


def test_text_among_metrics_is_reported_and_left_out(builder):
    builder.begin("t0000")
    builder.report("t0000", 1, eval__heldout=0.3, note="hello")
    sweep = analysis.load(builder.path)
    assert "note" not in sweep.iterations
    assert len(faults(sweep)) == 1
    assert "note" in faults(sweep)[0]


def test_torn_lines_are_skipped_and_named(builder):
    builder.completed("t0000", 1.0)
    metrics = builder.path / "trials/t0000/metrics.jsonl"
    first, second = metrics.read_bytes().splitlines()
    metrics.write_bytes(first + b'\n{"iteration": 1, "eval\n' + second + b"\n")
    with (builder.path / "trials.jsonl").open("ab") as file:
        file.write('{"time": 1, "reason": "µ'.encode()[:-1])
    sweep = analysis.load(builder.path)
    assert len(sweep.iterations) == 2
    assert sweep.trials.loc["t0000", "outcome"] == "completed"
    assert faults(sweep) == (
        "trials.jsonl line 5: torn last line, skipped",
        "trials/t0000/metrics.jsonl line 2: no JSON object, skipped",
    )


def test_a_whole_last_line_without_newline_counts(builder):
    builder.completed("t0000", 1.0)
    ledger = builder.path / "trials.jsonl"
    ledger.write_bytes(ledger.read_bytes().rstrip(b"\n"))
    sweep = analysis.load(builder.path)
    assert sweep.trials.loc["t0000", "state"] == "ended"
    assert faults(sweep) == ()


def test_missing_files_become_warnings(builder):
    builder.completed("t0000", 1.0)
    for name in ("space.json", "trials/t0000/metrics.jsonl", "trials/t0000/params.json"):
        (builder.path / name).unlink()
    sweep = analysis.load(builder.path)
    assert sweep.trials.loc["t0000", "value"] == 1.0
    assert [w.split(":")[0] for w in faults(sweep)] == [
        "space.json", "metrics.jsonl", "params.json",
    ]  # fmt: skip


def test_a_folder_the_ledger_does_not_know_is_a_trial_and_a_warning(builder):
    builder.completed("t0000", 1.0)
    (builder.path / "trials.jsonl").unlink()
    sweep = analysis.load(builder.path)
    assert list(sweep.trials["state"]) == ["unknown"]
    assert sweep.trials.loc["t0000", "final.reward/proxy"] == 1.0
    assert len(faults(sweep)) == 2


def test_a_sweep_that_has_just_begun_loads_with_all_columns(builder):
    (builder.path / "trials.jsonl").touch()
    sweep = analysis.load(builder.path)
    assert len(sweep.trials) == len(sweep.events) == len(sweep.placements) == 0
    assert "params.optim.policy.lr" in sweep.trials
    assert {"trial", "iteration", "timestamp"} <= set(sweep.iterations)
    assert list(sweep.placements) == [
        "trial", "worker", "roles", "bundle", "node", "cpus", "gpus", "memory_gb",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "newest"), [("sweep.json", 1), ("space.json", 2)])
def test_newer_schema_names_both_versions(builder, name, newest):
    document = json.loads((builder.path / name).read_text())
    builder.write(name, document | {"schema_version": 7})
    with pytest.raises(ConfigError, match=rf"schema version 7.*up to {newest}.*upgrade") as caught:
        analysis.load(builder.path)
    assert len(str(caught.value).splitlines()) == 1


def _empty(path: Path) -> None:
    path.mkdir()


def _torn(path: Path) -> None:
    path.mkdir()
    (path / "sweep.json").write_text('{"schema_version": 1, "na')


def _unversioned(path: Path) -> None:
    path.mkdir()
    (path / "sweep.json").write_text('{"name": "x"}')


def _file(path: Path) -> None:
    path.write_text("")


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (_empty, "has none"),
        (_torn, "torn"),
        (_unversioned, "schema_version"),
        (_file, "is no directory"),
        (lambda path: None, "is no directory"),
    ],
)
def test_what_is_no_run_directory_is_one_line(tmp_path, make, word):
    make(tmp_path / "x")
    with pytest.raises(ConfigError, match=word) as caught:
        analysis.load(tmp_path / "x")
    assert len(str(caught.value).splitlines()) == 1


def test_retried_trial_has_no_outcome_until_it_ends_again(builder):
    builder.begin("t0000")
    builder.end("t0000", "lost", reason="node died")
    builder.state("t0000", "retried")
    row = analysis.load(builder.path).trials.loc["t0000"]
    assert (row["state"], row["reason"]) == ("retried", "")
    assert pd.isna(row["outcome"])
    builder.end("t0000", "completed", 1.5)
    assert analysis.load(builder.path).trials.loc["t0000", "value"] == 1.5


def test_unknown_keys_and_states_are_kept_as_they_are(builder):
    builder.state("t0000", "queued", flavour="new")
    builder.state("t0000", "hibernating")
    sweep = analysis.load(builder.path)
    assert sweep.trials.loc["t0000", "state"] == "hibernating"
    assert sweep.events["flavour"].tolist()[0] == "new"


def test_lineage_survives_later_lines_that_do_not_repeat_it(builder):
    builder.begin("t0000", parent_id="t0009", fork_iteration=5)
    row = analysis.load(builder.path).trials.loc["t0000"]
    assert (row["parent_id"], row["fork_iteration"]) == ("t0009", 5)


def test_placements_show_bundles_and_the_workers_in_them(every_outcome):
    placed = analysis.load(every_outcome.path).placements
    own = placed[placed["trial"] == "t0000"]
    assert own["worker"].fillna("").tolist() == ["", "learner-0"]
    assert own["roles"].tolist() == ["", "learner,critic"]
    assert own["gpus"].sum() == 1.0
    assert own["node"].tolist() == ["n1", "n1"]


@pytest.mark.parametrize("keyed", [True, False])
def test_both_forms_of_a_stored_space_give_scales(builder, keyed):
    entry = {"type": "float", "low": 1e-6, "high": 1e-3, "log": True}
    stored = {"a.lr": entry} if keyed else [{"key": "a.lr", **entry}]
    builder.write("space.json", {"schema_version": 1, "parameters": stored})
    axis = analysis.load(builder.path).axes["a.lr"]
    assert (axis.kind, axis.log, axis.low, axis.high) == ("float", True, 1e-6, 1e-3)


def test_objective_and_constraints(builder):
    sweep = analysis.load(builder.path)
    assert (sweep.metric, sweep.direction) == ("eval/heldout", "maximize")
    (bound,) = sweep.constraints
    assert (bound.metric, bound.operator, bound.bound) == ("eval/kl_response", "<=", 20.0)
    builder.write("sweep.json", builder.info | {"objective": {"metric": "x"}, "constraints": ["a"]})
    broken = analysis.load(builder.path)
    with pytest.raises(ConfigError, match="direction"):
        _ = broken.objective
    with pytest.raises(ConfigError, match="a constraint is"):
        _ = broken.constraints
