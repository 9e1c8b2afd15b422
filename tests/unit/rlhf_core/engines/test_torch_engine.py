"""Plain torch: 16-bit weights move like wide ones, and cheaper passes compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import CONTEXT, CPU, experience, role, rollout, settings, trial_config, weights
from torch import nn

from rlhf_core.engines.passes import Passes
from rlhf_core.errors import ConfigError, DivergedError
from rlhf_core.store import LocalStore
from rlhf_core.types import Experience

HALF = {"model__dtype": "bfloat16"}
BOTH = pytest.mark.parametrize("name", ["learner", "critic"])


def _masters(trained: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trained.engine._masters.values()]).clone()


@BOTH
def test_small_steps_add_up_in_bfloat16(zoo: Zoo, name: str) -> None:
    """One step of 1e-6 is lost in bfloat16 weights; the float32 ones behind them keep it."""
    batch, how = experience(zoo), settings(lr=1e-6)
    half, wide = role(name, trial_config(zoo, **HALF)), role(name, trial_config(zoo))
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    start, start_wide = _masters(half), weights(wide)
    for _ in range(10):
        for trained in (half, wide):
            trained.update(CONTEXT, batch, how)
    moved, moved_wide = _masters(half) - start, weights(wide) - start_wide
    # The gradient of bfloat16 passes differs by its rounding.
    assert float(moved.norm() / moved_wide.norm()) == pytest.approx(1, abs=0.1)
    assert float(nn.functional.cosine_similarity(moved, moved_wide, dim=0)) > 0.9
    rounded = _masters(half).bfloat16()
    assert torch.equal(weights(half), rounded)


def test_passes_in_bfloat16_add_up_in_float32(zoo: Zoo) -> None:
    batch, grads = experience(zoo), []
    for size in (8, 1):
        critic = role("critic", trial_config(zoo, **HALF))
        critic.update(CONTEXT, batch, settings(micro_batch_size=size, max_grad_norm=None))
        assert all(p.grad is None for p in critic.model.parameters())
        masters = critic.engine._masters.values()
        assert {p.grad.dtype for p in masters if p.grad is not None} == {torch.float32}
        grads.append(torch.cat([p.grad.flatten() for p in masters if p.grad is not None]))
    assert float((grads[1] - grads[0]).norm() / grads[0].norm()) < 0.02


@BOTH
def test_a_checkpoint_holds_the_wide_weights(zoo: Zoo, tmp_path: Path, name: str) -> None:
    batch, uri = experience(zoo), LocalStore(tmp_path).uri
    one = role(name, trial_config(zoo, **HALF))
    one.update(CONTEXT, batch, settings(lr=1e-6))
    entry = one.save(CONTEXT, uri, 1)
    other = role(name, trial_config(zoo, **HALF))
    other.update(CONTEXT, batch, settings(lr=0.1))
    other.load(CONTEXT, uri, entry)
    assert torch.equal(_masters(other), _masters(one))
    assert torch.equal(weights(other), weights(one))
    assert not torch.equal(_masters(one), _masters(one).bfloat16().float())
    # One that goes on in float32 has them too.
    wide = role(name, trial_config(zoo))
    wide.load(CONTEXT, uri, entry)
    assert torch.equal(weights(wide), _masters(one))
    metrics = [r.update(CONTEXT, batch, settings()) for r in (one, other)]
    assert metrics[0] == metrics[1]


def test_a_gradient_that_is_not_finite_leaves_bfloat16_weights(zoo: Zoo) -> None:
    critic = role("critic", trial_config(zoo, **HALF))
    before = weights(critic), _masters(critic)
    huge = torch.full_like(experience(zoo).returns_BT, 3e38)
    with pytest.raises(DivergedError, match="critic"):
        critic.update(CONTEXT, experience(zoo, returns_BT=huge), settings())
    assert torch.equal(weights(critic), before[0])
    assert torch.equal(_masters(critic), before[1])


class _Kept:
    """Bytes that a graph keeps for its backward pass."""

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> _Kept:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda x: x)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.bytes += tensor.nbytes
        return tensor


@BOTH
@pytest.mark.parametrize("family", ["Llama", "GPT2", "Qwen2"])
def test_layers_that_are_computed_again_give_the_same(zoo: Zoo, name: str, family: str) -> None:
    config = trial_config(zoo, family)
    batch, found, kept = _experience(config, zoo), [], []
    for again in (False, True):
        trained = role(name, trial_config(zoo, family, optim__gradient_checkpointing=again))
        with _Kept() as graph:
            metrics = trained.update(CONTEXT, batch, settings([[0, 3, 5], [1, 2, 4, 6, 7]]))
        kept.append(graph.bytes)
        metrics.pop(f"time/allreduce_{name}")
        found.append((weights(trained), metrics))
        modules = [m for m in trained.model.modules() if m is not trained.model]
        assert not any(getattr(m, "gradient_checkpointing", False) for m in modules)
        assert not any(m.training for m in modules)
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    # Two layers of the model: what lies within them is not kept.
    assert kept[1] < 0.65 * kept[0]


def _experience(config: Any, zoo: Zoo) -> Experience:
    batch, _ = rollout(config)
    generator = torch.Generator().manual_seed(0)
    shape = batch.response_mask_BT.shape

    def noise() -> torch.Tensor:
        values = torch.randn(shape, generator=generator)
        return values.masked_fill(~batch.response_mask_BT, 0.0)

    return Experience(batch, advantages_BT=noise(), returns_BT=noise(), values_BT=noise())


@BOTH
def test_autocast_computes_products_in_bfloat16_over_float32_weights(zoo: Zoo, name: str) -> None:
    batch, grads = experience(zoo), []
    for autocast in ("off", "bfloat16"):
        trained = role(name, trial_config(zoo, optim__autocast=autocast))
        trained.update(CONTEXT, batch, settings(max_grad_norm=None))
        found = [p.grad for p in trained.model.parameters() if p.grad is not None]
        assert {g.dtype for g in found} == {torch.float32}
        grads.append(torch.cat([g.flatten() for g in found]))
    error = float((grads[1] - grads[0]).norm() / grads[0].norm())
    # bfloat16 has 8 bits: neither equal nor far.
    assert 1e-4 < error < 0.1


def test_values_are_computed_in_the_type_of_the_updates(zoo: Zoo) -> None:
    batch = experience(zoo).rollout
    wide, cast = (
        role("critic", trial_config(zoo, model__critic_init="reward", optim__autocast=autocast,
                            **{"reward.model": zoo.rewards["same"]})).values(CONTEXT, batch)
        for autocast in ("off", "bfloat16")
    )  # fmt: skip
    assert 1e-5 < float((wide - cast).abs().max() / wide.abs().max()) < 0.1


def test_a_model_without_layers_cannot_compute_them_again(zoo: Zoo) -> None:
    config = trial_config(zoo, optim__gradient_checkpointing=True)
    with pytest.raises(ConfigError, match=r"gradient_checkpointing needs .* but Linear has none"):
        Passes(config, nn.Linear(2, 2), CPU)
