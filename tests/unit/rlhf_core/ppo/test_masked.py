from __future__ import annotations

import math

import pytest
import torch

from rlhf_core.errors import ConfigError
from rlhf_core.ppo import masked_mean, masked_sum, masked_var, whiten

NAN, INF = math.nan, math.inf
X_BT = torch.tensor([[1.0, 2.0, NAN], [4.0, INF, 5.0]], dtype=torch.float64)
MASK_BT = torch.tensor([[True, True, False], [True, False, True]])
# Tokens that count: 1, 2, 4, 5. Sum 12, mean 3, squared deviations 4 + 1 + 1 + 4 = 10.


def test_by_hand() -> None:
    assert masked_sum(X_BT, MASK_BT).item() == 12.0
    assert masked_mean(X_BT, MASK_BT).item() == 3.0
    assert masked_var(X_BT, MASK_BT).item() == 2.5
    assert masked_var(X_BT, MASK_BT, unbiased=True).item() == pytest.approx(10 / 3, abs=1e-15)
    assert masked_mean(X_BT, MASK_BT, dim=1).tolist() == [1.5, 4.5]
    assert masked_sum(X_BT, MASK_BT, dim=0).tolist() == [5.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("shift_mean", "scale", "unbiased", "row_0", "row_1"),
    [
        # Divided by sqrt(2.5) = 1.5811388.
        (True, True, False, [-1.2649111, -0.6324555, 0.0], [0.6324555, 0.0, 1.2649111]),
        # Divided by sqrt(10/3) = 1.8257419.
        (True, True, True, [-1.0954451, -0.5477226, 0.0], [0.5477226, 0.0, 1.0954451]),
        # The mean, 3, is put back.
        (False, True, False, [1.7350889, 2.3675445, 0.0], [3.6324555, 0.0, 4.2649111]),
        (True, False, False, [-2.0, -1.0, 0.0], [1.0, 0.0, 2.0]),
        (False, False, False, [1.0, 2.0, 0.0], [4.0, 0.0, 5.0]),
    ],
)
def test_whiten_by_hand(
    shift_mean: bool, scale: bool, unbiased: bool, row_0: list[float], row_1: list[float]
) -> None:
    out_BT = whiten(X_BT, MASK_BT, shift_mean=shift_mean, scale=scale, unbiased=unbiased)
    expected_BT = torch.tensor([row_0, row_1], dtype=torch.float64)
    torch.testing.assert_close(out_BT, expected_BT, rtol=0, atol=1e-7)


def test_whiten_adds_eps_to_the_variance() -> None:
    # (5 - 3) / sqrt(2.5 + 1.5) = 1.
    assert whiten(X_BT, MASK_BT, eps=1.5)[1, 2].item() == 1.0


def test_whiten_may_bound_the_variance_instead() -> None:
    # Variance 2.5 is above 1.5 and below 4.
    assert whiten(X_BT, MASK_BT, eps=4.0, floor="clamp")[1, 2].item() == 1.0
    above = whiten(X_BT, MASK_BT, eps=1.5, floor="clamp")[1, 2].item()
    assert above == pytest.approx(2 / 2.5**0.5)
    with pytest.raises(ConfigError, match="floor must be one of"):
        whiten(X_BT, MASK_BT, floor="max")  # type: ignore[arg-type]


def test_degenerate_masks_give_zeros_and_not_nan() -> None:
    nothing_BT = torch.zeros_like(MASK_BT)
    assert masked_mean(X_BT, nothing_BT).item() == 0.0
    assert masked_mean(X_BT, nothing_BT, dim=1).tolist() == [0.0, 0.0]
    assert whiten(X_BT, nothing_BT).abs().max().item() == 0.0
    one_BT = nothing_BT.clone()
    one_BT[0, 1] = True
    assert masked_var(X_BT, one_BT, unbiased=True).item() == 0.0
    assert whiten(X_BT, one_BT).abs().max().item() == 0.0


def test_half_precision_is_summed_in_float32() -> None:
    # 4096 ones and a half: bfloat16 stops counting at 256.
    x_BT = torch.ones(1, 4096, dtype=torch.bfloat16)
    x_BT[0, 0] = 0.5
    out = masked_sum(x_BT, torch.ones(1, 4096, dtype=torch.bool))
    assert out.dtype == torch.float32
    assert out.item() == 4095.5
    assert whiten(x_BT, torch.ones(1, 4096, dtype=torch.bool)).dtype == torch.float32


def test_gradient_ignores_padding() -> None:
    x_BT = X_BT.clone().requires_grad_()
    whiten(x_BT, MASK_BT)[0, 0].backward()
    assert x_BT.grad is not None
    assert torch.isfinite(x_BT.grad).all()
    assert x_BT.grad[~MASK_BT].abs().max().item() == 0.0
    assert x_BT.grad[0, 0].item() != 0.0


@pytest.mark.parametrize(
    ("x", "mask", "expected"),
    [
        (torch.ones(2, 3), torch.ones(2, 3), "mask_BT must be bool"),
        (torch.ones(2, 3), torch.ones(2, 2, dtype=torch.bool), r"got \[2, 3\] and \[2, 2\]"),
        (torch.ones(3), torch.ones(3, dtype=torch.bool), r"shape \[B, T\], got \[3\]"),
        (torch.ones(2, 0), torch.ones(2, 0, dtype=torch.bool), "must have T > 0"),
    ],
)
def test_refuses_other_shapes_and_masks(x: torch.Tensor, mask: torch.Tensor, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        masked_mean(x, mask)
