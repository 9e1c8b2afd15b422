"""On a GPU: every role computes what it computes on the CPU, and a trial of each layout runs in bfloat16."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import CONTEXT, experience, rollout, settings, trial_config, weights

from rlhf_core.config import TrialConfig, resolve_trial
from rlhf_core.metrics import IterationMetrics
from rlhf_core.roles.build import build_role
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import plan_trial
from rlhf_core.trial import PPOTrial
from rlhf_core.types import Chunk
from sweeps.sweep import Sweep
from sweeps.train import train

pytestmark = pytest.mark.gpu
CPU = torch.device("cpu")
# Largest differences over values of about 1; in bfloat16 a number has eight bits.
TOLERANCE = {"float32": 2e-4, "bfloat16": 0.1}
ROLES = ("rollout", "learner", "critic", "reference", "reward")
ITERATIONS = 3


def _pair(zoo: Zoo, name: str, device: torch.device, dtype: str) -> tuple[Any, Any]:
    config = trial_config(zoo, model__dtype=dtype, **{"reward.model": zoo.rewards["same"]})
    return build_role(name, config, CPU), build_role(name, config, device)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_frozen_roles_score_as_on_the_cpu(zoo: Zoo, device: torch.device, dtype: str) -> None:
    batch, asked = rollout(trial_config(zoo))
    near = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    here, there = (r.logprobs(CONTEXT, batch, 1.0) for r in _pair(zoo, "reference", device, dtype))
    torch.testing.assert_close(there, here, **near)
    assert float(here.abs().max()) > 0.5
    here, there = (
        r.scores(CONTEXT, batch, asked).proxy_B for r in _pair(zoo, "reward", device, dtype)
    )
    torch.testing.assert_close(there, here, **near)
    assert float(here.std()) > TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["learner", "critic"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_updates_go_as_on_the_cpu(zoo: Zoo, device: torch.device, name: str, dtype: str) -> None:
    batch = experience(zoo)
    pair = _pair(zoo, name, device, dtype)
    before = [weights(role).float().cpu() for role in pair]
    metrics = [role.update(CONTEXT, batch, settings()) for role in pair]
    here, there = (
        weights(role).float().cpu() - start for role, start in zip(pair, before, strict=True)
    )
    assert torch.equal(*before)
    # The first step of Adam moves every weight by about the learning rate, whatever its gradient; where that is
    # next to nothing, its sign is chance.
    agreement = float((here * there).sum() / (here.norm() * there.norm()))
    assert agreement > {"float32": 0.99, "bfloat16": 0.9}[dtype]
    group = "policy" if name == "learner" else "value"
    norms = [m[f"{group}/grad_norm"] for m in metrics]
    assert norms[1] == pytest.approx(norms[0], rel=TOLERANCE[dtype])


def test_sampling_stamps_what_the_reference_says(zoo: Zoo, device: torch.device) -> None:
    config = trial_config(zoo)
    _, asked = rollout(config)
    batch = build_role("rollout", config, device).generate(CONTEXT, Chunk(0, asked, 3))
    said_BT = build_role("reference", config, CPU).logprobs(CONTEXT, batch, 1.0)
    torch.testing.assert_close(batch.logprobs_BT, said_BT, atol=2e-4, rtol=2e-4)


def _config(builtin_task: Path, layout: str) -> TrialConfig:
    """A trial of the built-in task in bfloat16 whose workers share one GPU."""
    part = {"cpus": 1, "gpus": 0.2, "memory_gb": 2}
    roles = {role: {**part, "workers": 1} for role in ROLES}
    colocate = [{"roles": list(ROLES), "gpus": 1}]
    return resolve_trial(
        {
            "extends": "tiny",
            "data": {"task": str(builtin_task)},
            "model": {"dtype": "bfloat16", "device": "cuda"},
            "budget": {"iterations": ITERATIONS},
            "eval": {"every_iterations": ITERATIONS},
            "resources": {
                "layout": layout,
                **({"colocate": colocate} if layout == "colocated" else {}),
                "roles": {**roles, "fused": {"cpus": 1, "gpus": 1, "memory_gb": 4}},
            },
        },
        "gpu",
    )


def _watched(name: str, iterations: Iterable[IterationMetrics]) -> list[IterationMetrics]:
    """Runs the trial; prints its tokens a second, and the memory in use on the device while it ran."""
    found, used = [], 0
    for metrics in iterations:
        found.append(metrics)
        free, total = torch.cuda.mem_get_info()
        used = max(used, total - free)
    speed = found[-1].values["rollout/tokens_per_second"]
    print(f"\n{name}: {speed:,.0f} tokens/s, {used / 1e9:.2f} GB of the GPU in use")
    return found


def _check(found: list[IterationMetrics]) -> None:
    assert [m.iteration for m in found] == list(range(ITERATIONS + 1))
    first, last = found[1].values, found[-1].values
    assert first["cost/gpu_seconds"] > 0
    assert abs(first["kl/response"]) < 0.2
    assert last["policy/grad_norm"] > 0
    assert abs(last["kl/response"]) > 1e-3


def test_a_trial_in_this_process(builtin_task: Path, device: torch.device) -> None:
    config = _config(builtin_task, "fused")
    plan = plan_trial(config)
    torch.cuda.reset_peak_memory_stats()
    trial = PPOTrial(config, LocalRuntime(config, plan, plan.total("gpus")), plan)
    try:
        _check(_watched("fused, without Ray", trial))
    finally:
        trial.close()
    print(f"peak of this process: {torch.cuda.max_memory_allocated() / 1e9:.3f} GB")


@pytest.mark.parametrize("layout", ["colocated", "split"])
def test_a_trial_of_several_processes(
    builtin_task: Path, device: torch.device, layout: str
) -> None:
    _check(_watched(layout, train(_config(builtin_task, layout))))


def test_a_trial_of_a_sweep(builtin_task: Path, device: torch.device, tmp_path: Path) -> None:
    base = _config(builtin_task, "fused").model_dump(mode="json", exclude_defaults=True)
    sweep = Sweep.from_dict(
        {
            "base": base,
            "space": {"optim.policy.lr": {"choice": [1e-3]}},
            "search": {"trials": 1},
            "scheduler": {"kind": "none"},
        }
    )
    start = time.perf_counter()
    result = sweep.run(tmp_path / "run")
    print(f"\nfused, in a sweep: {time.perf_counter() - start:.0f} s")
    assert result.best is not None
    (file,) = (result.directory / "trials").glob("*/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[-1]["iteration"] == ITERATIONS
    assert lines[-1]["cost/gpu_seconds"] > 0
