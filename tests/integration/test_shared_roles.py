"""Trials that share reference and reward: their numbers are those of trials with roles of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from curves import curve
from safetensors.torch import load_file, save_file

import analysis
from rlhf_core.config import resolve_trial
from sweeps.train import train

pytestmark = pytest.mark.ray
SHARED = {"placement": "shared", "gpus": 0.5, "cpus": 1.0}
QUICK: dict[str, Any] = {
    "rollout": {"prompts_per_iteration": 16, "max_new_tokens": 12, "chunk_size": 8},
    "eval": {"prompts": 16, "every_iterations": 2},
    "budget": {"iterations": 2},
}
TRIALS = ("t0000", "t0001", "t0002")


def _base(layout: str, shared: bool, **merge: bool) -> dict[str, Any]:
    roles = {role: {**SHARED, **merge} for role in ("reference", "reward")} if shared else {}
    return {**QUICK, "resources": {"layout": layout, "roles": roles}}


def _events(out: Path) -> pd.DataFrame:
    return pd.read_json(out / "services.jsonl", lines=True)


@pytest.fixture(scope="module")
def others(builtin_task: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """The task's reward model, an equal one in another folder, and a different one."""
    root = tmp_path_factory.mktemp("rewards")
    folders = [root / name for name in ("same", "again", "different")]
    for folder in folders:
        shutil.copytree(builtin_task / "reward", folder)
    file = folders[2] / "model.safetensors"
    weights = load_file(file)
    save_file({k: v * (0.5 if k.startswith("score") else 1) for k, v in weights.items()}, file)
    return tuple(map(str, folders))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def shared(
    ray_address: str, others: tuple[str, str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Three trials with shared roles, two of them at a time."""
    from sweep_runner import Runner

    out = tmp_path_factory.mktemp("shared") / "run"
    points = [
        {"reward.model": model, "ppo.kl.coef": coef}
        for model, coef in zip(others, (0.05, 0.2, 0.05), strict=True)
    ]
    Runner(ray_address).run(
        {
            "base": _base("fused", shared=True),
            "space": {
                "reward.model": {"choice": list(others)},
                "ppo.kl.coef": {"float": [0.01, 0.3]},
            },
            "search": {"trials": 3, "points": points, "max_concurrent": 2},
        },
        out,
    )
    return out


def _alone(out: Path, trial: str, folder: Path) -> dict[int, dict[str, float]]:
    """Curve of the same trial without a sweep, in this process, every role its own."""
    config = json.loads((out / f"trials/{trial}/config.json").read_text())
    config["resources"]["layout"] = "fused"
    list(train(resolve_trial(config, trial), folder / trial))
    return curve(folder / trial / "metrics.jsonl")


def test_shared_roles_give_the_numbers_of_private_ones_bit_for_bit(
    shared: Path, tmp_path: Path
) -> None:
    for trial in TRIALS:
        served = curve(shared / f"trials/{trial}/metrics.jsonl")
        assert sorted(served) == [0, 1, 2]
        assert served == _alone(shared, trial, tmp_path)


def test_equal_models_are_one_service_and_another_model_is_another(shared: Path) -> None:
    out = shared
    records = [json.loads((out / f"trials/{t}/placement.json").read_text()) for t in TRIALS]
    first, second, third = (record["services"] for record in records)
    assert first == second
    assert first["reference"] == third["reference"]
    assert first["reward"] != third["reward"]
    assert all(
        record["workers"][0]["roles"] == ["rollout", "learner", "critic"] for record in records
    )
    assert _events(out)["event"].tolist() == ["started"] * 3
    placed = sorted(path.parent.name for path in out.glob("services/*/placement.json"))
    assert placed == sorted({*first.values(), *third.values()})


def test_a_trial_pays_for_its_part_of_the_services(shared: Path) -> None:
    iterations = analysis.load(shared).iterations
    for _, rows in iterations.groupby("trial", observed=True):
        last = rows.iloc[-1]
        # Its own bundle has a GPU for 4 CPUs, services have one for 2: they are in the bill.
        assert 1 / 4 < last["cost/gpu_seconds"] / last["cost/cpu_seconds"] < 1 / 2
        assert rows["cost/gpu_seconds"].is_monotonic_increasing
        assert 0 < last["util/busy_reference"] <= 1
        assert 0 < last["util/busy_reward"] <= 1


@pytest.mark.long
@pytest.mark.parametrize("merge", [False, True])
def test_roles_in_processes_share_too(runner: Any, tmp_path: Path, merge: bool) -> None:
    points = [{"ppo.kl.coef": 0.05}, {"ppo.kl.coef": 0.2}]
    base = _base("split", shared=True, merge=merge)
    base["resources"]["roles"]["rollout"] = {"workers": 1}
    search = {"trials": 2, "points": points}
    space = {"ppo.kl.coef": {"choice": [0.05, 0.2]}}
    runner.run({"base": base, "space": space, "search": search}, tmp_path / "run")
    for trial in TRIALS[:2]:
        served = curve(tmp_path / f"run/trials/{trial}/metrics.jsonl")
        private = _alone(tmp_path / "run", trial, tmp_path)
        if not merge:
            assert served == private
        # The first evaluation has seen no update that could amplify last bits.
        assert served[0] == pytest.approx(private[0], abs=1e-5)


def _dying(tmp_path: Path, name: str, replacements: int) -> dict[str, Any]:
    """A sweep of one trial whose shared reward ends its process; named undisturbed, it does not."""
    state = tmp_path / f"{name}-state"
    state.mkdir()
    if name == "undisturbed":
        (state / "died").touch()
    prompts = tmp_path / f"{name}.jsonl"
    rows = [{"prompt": f"the {noun} is", "state": str(state)} for noun in ("plot", "cast")]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "base": {
            **_base("fused", shared=True),
            "budget": {"iterations": 4},
            "data": {"task": "builtin:reviews", "prompts": str(prompts)},
            "reward": {"function": "sweep_helpers:dies_once", "workers": 0},
        },
        "search": {"trials": 1},
        "cluster": {"services": {"replacements": replacements}},
    }


@pytest.mark.long
def test_a_dead_replica_is_replaced_and_the_curve_does_not_show_it(
    runner: Any, tmp_path: Path
) -> None:
    curves = []
    for name in ("disturbed", "undisturbed"):
        out = tmp_path / name
        runner.run(_dying(tmp_path, name, 1), out)
        assert analysis.load(out).trials.loc["t0000", "outcome"] == "completed"
        curves.append(curve(out / "trials/t0000/metrics.jsonl"))
        replaced = _events(out).query("event == 'replaced'")
        assert replaced["role"].tolist() == (["reward"] if name == "disturbed" else [])
    assert curves[0] == curves[1]


@pytest.mark.long
def test_a_service_that_is_gone_fails_its_trial_by_name(runner: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    runner.run(_dying(tmp_path, "gone", 0), out)
    trial = analysis.load(out).trials.loc["t0000"]
    assert trial["outcome"] == "failed"
    assert "ServiceError: service reward-" in trial["reason"]
    assert "cluster.services.replacements" in trial["reason"]
