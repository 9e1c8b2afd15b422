"""Learner and critic: updates go where the loss says, however the batch is cut, and state comes back exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import CONTEXT, experience, role, settings, trial_config, weights

from rlhf_core.errors import CheckpointError, DivergedError
from rlhf_core.models.forward import logprobs
from rlhf_core.store import LocalStore


def test_the_learner_makes_good_tokens_likelier(zoo: Zoo) -> None:
    batch = experience(zoo)
    learner = role("learner", trial_config(zoo))
    mask_BT, adv_BT = batch.rollout.response_mask_BT, batch.advantages_BT
    metrics = learner.update(CONTEXT, batch, settings([list(range(8))] * 3))
    with torch.no_grad():
        after_BT = logprobs(learner.model, batch.rollout, 1.0)
    change_BT = (after_BT - batch.rollout.logprobs_BT)[mask_BT]
    assert float((change_BT * adv_BT[mask_BT]).mean()) > 1e-3
    assert metrics["policy/grad_norm"] > 0
    assert metrics["policy/lr"] == 1e-3
    assert metrics["policy/ratio_max"] > 1


def test_the_first_step_sees_a_ratio_of_one(zoo: Zoo) -> None:
    metrics = role("learner", trial_config(zoo)).update(CONTEXT, experience(zoo), settings())
    assert metrics["policy/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["policy/approx_kl"] == pytest.approx(0.0, abs=1e-7)


def test_the_critic_moves_towards_the_returns(zoo: Zoo) -> None:
    batch = experience(zoo)
    critic = role("critic", trial_config(zoo))
    mask_BT = batch.rollout.response_mask_BT

    def error() -> float:
        values_BT = critic.values(CONTEXT, batch.rollout)
        return float((values_BT - batch.returns_BT)[mask_BT].square().mean())

    before = error()
    critic.update(CONTEXT, batch, settings([list(range(8))] * 5, lr=3e-3))
    assert error() < before - 0.01


@pytest.mark.parametrize("case", ["whole batch", "part of it", "loaded", "another batch", "steps"])
def test_the_pass_that_gave_the_values_is_that_of_the_first_step(
    zoo: Zoo, case: str, tmp_path: Path
) -> None:
    """It saves a pass where it can, and the update is the same."""
    batch = experience(zoo)
    steps = [[3, 1, 4, 0, 5, 2, 6, 7], list(range(8))]
    if case == "part of it":
        steps[0] = steps[0][:6]
    config = trial_config(zoo, ppo__minibatches=2 if case == "steps" else 1)
    updated, passes = [], []
    for asked in (True, False):
        critic = role("critic", config)
        if asked:
            critic.values(CONTEXT, batch.rollout)
        if case == "loaded":
            critic.load(CONTEXT, str(tmp_path), critic.save(CONTEXT, str(tmp_path), 0))
        shapes: list[torch.Size] = []
        critic.model.trunk.get_input_embeddings().register_forward_hook(
            lambda _module, inputs, _output, shapes=shapes: shapes.append(inputs[0].shape)
        )
        other = batch.select(range(7, -1, -1)) if case == "another batch" else batch
        metrics = critic.update(CONTEXT, other, settings(steps, eps=1e-2, value_clip_range=0.2))
        updated.append((weights(critic), metrics["value/loss"]))
        passes.append(len(shapes))
    assert passes == [1 if case == "whole batch" else 2, 2]
    (ours, loss), (plain, expected) = updated
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(expected, rel=1e-5)


def test_the_entropy_bonus_raises_entropy(zoo: Zoo) -> None:
    flat = torch.zeros_like(experience(zoo).advantages_BT)
    batch = experience(zoo, advantages_BT=flat)
    steps = [list(range(8))] * 3
    learner = role("learner", trial_config(zoo))
    before = weights(learner)
    learner.update(CONTEXT, batch, settings(steps))
    assert torch.equal(weights(learner), before)
    first = learner.update(CONTEXT, batch, settings(steps, entropy_coef=0.1))
    last = learner.update(CONTEXT, batch, settings(steps, lr=1e-9))
    assert last["policy/entropy"] > first["policy/entropy"]


@pytest.mark.parametrize("name", ["learner", "critic"])
@pytest.mark.parametrize("size", [1, 3])
def test_the_micro_batch_size_changes_nothing(zoo: Zoo, name: str, size: int) -> None:
    batch = experience(zoo)
    steps = [[0, 5, 2, 7], [1, 3, 4, 6]]
    # A large epsilon: AdamW would blow rounding up where a gradient is about zero.
    results = []
    for width in (8, size):
        trained = role(name, trial_config(zoo))
        how = settings(
            steps, micro_batch_size=width, eps=1e-2, entropy_coef=0.01, value_clip_range=0.2
        )
        metrics = trained.update(CONTEXT, batch, how)
        results.append((weights(trained), metrics))
    (one, metrics), (other, same) = results
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert metrics.keys() == same.keys()
    for key, value in metrics.items():
        assert same[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("name", ["learner", "critic"])
def test_a_learning_rate_of_zero_leaves_the_weights(zoo: Zoo, name: str) -> None:
    trained = role(name, trial_config(zoo))
    before = weights(trained)
    trained.update(CONTEXT, experience(zoo), settings(lr=0.0, weight_decay=0.1))
    assert torch.equal(weights(trained), before)
    trained.update(CONTEXT, experience(zoo), settings())
    assert not torch.equal(weights(trained), before)


def test_settings_come_with_every_update(zoo: Zoo) -> None:
    batch = experience(zoo)
    reference = role("learner", trial_config(zoo))
    reference.update(CONTEXT, batch, settings(lr=1e-3))
    first = weights(reference)
    for changes in ({"weight_decay": 0.5}, {"eps": 1.0}, {"max_grad_norm": 1e-3, "eps": 1e-2}):
        other = role("learner", trial_config(zoo))
        other.update(CONTEXT, batch, settings(lr=1e-3, **changes))
        assert not torch.equal(weights(other), first), changes
    # The moments only tell betas apart in the second step.
    reference.update(CONTEXT, experience(zoo), settings())
    other = role("learner", trial_config(zoo))
    for _ in range(2):
        other.update(CONTEXT, batch, settings(beta1=0.1, beta2=0.5))
    assert not torch.equal(weights(other), weights(reference))


def test_one_step_is_adamw_on_the_clipped_gradient(zoo: Zoo) -> None:
    batch = experience(zoo)
    critic = role("critic", trial_config(zoo))
    before = weights(critic)
    metrics = critic.update(CONTEXT, batch, settings(max_grad_norm=0.01, eps=1e-2))
    grads = torch.cat([p.grad.flatten() for p in critic.model.parameters() if p.grad is not None])
    assert metrics["value/grad_norm"] > 0.01
    assert float(grads.norm()) == pytest.approx(0.01, rel=1e-3)
    # The first step of Adam: both moments, corrected, are the gradient and its square.
    expected = before - 1e-3 * grads / (grads.abs() + 1e-2)
    torch.testing.assert_close(weights(critic), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["learner", "critic"])
def test_state_comes_back_exactly(zoo: Zoo, tmp_path: Path, name: str) -> None:
    batch, uri = experience(zoo), LocalStore(tmp_path).uri
    trained = role(name, trial_config(zoo))
    trained.update(CONTEXT, batch, settings([[0, 1, 2, 3], [4, 5, 6, 7]]))
    entry = trained.save(CONTEXT, uri, 5)
    other = role(name, trial_config(zoo))
    other.update(CONTEXT, batch, settings(lr=0.1))
    other.load(CONTEXT, uri, entry)
    assert torch.equal(weights(other), weights(trained))
    # The next step depends on moments and step count.
    metrics = [t.update(CONTEXT, batch, settings()) for t in (trained, other)]
    assert metrics[0] == metrics[1]
    assert torch.equal(weights(other), weights(trained))
    for one, same in zip(trained.model.parameters(), other.model.parameters(), strict=True):
        for key, value in trained.engine.optimizer.state[one].items():
            assert torch.equal(value, other.engine.optimizer.state[same][key]), key
            assert value.dtype == other.engine.optimizer.state[same][key].dtype


def test_a_state_from_before_the_first_update_forgets_moments(zoo: Zoo, tmp_path: Path) -> None:
    batch, uri = experience(zoo), LocalStore(tmp_path).uri
    learner = role("learner", trial_config(zoo))
    fresh = learner.save(CONTEXT, uri, 0)
    learner.update(CONTEXT, batch, settings())
    first = weights(learner)
    learner.load(CONTEXT, uri, fresh)
    assert not learner.engine.optimizer.state
    learner.update(CONTEXT, batch, settings())
    assert torch.equal(weights(learner), first)


def test_the_rollout_role_comes_back_with_its_version(zoo: Zoo, tmp_path: Path) -> None:
    uri = LocalStore(tmp_path).uri
    sampler = role("rollout", trial_config(zoo))
    with torch.no_grad():
        next(sampler.model.parameters()).add_(1.0)
    sampler.version = 3
    entry = sampler.save(CONTEXT, uri, 4)
    other = role("rollout", trial_config(zoo))
    other.load(CONTEXT, uri, entry)
    assert other.version == 3
    assert torch.equal(weights(other), weights(sampler))


def test_a_checkpoint_of_another_model_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    uri = LocalStore(tmp_path).uri
    entry = role("learner", trial_config(zoo, "GPT2")).save(CONTEXT, uri, 1)
    for name in ("learner", "rollout"):
        with pytest.raises(CheckpointError, match=f"does not fit {name} at model"):
            role(name, trial_config(zoo)).load(CONTEXT, uri, entry | {"version": 1})


@pytest.mark.parametrize("name", ["learner", "critic"])
def test_nan_weights_are_a_divergence_of_the_role(zoo: Zoo, name: str) -> None:
    trained = role(name, trial_config(zoo))
    with torch.no_grad():
        next(trained.model.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError) as caught:
        trained.update(CONTEXT, experience(zoo), settings())
    assert caught.value.role == name
    if name == "critic":
        with pytest.raises(DivergedError, match="critic: values"):
            trained.values(CONTEXT, experience(zoo).rollout)


@pytest.mark.parametrize("name", ["learner", "critic"])
def test_a_gradient_that_is_not_finite_leaves_the_weights(zoo: Zoo, name: str) -> None:
    trained = role(name, trial_config(zoo))
    before = weights(trained)
    huge = torch.full_like(experience(zoo).returns_BT, 3e38)
    with pytest.raises(DivergedError, match=name):
        trained.update(CONTEXT, experience(zoo, returns_BT=huge, advantages_BT=huge), settings())
    assert torch.equal(weights(trained), before)


def test_the_learner_exports_what_it_trained(zoo: Zoo, tmp_path: Path) -> None:
    from rlhf_core.models.load import load_policy

    learner = role("learner", trial_config(zoo))
    learner.update(CONTEXT, experience(zoo), settings())
    learner.export(CONTEXT, str(tmp_path))
    loaded = load_policy(str(tmp_path), "float32", torch.device("cpu"))
    assert all(map(torch.equal, loaded.parameters(), learner.model.parameters()))
