from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlhf_core.ppo import gae


def slow_gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Exponentially weighted sum of deltas from its definition, row by row, in float64."""
    advantages_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
    returns_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
    for b in range(mask_BT.shape[0]):
        steps = [t for t in range(mask_BT.shape[1]) if mask_BT[b, t]]
        rewards = [float(rewards_BT[b, t]) for t in steps]
        values = [float(values_BT[b, t]) for t in steps] + [0.0]
        deltas = [r + gamma * values[k + 1] - values[k] for k, r in enumerate(rewards)]
        for k, t in enumerate(steps):
            advantages_BT[b, t] = math.fsum(
                (gamma * lam) ** (j - k) * deltas[j] for j in range(k, len(steps))
            )
            returns_BT[b, t] = advantages_BT[b, t] + values[k]
    return advantages_BT, returns_BT


def test_by_hand() -> None:
    # gamma = lam = 1/2, so gamma lam = 1/4.
    # Row 0: delta_1 = 4 - 2 = 2, delta_0 = 0 + 1 - 1 = 0; A = [1/2, 2], R = [3/2, 4].
    # Row 1: the middle token is skipped, so the numbers of row 0 move apart.
    nan, inf = math.nan, math.inf
    rewards_BT = torch.tensor([[0.0, 4.0, nan], [0.0, 77.0, 4.0]], dtype=torch.float64)
    values_BT = torch.tensor([[1.0, 2.0, inf], [1.0, -9.0, 2.0]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, True, False], [True, False, True]])
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, gamma=0.5, lam=0.5)
    assert advantages_BT.tolist() == [[0.5, 2.0, 0.0], [0.5, 0.0, 2.0]]
    assert returns_BT.tolist() == [[1.5, 4.0, 0.0], [1.5, 0.0, 4.0]]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.97, 0.9), (0.9, 0.0)])
def test_against_the_definition(gamma: float, lam: float) -> None:
    generator = torch.Generator().manual_seed(3)
    rewards_BT, values_BT = torch.randn(2, 6, 9, generator=generator, dtype=torch.float64)
    mask_BT = torch.rand(6, 9, generator=generator) < 0.7
    mask_BT[0], mask_BT[1] = True, False
    out = gae(rewards_BT, values_BT, mask_BT, gamma=gamma, lam=lam)
    for mine, theirs in zip(out, slow_gae(rewards_BT, values_BT, mask_BT, gamma, lam), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_defaults_are_gamma_1_and_lam_095() -> None:
    # A_1 = 1, A_0 = 0 + 0.95 * 1.
    rewards_BT = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    advantages_BT, _ = gae(
        rewards_BT, torch.zeros_like(rewards_BT), torch.ones(1, 2, dtype=torch.bool)
    )
    assert advantages_BT.tolist() == [[0.95, 1.0]]


def test_results_carry_no_gradient_and_float32_for_half_precision() -> None:
    values_BT = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    mask_BT = torch.ones(2, 3, dtype=torch.bool)
    for out_BT in gae(torch.ones(2, 3, dtype=torch.bfloat16), values_BT, mask_BT):
        assert not out_BT.requires_grad
        assert out_BT.dtype == torch.float32


@pytest.mark.parametrize(("name", "value"), [("gamma", 1.01), ("lam", -0.1), ("lam", math.nan)])
def test_refuses(name: str, value: float) -> None:
    x_BT = torch.ones(1, 2)
    with pytest.raises(ValueError, match=rf"{name} must lie in 0 \.\. 1, got {value}"):
        gae(x_BT, x_BT, x_BT.bool(), **{name: value})
    with pytest.raises(ValueError, match="values_BT must have the shape of mask_BT"):
        gae(x_BT, x_BT[:, :1], x_BT.bool())
