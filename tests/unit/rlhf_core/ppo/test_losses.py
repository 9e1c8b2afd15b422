from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_core.ppo import LOG_RATIO_BOUND, entropy_bonus, policy_loss, value_loss

NAN = math.nan


def f64(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# Ratios 1.5, 1.5, 0.5, 0.5, 1 and padding; range 0.8 to 1.3.
RATIO_BT = f64([[1.5, 1.5, 0.5], [0.5, 1.0, NAN]])
ADVANTAGES_BT = f64([[1.0, -1.0, 2.0], [-2.0, 3.0, NAN]])
MASK_BT = torch.tensor([[True, True, True], [True, True, False]])
OLD_BT = f64([[-1.0, -2.0, -1.0], [-3.0, -1.0, NAN]])


def policy_by_hand(**kwargs: Any) -> Any:
    logprobs_BT = (OLD_BT + RATIO_BT.log()).requires_grad_()
    out = policy_loss(
        logprobs_BT, OLD_BT, ADVANTAGES_BT, MASK_BT, clip_low=0.2, clip_high=0.3, **kwargs
    )
    return logprobs_BT, *out


def test_policy_loss_by_hand() -> None:
    # min(rho A, clip(rho) A): min(1.5, 1.3) = 1.3; min(-1.5, -1.3) = -1.5; min(1, 1.6) = 1;
    # min(-1, -1.6) = -1.6; 3. Sum 2.2 over 5 tokens.
    logprobs_BT, loss, _ = policy_by_hand()
    assert loss.item() == pytest.approx(-2.2 / 5, abs=1e-15)
    # Gradient -rho A / 5 where the unclipped term was taken, else 0.
    (gradient,) = torch.autograd.grad(loss, logprobs_BT)
    expected = f64([[0.0, 1.5 / 5, -1.0 / 5], [0.0, -3.0 / 5, 0.0]])
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-15)


def test_policy_stats_by_hand() -> None:
    _, _, stats = policy_by_hand()
    metrics = stats.metrics()
    ratios = [1.5, 1.5, 0.5, 0.5, 1.0]
    assert metrics == pytest.approx(
        {
            "loss": -2.2 / 5,
            "clip_fraction_low": 1 / 5,
            "clip_fraction_high": 1 / 5,
            "ratio_max": 1.5,
            "approx_kl": sum(r - 1 - math.log(r) for r in ratios) / 5,
            "approx_kl_k1": sum(-math.log(r) for r in ratios) / 5,
        },
        abs=1e-15,
    )
    assert not stats.loss.requires_grad
    assert stats.tokens.item() == 5


@pytest.mark.parametrize(("sign", "low", "high"), [(-1.0, 2 / 3, 0.0), (1.0, 0.0, 1 / 3)])
def test_clip_fractions_count_only_tokens_that_lose_their_gradient(
    sign: float, low: float, high: float
) -> None:
    # Ratios 0.5, 0.5, 1.5: below the range a negative advantage is cut, above it a positive one.
    new_BT = f64([[0.5, 0.5, 1.5]]).log()
    mask_BT = torch.ones(1, 3, dtype=torch.bool)
    _, stats = policy_loss(new_BT, f64([[0.0] * 3]), f64([[sign] * 3]), mask_BT)
    metrics = stats.metrics()
    assert (metrics["clip_fraction_low"], metrics["clip_fraction_high"]) == (low, high)


def test_ratio_max_is_not_lifted_by_padding() -> None:
    mask_BT = torch.tensor([[True, False]])
    _, stats = policy_loss(f64([[-2.0, 0.0]]), f64([[-1.0, 0.0]]), f64([[1.0, 1.0]]), mask_BT)
    assert stats.metrics()["ratio_max"] == pytest.approx(math.exp(-1))


@pytest.mark.parametrize("normalizer", [20.0, torch.tensor(20)])
def test_normalizer_replaces_the_token_count(normalizer: float | Tensor) -> None:
    _, loss, stats = policy_by_hand(normalizer=normalizer)
    assert loss.item() == pytest.approx(-2.2 / 20, abs=1e-15)
    assert stats.metrics()["loss"] == pytest.approx(-2.2 / 5)


def slow_policy(new_BT: Tensor, low: float, high: float) -> float:
    """Sum of token losses from the definition with its four cases, in float64."""
    total = 0.0
    for b, t in MASK_BT.nonzero().tolist():
        gap = float(new_BT[b, t] - OLD_BT[b, t])
        rho = math.exp(min(max(gap, -LOG_RATIO_BOUND), LOG_RATIO_BOUND))
        advantage = float(ADVANTAGES_BT[b, t])
        if advantage >= 0:
            total -= advantage * min(rho, 1 + high)
        else:
            total -= advantage * max(rho, 1 - low)
    return total


def test_policy_loss_against_the_definition() -> None:
    generator = torch.Generator().manual_seed(11)
    for scale in (0.1, 0.5, 30.0):
        step_BT = scale * torch.randn(2, 3, generator=generator, dtype=torch.float64)
        loss, _ = policy_loss(
            OLD_BT + step_BT, OLD_BT, ADVANTAGES_BT, MASK_BT, clip_low=0.1, clip_high=0.28
        )
        expected = slow_policy(OLD_BT + step_BT, 0.1, 0.28) / 5
        assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_far_log_ratios_stay_finite() -> None:
    new_BT = torch.tensor([[500.0, -500.0]], requires_grad=True)
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    loss, stats = policy_loss(new_BT, torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]), mask_BT)
    loss.backward()
    assert new_BT.grad is not None
    assert torch.isfinite(new_BT.grad).all()
    metrics = stats.metrics()
    assert all(math.isfinite(v) for v in metrics.values())
    assert metrics["ratio_max"] == pytest.approx(math.exp(LOG_RATIO_BOUND), rel=1e-6)


def value_inputs() -> tuple[Tensor, Tensor, Tensor]:
    values_BT = f64([[1.0, 2.0], [0.0, NAN]]).requires_grad_()
    return values_BT, f64([[0.9, 1.0], [1.0, NAN]]), f64([[2.0, 3.0], [-1.0, NAN]])


VALUE_MASK_BT = torch.tensor([[True, True], [True, False]])


def test_value_loss_by_hand() -> None:
    # c = 1/2. Errors squared: 1, 1, 1. Clipped values 1, 1.5, 0.5 give 1, 2.25, 2.25.
    values_BT, old_BT, returns_BT = value_inputs()
    loss, stats = value_loss(values_BT, old_BT, returns_BT, VALUE_MASK_BT, clip_range=0.5)
    assert loss.item() == pytest.approx(0.5 * (1 + 2.25 + 2.25) / 3, abs=1e-15)
    # Only the first token is inside the range: gradient (V - R) / 3.
    (gradient,) = torch.autograd.grad(loss, values_BT)
    torch.testing.assert_close(gradient, f64([[-1 / 3, 0.0], [0.0, 0.0]]), rtol=0, atol=1e-15)
    # R - V_old = 1.1, 2, -2: mean 11/30, mean square 9.21/3. R = 2, 3, -1: mean 4/3, square 14/3.
    explained = 1 - (9.21 / 3 - (1.1 / 3) ** 2) / (14 / 3 - (4 / 3) ** 2)
    assert stats.metrics() == pytest.approx(
        {"loss": 5.5 / 6, "clip_fraction": 2 / 3, "explained_variance": explained}, abs=1e-14
    )


def test_value_loss_without_clip_by_hand() -> None:
    values_BT, old_BT, returns_BT = value_inputs()
    loss, stats = value_loss(values_BT, old_BT, returns_BT, VALUE_MASK_BT, normalizer=6)
    assert loss.item() == pytest.approx(0.5 * 3 / 6, abs=1e-15)
    assert stats.metrics()["clip_fraction"] == 0.0


def test_value_clip_fraction_is_not_fooled_by_rounding() -> None:
    generator = torch.Generator().manual_seed(2)
    old_BT, step_BT, returns_BT = torch.randn(3, 50, 40, generator=generator)
    mask_BT = torch.ones(50, 40, dtype=torch.bool)
    _, stats = value_loss(old_BT + step_BT, old_BT, returns_BT, mask_BT, clip_range=1e3)
    assert stats.clipped.item() == 0


@pytest.mark.parametrize(("values", "expected"), [([3.0, 3.0], 0.0), ([1.0, 3.0], 1.0)])
def test_explained_variance_limits(values: list[float], expected: float) -> None:
    # Perfect values explain all; equal returns leave nothing to explain.
    returns_BT = f64([values])
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    _, stats = value_loss(returns_BT, returns_BT, returns_BT, mask_BT)
    assert stats.metrics()["explained_variance"] == expected


def test_explained_variance_survives_a_large_mean() -> None:
    # Returns 1000 +- 0.1 in float32; values are off by half of the deviation: 1 - 1/4.
    signs_BT = torch.tensor([[1.0, -1.0] * 50])
    returns_BT, old_BT = 1000 + 0.125 * signs_BT, 1000 + 0.0625 * signs_BT
    _, stats = value_loss(old_BT, old_BT, returns_BT, torch.ones(1, 100, dtype=torch.bool))
    assert stats.metrics()["explained_variance"] == pytest.approx(0.75, abs=1e-6)


def test_entropy_bonus_by_hand() -> None:
    entropy_BT = f64([[1.0, 3.0], [NAN, 2.0]]).requires_grad_()
    mask_BT = torch.tensor([[True, True], [False, True]])
    loss, stats = entropy_bonus(entropy_BT, mask_BT, coef=0.1)
    assert loss.item() == pytest.approx(-0.1 * 6 / 3)
    (gradient,) = torch.autograd.grad(loss, entropy_BT)
    torch.testing.assert_close(gradient, f64([[-0.1 / 3, -0.1 / 3], [0.0, -0.1 / 3]]))
    assert stats.metrics() == {"entropy": 2.0}
    assert entropy_bonus(entropy_BT, mask_BT, coef=0.1, normalizer=6)[0].item() == pytest.approx(
        -0.1
    )


def test_targets_receive_no_gradient() -> None:
    x_BT, *targets = (f64([[v, 1.0]]).requires_grad_() for v in (0.1, 0.2, 0.3))
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    for loss, _ in (
        policy_loss(x_BT, *targets, mask_BT),
        value_loss(x_BT, *targets, mask_BT, clip_range=0.01),
    ):
        gradients = torch.autograd.grad(loss, [x_BT, *targets], allow_unused=True)
        assert [g is not None for g in gradients] == [True, False, False]


def test_no_tokens_give_zero_loss_and_zero_metrics() -> None:
    x_BT = f64([[1.0, 2.0]]).requires_grad_()
    mask_BT = torch.zeros(1, 2, dtype=torch.bool)
    for loss, stats in (
        policy_loss(x_BT, x_BT, x_BT, mask_BT),
        value_loss(x_BT, x_BT, x_BT, mask_BT, clip_range=0.2),
        entropy_bonus(x_BT, mask_BT, coef=0.1),
    ):
        loss.backward()
        assert loss.item() == 0.0
        assert set(stats.metrics().values()) == {0.0}


def test_half_precision_inputs_give_float32_losses() -> None:
    x_BT = torch.ones(1, 2, dtype=torch.bfloat16)
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    assert policy_loss(x_BT, x_BT, x_BT, mask_BT)[0].dtype == torch.float32
    assert value_loss(x_BT, x_BT, x_BT, mask_BT)[0].dtype == torch.float32


def test_refuses() -> None:
    x_BT, mask_BT = torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)
    for bounds in ({"clip_low": -0.1}, {"clip_low": 1.1}, {"clip_high": -0.1}):
        with pytest.raises(ValueError, match="0 <= clip_low <= 1 and clip_high >= 0 must hold"):
            policy_loss(x_BT, x_BT, x_BT, mask_BT, **bounds)
    with pytest.raises(ValueError, match="clip_range must be at least 0, got -1"):
        value_loss(x_BT, x_BT, x_BT, mask_BT, clip_range=-1)
    for normalizer in (0, -1, math.nan):
        with pytest.raises(ValueError, match="normalizer must be above 0"):
            entropy_bonus(x_BT, mask_BT, coef=1, normalizer=normalizer)
    with pytest.raises(ValueError, match="advantages_BT must have the shape of mask_BT"):
        policy_loss(x_BT, x_BT, x_BT[:, :1], mask_BT)
    with pytest.raises(ValueError, match="mask_BT must be bool"):
        value_loss(x_BT, x_BT, x_BT, mask_BT.float())
