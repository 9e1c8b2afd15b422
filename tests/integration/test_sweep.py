from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from curves import curve
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import analysis
from rlhf_core.config import load_trial, resolve_trial
from rlhf_core.errors import ConfigError
from sweeps.train import train

pytestmark = pytest.mark.ray
QUICK: dict[str, Any] = {
    "rollout": {"prompts_per_iteration": 16, "max_new_tokens": 12, "chunk_size": 8},
    "eval": {"prompts": 16, "every_iterations": 2},
    "budget": {"iterations": 2},
}


@pytest.fixture(scope="module")
def finished(
    ray_address: str, builtin_task: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A sweep of three trials with its results."""
    from sweep_runner import Runner

    out = tmp_path_factory.mktemp("sweep") / "run"
    Runner(ray_address).run(
        {
            "name": "three",
            "base": {**QUICK, "checkpoint": {"every_iterations": 1, "keep": 1}},
            "space": {
                "ppo.kl.coef": {"float": [0.01, 0.2], "log": True},
                "sync.interval": {"choice": [1, 2]},
                "resources.cpus_per_gpu": {"choice": [2, 4]},
            },
            "search": {"trials": 3, "points": [{"sync.interval": 2}]},
            "selection": {"test_prompts": 32},
        },
        out,
    )
    return out


def test_a_sweep_leaves_the_whole_run_directory(finished: Path) -> None:
    sweep = analysis.load(finished)
    assert sweep.warnings == ()
    assert sweep.trials["outcome"].tolist() == ["completed"] * 3
    assert sweep.trials["iteration"].tolist() == [2, 2, 2]
    assert sweep.trials.loc["t0000", "params.sync.interval"] == 2
    assert {"bundle", "node"} <= set(sweep.placements.columns)
    assert sweep.placements["gpus"].tolist() == [1.0, 1.0, 1.0]
    for name in ("best.yaml", "best.json", "leaderboard.csv", "curves.png", "parameters.png"):
        assert (finished / name).stat().st_size > 100
    judgement = json.loads((finished / "best.json").read_text())["judgement"]
    assert judgement["prompts"] == 32
    assert judgement["stderr"] > 0


def test_the_ledger_tells_every_state_in_order(finished: Path) -> None:
    events = analysis.load(finished).events
    for _, lines in events.groupby("trial", observed=True):
        assert lines["state"].tolist() == ["queued", "placed", "started", "ended"]


def test_the_study_is_durable_and_agrees_with_the_ledger(finished: Path) -> None:
    storage = JournalStorage(JournalFileBackend(str(finished / "study.log")))
    study = optuna.load_study(study_name="three", storage=storage)
    values = analysis.load(finished).trials["value"].tolist()
    assert [trial.value for trial in study.trials] == values
    assert len(study.trials[0].intermediate_values) == 2


def test_nodes_of_placements_are_nodes_of_the_sweep(finished: Path) -> None:
    sweep = analysis.load(finished)
    known = {node["id"]: node["name"] for node in sweep.info["cluster"]["nodes"]}
    assert len(known) == 2
    assert set(sweep.placements["node"]) <= set(known)


def test_training_best_yaml_reproduces_the_trial_bit_for_bit(
    finished: Path, tmp_path: Path
) -> None:
    best = json.loads((finished / "best.json").read_text())["trial"]
    out = tmp_path / "again"
    assert len(list(train(load_trial(finished / "best.yaml"), out))) == 3
    assert curve(out / "metrics.jsonl") == curve(finished / f"trials/{best}/metrics.jsonl")


def test_the_trained_policy_is_saved_as_an_ordinary_folder(
    builtin_task: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    values = {**QUICK, "extends": "tiny", "budget": {"iterations": 1}}
    out = tmp_path / "model"
    list(train(resolve_trial(values, "test"), save_model=out))
    trained, first = (
        AutoModelForCausalLM.from_pretrained(f) for f in (out, builtin_task / "policy")
    )
    pairs = zip(trained.parameters(), first.parameters(), strict=True)
    assert not all(bool((a == b).all()) for a, b in pairs)
    assert len(AutoTokenizer.from_pretrained(out)) == trained.config.vocab_size
    # The folder serves the next trial as its policy.
    config = resolve_trial({**values, "model": {"policy": str(out)}}, "test")
    assert len(list(train(config))) == 2
    with pytest.raises(ConfigError, match=r"--save-model.*is not empty"):
        next(iter(train(config, save_model=out)))


@pytest.mark.parametrize("layout", ["split", "colocated"])
@pytest.mark.long
def test_roles_in_processes_compute_what_one_process_computes(
    runner: Any, tmp_path: Path, layout: str
) -> None:
    curves = []
    for used in ("fused", layout):
        out = tmp_path / used
        base = {**QUICK, "resources": {"layout": used}}
        runner.run({"base": base, "search": {"trials": 1}}, out)
        curves.append(curve(out / "trials/t0000/metrics.jsonl"))
    assert curves[0] == curves[1]
    placement = json.loads((tmp_path / layout / "trials/t0000/placement.json").read_text())
    workers = placement["workers"]
    assert len({w["pid"] for w in workers}) == 6
    assert all(bundle["node"] for bundle in placement["bundles"])
    assert all(len(w["gpus"]) == 1 for w in workers)
    if layout == "split":
        assert [w["bundle"] for w in workers] == [1, 2, 3, 4, 5, 6]
    else:
        # The workers of a bundle lie on one device.
        assert sorted(bundle for bundle, _ in {(w["bundle"], *w["gpus"]) for w in workers}) == [
            1,
            2,
        ]


def test_a_bug_in_user_code_fails_its_trial_and_the_sweep_goes_on(
    runner: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    results = runner.run(
        {
            "base": {**QUICK, "reward": {"workers": 0}},
            "space": {
                "reward.function": {
                    "choice": ["sweep_helpers:broken", "sweep_helpers:brevity"],
                }
            },
            "search": {
                "trials": 2,
                "points": [
                    {"reward.function": "sweep_helpers:broken"},
                    {"reward.function": "sweep_helpers:brevity"},
                ],
            },
        },
        out,
    )
    trials = analysis.load(out).trials
    assert trials["outcome"].tolist() == ["failed", "completed"]
    assert "KeyError('no such rating')" in trials.loc["t0000", "reason"]
    assert "raise KeyError" in (out / "trials/t0000/error.txt").read_text()
    assert results.best == "t0001"


@pytest.mark.long
def test_a_lost_process_is_replaced_and_the_curve_does_not_show_it(
    runner: Any, tmp_path: Path
) -> None:
    curves = []
    for name in ("disturbed", "undisturbed"):
        state = tmp_path / f"{name}-state"
        state.mkdir()
        if name == "undisturbed":
            (state / "died").touch()
        prompts = tmp_path / f"{name}.jsonl"
        rows = [{"prompt": f"the {noun} is", "state": str(state)} for noun in ("plot", "cast")]
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        base = {
            **QUICK,
            "budget": {"iterations": 4},
            "checkpoint": {"every_iterations": 1},
            "data": {"task": "builtin:reviews", "prompts": str(prompts)},
            "reward": {"function": "sweep_helpers:dies_once", "workers": 0},
        }
        out = tmp_path / name
        runner.run({"base": base, "search": {"trials": 1}}, out)
        sweep = analysis.load(out)
        assert sweep.trials.loc["t0000", "outcome"] == "completed"
        assert ("retried" in sweep.events["state"].tolist()) == (name == "disturbed")
        curves.append(curve(out / "trials/t0000/metrics.jsonl"))
    assert curves[0] == curves[1]


def test_a_guard_ends_a_trial_whose_kl_stays_too_high(runner: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    runner.run(
        {
            "base": {**QUICK, "budget": {"iterations": 8}, "optim": {"policy": {"lr": 0.02}}},
            "guards": {"max_kl": 0.01, "patience": 1},
            "search": {"trials": 1},
        },
        out,
    )
    trial = analysis.load(out).trials.loc["t0000"]
    assert trial["outcome"] == "diverged"
    assert "guards.max_kl" in trial["reason"]
    assert trial["iteration"] < 8


def test_a_script_of_the_users_own_is_swept(runner: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    results = runner.run(
        {
            "program": "sweep_helpers:ScriptProgram",
            "base": {"steps": 2},
            "space": {"x": {"float": [0.0, 6.0]}},
            "search": {
                "trials": 4, "objective": "script/loss", "direction": "minimize",
                "points": [{"x": 3.0}],
            },
        },
        out,
    )  # fmt: skip
    trials = analysis.load(out).trials
    assert trials["outcome"].tolist() == ["completed"] * 4
    assert results.best == "t0000"
    assert trials.loc["t0000", "value"] == pytest.approx(0.5)


def test_the_trainable_serves_a_tuner_of_ones_own(
    ray_address: str, runner: Any, tmp_path: Path
) -> None:
    import ray
    from ray import tune

    from sweeps.tuning.trainable import PPOTrainable

    ray.init(address=ray_address, log_to_driver=False)
    try:
        grid = tune.Tuner(
            PPOTrainable,
            param_space={
                "base": {"extends": "tiny", **QUICK},
                "ppo.kl.coef": tune.grid_search([0.01, 0.1]),
            },
            tune_config=tune.TuneConfig(metric="eval/heldout", mode="max"),
            run_config=tune.RunConfig(
                storage_path=str(tmp_path),
                stop={"iteration": 1},
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()
    finally:
        ray.shutdown()
    assert grid.num_errors == 0
    assert {result.config["ppo.kl.coef"] for result in grid} == {0.01, 0.1}
    assert all(result.metrics["kl/coef"] == result.config["ppo.kl.coef"] for result in grid)
