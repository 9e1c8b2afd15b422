"""Dual clip, sequence ratios, clamps and weights of the policy loss."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_core.errors import ConfigError
from rlhf_core.ppo import AGGREGATIONS, RATIOS, policy_loss

NAN = math.nan


def f64(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def run(ratio_BT: Tensor, advantages_BT: Tensor, **options: Any) -> tuple[float, Tensor, Any]:
    """Loss, gradient by the log-probability, and metrics."""
    mask_BT = ~ratio_BT.isnan()
    old_BT = torch.full_like(ratio_BT, -1.0)
    logprobs_BT = (old_BT + ratio_BT.log()).requires_grad_()
    loss, stats = policy_loss(logprobs_BT, old_BT, advantages_BT, mask_BT, **options)
    (gradient_BT,) = torch.autograd.grad(loss, logprobs_BT)
    return loss.item(), gradient_BT, stats.metrics()


def test_dual_clip_by_hand() -> None:
    # Ratios 8, 2, 8: with A = -1, -1, 1 the surrogates are -8 -> -3, -2, 1.2.
    ratio_BT, advantages_BT = f64([[8.0, 2.0, 8.0]]), f64([[-1.0, -1.0, 1.0]])
    loss, gradient_BT, metrics = run(ratio_BT, advantages_BT, dual_clip=3.0)
    assert loss == pytest.approx((3 + 2 - 1.2) / 3)
    torch.testing.assert_close(gradient_BT, f64([[0.0, 2 / 3, 0.0]]))
    assert metrics["dual_clip_fraction"] == pytest.approx(1 / 3)
    loss, _, metrics = run(ratio_BT, advantages_BT)
    assert loss == pytest.approx((8 + 2 - 1.2) / 3)
    assert "dual_clip_fraction" not in metrics


def test_dual_clip_counts_are_added_and_stay_away_where_it_is_off() -> None:
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    new_BT, advantages_BT = f64([[8.0, 2.0]]).log(), f64([[-1.0, -1.0]])
    on, off = (
        policy_loss(new_BT, torch.zeros_like(new_BT), advantages_BT, mask_BT, dual_clip=c)[1]
        for c in (3.0, None)
    )
    assert (on + on).clipped_dual == 2
    assert (on + on).metrics()["dual_clip_fraction"] == 1 / 2
    assert (off + off).clipped_dual is None


def test_sequence_ratio_by_hand() -> None:
    # Log-ratios log 4, log 1: the geometric mean is 2, clipped at 1.5 where A > 0.
    ratio_BT, advantages_BT = f64([[4.0, 1.0, NAN]]), f64([[-1.0, 3.0, NAN]])
    loss, gradient_BT, metrics = run(ratio_BT, advantages_BT, ratio="sequence", clip_high=0.5)
    # Surrogates min(-2, -1.5) and min(6, 4.5).
    assert loss == pytest.approx((2 - 4.5) / 2)
    # Only the first is not clipped: d(2)/2 tokens, half for each token of the sequence.
    torch.testing.assert_close(gradient_BT, f64([[0.5, 0.5, 0.0]]))
    assert metrics["ratio_max"] == pytest.approx(2.0)
    assert metrics["clip_fraction_high"] == 1 / 2
    # The KL of the update stays that of tokens.
    assert metrics["approx_kl_k1"] == pytest.approx(-math.log(4.0) / 2)
    own, own_gradient_BT, _ = run(ratio_BT, advantages_BT, ratio="sequence_token", clip_high=0.5)
    assert own == loss
    torch.testing.assert_close(own_gradient_BT, f64([[1.0, 0.0, 0.0]]))


def test_both_sequence_gradients_agree_for_one_advantage_per_sequence() -> None:
    generator = torch.Generator().manual_seed(4)
    ratio_BT = torch.randn(3, 5, generator=generator, dtype=torch.float64).mul(0.2).exp()
    ratio_BT[1, 3:] = NAN
    advantages_BT = f64([[1.0], [-2.0], [0.5]]).expand(3, 5)
    options: dict[str, Any] = {"aggregation": "sequence_mean_token_mean"}
    one = run(ratio_BT, advantages_BT, ratio="sequence", **options)
    other = run(ratio_BT, advantages_BT, ratio="sequence_token", **options)
    assert one[0] == pytest.approx(other[0], abs=1e-14)
    torch.testing.assert_close(one[1], other[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("clamp", "ratios", "gradients"),
    [
        (20.0, [math.exp(20), math.exp(-20)], [0.0, 0.0]),
        ((-30.0, 10.0), [math.exp(10), math.exp(-25)], [0.0, 1.0]),
        (None, [math.exp(25), math.exp(-25)], [1.0, 1.0]),
    ],
)
def test_log_ratio_clamp_by_hand(clamp: Any, ratios: list[float], gradients: list[float]) -> None:
    # Nothing is clipped: A < 0 above the range, A > 0 below it.
    loss, gradient_BT, _ = run(
        f64([[math.exp(25), math.exp(-25)]]), f64([[-1.0, 1.0]]), log_ratio_clamp=clamp
    )
    assert loss == pytest.approx((ratios[0] - ratios[1]) / 2)
    expected_BT = f64([[ratios[0] * gradients[0] / 2, -ratios[1] * gradients[1] / 2]])
    torch.testing.assert_close(gradient_BT, expected_BT, rtol=1e-9, atol=0)


def test_weights_scale_token_losses_and_stay_constant() -> None:
    ratio_BT, advantages_BT = f64([[1.0, 1.0, NAN]]), f64([[1.0, 2.0, NAN]])
    weights_BT = f64([[0.5, 0.0, NAN]]).requires_grad_()
    number, gradient_BT, metrics = run(ratio_BT, advantages_BT, weights_BT=weights_BT)
    # The token of weight 0 still counts in the denominator.
    assert number == pytest.approx(-0.5 / 2)
    assert metrics["loss"] == pytest.approx(-0.5 / 2)
    torch.testing.assert_close(gradient_BT, f64([[-0.25, 0.0, 0.0]]))
    logprobs_BT = f64([[-1.0, -1.0, NAN]]).requires_grad_()
    loss, _ = policy_loss(
        logprobs_BT, logprobs_BT, advantages_BT, ~ratio_BT.isnan(), weights_BT=weights_BT
    )
    assert torch.autograd.grad(loss, weights_BT, allow_unused=True) == (None,)


def slow_token(
    ratio: float, advantage: float, low: float, high: float, dual: float | None
) -> float:
    """Loss of one token from its cases."""
    if advantage >= 0:
        return -advantage * min(ratio, 1 + high)
    ratio = max(ratio, 1 - low)
    return -advantage * (ratio if dual is None else min(ratio, dual))


@pytest.mark.parametrize(
    ("kind", "dual", "aggregation"),
    [*itertools.product(RATIOS, (None, 1.5), AGGREGATIONS)],
)
def test_against_the_definition(kind: Any, dual: float | None, aggregation: Any) -> None:
    generator = torch.Generator().manual_seed(8)
    log_ratio_BT, advantages_BT, weights_BT = torch.randn(
        3, 6, 5, generator=generator, dtype=torch.float64
    )
    mask_BT = torch.rand(6, 5, generator=generator) < 0.7
    mask_BT[0] = False
    loss, _ = policy_loss(
        log_ratio_BT,
        torch.zeros_like(log_ratio_BT),
        advantages_BT,
        mask_BT,
        clip_low=0.1,
        clip_high=0.3,
        dual_clip=dual,
        ratio=kind,
        weights_BT=weights_BT,
        aggregation=aggregation,
    )
    rows = []
    for b in range(1, 6):
        steps = mask_BT[b].nonzero().flatten().tolist()
        logs = {t: float(log_ratio_BT[b, t]) for t in steps}
        if kind != "token" and steps:
            logs = dict.fromkeys(steps, math.fsum(logs.values()) / len(steps))
        rows.append(
            [
                float(weights_BT[b, t])
                * slow_token(math.exp(logs[t]), float(advantages_BT[b, t]), 0.1, 0.3, dual)
                for t in steps
            ]
        )
    rows = [row for row in rows if row]
    expected = {
        "token_mean": sum(map(sum, rows)) / sum(map(len, rows)),
        "sequence_mean_token_mean": sum(sum(row) / len(row) for row in rows) / len(rows),
        "sequence_sum": sum(map(sum, rows)) / len(rows),
    }[aggregation]
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_refuses() -> None:
    x_BT, mask_BT = torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)
    for options, message in (
        ({"dual_clip": 1.0}, "dual_clip must be above 1, got 1.0"),
        ({"log_ratio_clamp": 0.0}, "log_ratio_clamp must be above 0"),
        ({"log_ratio_clamp": (1.0, 0.0)}, "log_ratio_clamp must be above 0"),
        ({"weights_BT": x_BT[:, :1]}, "weights_BT must have the shape of mask_BT"),
    ):
        with pytest.raises(ValueError, match=message):
            policy_loss(x_BT, x_BT, x_BT, mask_BT, **options)
    with pytest.raises(ConfigError, match="ratio must be one of"):
        policy_loss(x_BT, x_BT, x_BT, mask_BT, ratio="gspo")  # type: ignore[arg-type]
