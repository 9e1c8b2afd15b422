"""A PPO trial in the processes of the last one, or in new ones where those cannot be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rlhf_core.metrics import repeatable
from rlhf_core.store import LocalStore
from sweeps.programs.base import TrialContext
from sweeps.programs.ppo import PPOProgram, RunningPPO

BASE: dict[str, Any] = {
    "extends": "tiny",
    "rollout": {"prompts_per_iteration": 8, "max_new_tokens": 6, "chunk_size": 8},
    "eval": {"prompts": 4},
    "budget": {"iterations": 2},
    "reward": {"workers": 0},
}


@pytest.fixture
def running(
    builtin_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningPPO]:
    """A trial that has ended; its files lie in ``tmp_path``."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = PPOProgram().start(context(tmp_path, "first", {"optim.policy.lr": 1e-3}))
    assert len(curve(running)) == 3
    yield running
    running.close()


def context(tmp_path: Path, trial: str, params: dict[str, Any], warm: bool = True) -> TrialContext:
    return TrialContext(trial, BASE, params, LocalStore(tmp_path / trial), warm=warm)


def curve(running: RunningPPO) -> list[dict[str, float]]:
    return [repeatable(metrics.values) for metrics in running]


def test_the_next_trial_in_the_same_process_equals_one_alone(
    running: RunningPPO, tmp_path: Path
) -> None:
    params = {"rollout.temperature": 0.7, "seed": 3}
    runtime = running.runtime
    assert running.restart(context(tmp_path, "second", params))
    assert running.runtime is runtime
    assert not running.is_last
    warm = curve(running)
    cold = PPOProgram().start(context(tmp_path, "cold", params, warm=False))
    assert warm == curve(cold)
    cold.close()
    assert running.events() == []


def test_a_trial_that_was_stopped_leaves_nothing_to_the_next(
    running: RunningPPO, tmp_path: Path
) -> None:
    params = {"seed": 3}
    assert running.restart(context(tmp_path, "stopped", {"optim.policy.lr": 1e-2}))
    iterator = iter(running)
    next(iterator)
    next(iterator)
    assert running.restart(context(tmp_path, "second", params))
    cold = PPOProgram().start(context(tmp_path, "cold", params, warm=False))
    assert curve(running) == curve(cold)
    cold.close()


def test_what_differs_from_a_cold_start_ends_the_processes(
    running: RunningPPO, tmp_path: Path
) -> None:
    files = list(tmp_path.glob("rlhf-sweeps-warm-*/*/*.safetensors"))
    assert files
    for file in files:
        weights = load_file(file)
        for tensor in weights.values():
            tensor += 1
        save_file(weights, file)
    assert not running.restart(context(tmp_path, "second", {}))
    (event,) = running.events()
    assert event.startswith("started cold: ")
    assert "of the model that was kept must equal" in event
    assert list(tmp_path.glob("rlhf-sweeps-warm-*/*")) == []


def test_another_placement_ends_the_processes_without_a_word(
    running: RunningPPO, tmp_path: Path
) -> None:
    assert not running.restart(
        context(tmp_path, "second", {"resources.head_cpus": 0.2, "resources.roles.fused.cpus": 3})
    )
    assert running.events() == []
    assert list(tmp_path.glob("rlhf-sweeps-warm-*/*")) == []
