"""A checkpoint of one trial as the start of another: staged, installed once, other parameters in force."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import trial_config

from rlhf_core import checkpoint, forks
from rlhf_core.config import TrialConfig
from rlhf_core.errors import CheckpointError
from rlhf_core.metrics import IterationMetrics
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import plan_trial
from rlhf_core.store import LocalStore
from rlhf_core.trial import PPOTrial

FORK = {"number": 1, "source": "a", "step": 4}


@pytest.fixture
def stores(tmp_path: Path) -> tuple[LocalStore, LocalStore]:
    return LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b")


def save(store: LocalStore, step: int, value: float, marked: bool = False) -> None:
    part = checkpoint.save_part(store, step, "learner", {"w": torch.full((3,), value)})
    checkpoint.commit(store, step, {"parts": {"learner": part}, "state": {}})
    if marked:
        forks.mark(store, step)


def value(store: LocalStore) -> float:
    step = checkpoint.pointed(store, "latest")
    assert step is not None
    entry = checkpoint.read_manifest(store, step)["parts"]["learner"]
    return float(checkpoint.load_part(store, entry)["w"][0])


def test_a_copy_takes_the_place_of_the_trials_own_checkpoints(
    stores: tuple[LocalStore, LocalStore],
) -> None:
    source, target = stores
    save(source, 4, 1.0)
    # The trial has a checkpoint of the same step, and a later one.
    save(target, 4, 7.0)
    save(target, 6, 8.0)
    forks.stage(source, target, 4)
    assert value(target) == 8.0
    assert forks.install(target, FORK)
    assert value(target) == 1.0
    assert checkpoint.steps(target) == [4]
    assert forks.marks(target) == [4]
    # Both own it: what the source deletes stays, and no byte was moved.
    weights = "checkpoints/00000004/learner.safetensors"
    assert target.path(weights).samefile(source.path(weights))
    source.delete("checkpoints")
    assert value(target) == 1.0


def test_a_fork_is_installed_once(stores: tuple[LocalStore, LocalStore]) -> None:
    source, target = stores
    save(source, 4, 1.0)
    forks.stage(source, target, 4)
    assert forks.install(target, FORK)
    save(target, 5, 2.0)
    # The process was lost and the trial starts again: it keeps what it did after the fork.
    assert not forks.install(target, FORK)
    assert value(target) == 2.0
    # The next one from the same checkpoint is another fork.
    forks.stage(source, target, 4)
    assert forks.install(target, {**FORK, "number": 2})
    assert value(target) == 1.0


@pytest.mark.parametrize("calls", range(1, 9))
def test_a_fork_that_broke_off_is_done_again(
    stores: tuple[LocalStore, LocalStore], monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    source, target = stores
    save(source, 4, 1.0)
    save(target, 4, 7.0)
    forks.stage(source, target, 4)
    left = iter(range(calls))
    with monkeypatch.context() as patch:
        for name in ("put", "delete", "take"):
            patch.setattr(LocalStore, name, _dying(getattr(LocalStore, name), left))
        with contextlib.suppress(KeyboardInterrupt):
            forks.install(target, FORK)
    forks.install(target, FORK)
    assert value(target) == 1.0
    assert checkpoint.steps(target) == [4]


def _dying(function: Any, left: Any) -> Any:
    """The function, until the process is gone."""

    def call(*args: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return function(*args)

    return call


def test_the_last_two_marks_outlive_pruning(stores: tuple[LocalStore, LocalStore]) -> None:
    store, _ = stores
    for step in range(1, 10):
        save(store, step, float(step), marked=step % 2 == 0)
        checkpoint.prune(store, 1)
    assert checkpoint.steps(store) == [6, 8, 9]
    assert forks.marks(store) == [6, 8]


def test_what_is_not_there_is_named(stores: tuple[LocalStore, LocalStore]) -> None:
    source, target = stores
    with pytest.raises(CheckpointError, match=r"step 4 has no manifest in .*/a"):
        forks.stage(source, target, 4)
    with pytest.raises(CheckpointError, match=r"no copy of step 4 is staged in .*/b"):
        forks.install(target, FORK)
    source.put("checkpoints/marks.json", b"{")
    with pytest.raises(CheckpointError, match=r"marks\.json in .*/a is unreadable"):
        forks.marks(source)


def test_a_copy_across_kinds_of_stores_moves_bytes(
    stores: tuple[LocalStore, LocalStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    source.put("x", b"1")

    def refuse(self: Path, other: Path) -> None:
        raise OSError("not on this file system")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    target.take(source, "x", "y/z")
    assert target.get("y/z") == b"1"
    with pytest.raises(FileNotFoundError):
        target.take(source, "nothing", "y/z")


# With a PPO trial


def ppo(config: TrialConfig, store: LocalStore) -> PPOTrial:
    plan = plan_trial(config)
    return PPOTrial(config, LocalRuntime(config, plan), plan, store)


def first(trial: PPOTrial) -> IterationMetrics:
    """The first iteration after the checkpoint."""
    trial.take_restored()
    return next(iter(trial))


def optimizer(trial: PPOTrial, role: str) -> torch.optim.Optimizer:
    host = trial.runtime.group(role).workers[0].host  # type: ignore[attr-defined]
    return host.role(role).engine.optimizer


@pytest.fixture(scope="module")
def source(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    """A trial at iteration 2."""
    store = LocalStore(tmp_path_factory.mktemp("source"))
    trial = ppo(trial_config(zoo), store)
    seen = iter(trial)
    for _ in range(3):
        next(seen)
    trial.ensure_saved()
    trial.close()
    return store


def copied(zoo: Zoo, source: LocalStore, tmp_path: Path, **values: Any) -> PPOTrial:
    store = LocalStore(tmp_path / "-".join(["copy", *values]))
    forks.stage(source, store, 2)
    forks.install(store, {"number": 1, "source": "a", "step": 2})
    trial = ppo(trial_config(zoo, **values), store)
    assert trial.restore()
    assert trial.iteration == 2
    return trial


def test_the_live_optimiser_has_the_learning_rates_of_the_copy(
    zoo: Zoo, source: LocalStore, tmp_path: Path
) -> None:
    trial = copied(zoo, source, tmp_path, optim__policy__lr=7e-4, optim__critic__lr=9e-4)
    # The moments are the source's, and the rates will be its own.
    state = optimizer(trial, "learner").state
    assert all(float(entry["step"]) > 0 for entry in state.values())
    metrics = first(trial).values
    rates = [optimizer(trial, role).param_groups[0]["lr"] for role in ("learner", "critic")]
    assert rates == [7e-4, 9e-4]
    assert (metrics["policy/lr"], metrics["value/lr"]) == (7e-4, 9e-4)
    trial.close()


def test_the_clip_of_the_copy_is_in_its_loss(zoo: Zoo, source: LocalStore, tmp_path: Path) -> None:
    same, other = (
        copied(zoo, source, tmp_path, ppo__epochs=3, **clip)
        for clip in ({}, {"ppo__clip_range_low": 0.001, "ppo__clip_range_high": 0.001})
    )
    usual, tight = (first(trial).values for trial in (same, other))
    # What was sampled is the same, what was learned from it is not.
    assert usual["reward/proxy"] == tight["reward/proxy"]
    assert usual["policy/loss"] != tight["policy/loss"]
    assert tight["policy/clip_fraction_high"] > usual["policy/clip_fraction_high"]
    for trial in (same, other):
        trial.close()


ADAPTIVE = {"ppo__kl__controller": "adaptive", "ppo__kl__target_per_response": 0.01}


def test_the_kl_coefficient_of_the_copy_is_in_force(
    zoo: Zoo, source: LocalStore, tmp_path: Path
) -> None:
    trial = copied(zoo, source, tmp_path, ppo__kl__coef=0.9)
    assert trial.kl.coef == 0.9
    assert first(trial).values["kl/coef"] == 0.9
    trial.close()


def test_an_adaptive_controller_goes_on_where_it_was_unless_its_start_changed(
    zoo: Zoo, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "source")
    config = trial_config(zoo, ppo__kl__horizon=20, checkpoint__every_iterations=2, **ADAPTIVE)
    trial = ppo(config, store)
    seen = iter(trial)
    for _ in range(3):
        next(seen)
    moved = trial.kl.coef
    assert moved != config.ppo.kl.coef
    trial.close()
    for coef, expected in ((config.ppo.kl.coef, moved), (0.9, 0.9)):
        values = {**ADAPTIVE, "ppo__kl__horizon": 50, "ppo__kl__coef": coef}
        again = copied(zoo, store, tmp_path / str(coef), **values)
        assert again.kl.coef == expected
        assert again.kl.horizon == 50
        again.close()


def test_a_checkpoint_from_before_the_coefficient_was_noted_goes_on_as_it_was(
    zoo: Zoo, source: LocalStore, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "old")
    forks.stage(source, store, 2)
    forks.install(store, {"number": 1, "source": "a", "step": 2})
    manifest = checkpoint.read_manifest(store, 2)
    del manifest["state"]["kl_coef_configured"]
    manifest["state"]["kl_coef"] = 0.123
    store.put("checkpoints/00000002/manifest.json", json.dumps(manifest).encode())
    trial = ppo(trial_config(zoo), store)
    assert trial.restore()
    assert trial.kl.coef == 0.123
    trial.close()
