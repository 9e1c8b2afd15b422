"""Sums, means, variances and whitening over the tokens that count.

B sequences, T response tokens; ``mask_BT`` bool, True = counts. What stands outside the mask never
matters, not even inf or NaN. Results are float32, or float64 where the input is float64.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlhf_core.ppo.checks import check_batch, check_choice, select

Floor = Literal["add", "clamp"]

FLOORS: tuple[Floor, ...] = ("add", "clamp")


def masked_sum(x_BT: Tensor, mask_BT: Tensor, *, dim: int | None = None) -> Tensor:
    r"""Sum over the mask, $\sum_{bt} m_{bt} x_{bt}$.

    Args:
        x_BT: Values, [B, T].
        mask_BT: True = counts.
        dim: Dimension to reduce; None reduces both.

    Returns:
        Scalar, or a vector over the other dimension.
    """
    check_batch(mask_BT, x_BT=x_BT)
    return select(x_BT, mask_BT).sum(dim)


def masked_mean(x_BT: Tensor, mask_BT: Tensor, *, dim: int | None = None) -> Tensor:
    r"""Mean over the mask, $\sum_{bt} m_{bt} x_{bt} / \sum_{bt} m_{bt}$; 0 where nothing counts.

    Args:
        x_BT: Values, [B, T].
        mask_BT: True = counts.
        dim: Dimension to reduce; None reduces both. ``dim=1`` gives one mean for each sequence.

    Returns:
        Scalar, or a vector over the other dimension.
    """
    return masked_sum(x_BT, mask_BT, dim=dim) / mask_BT.sum(dim).clamp(min=1)


def masked_var(x_BT: Tensor, mask_BT: Tensor, *, unbiased: bool = False) -> Tensor:
    r"""Variance over the mask, $\sum_{bt} m_{bt} (x_{bt} - \bar x)^2 / n$.

    Args:
        x_BT: Values, [B, T].
        mask_BT: True = counts; n is the number of True.
        unbiased: Divide by n - 1 instead of n; a single token then has variance 0.

    Returns:
        Scalar.
    """
    deviation_BT = select(x_BT, mask_BT) - masked_mean(x_BT, mask_BT)
    count = mask_BT.sum() - (1 if unbiased else 0)
    return select(deviation_BT, mask_BT).square().sum() / count.clamp(min=1)


def whiten(
    x_BT: Tensor,
    mask_BT: Tensor,
    *,
    shift_mean: bool = True,
    scale: bool = True,
    unbiased: bool = False,
    eps: float = 1e-8,
    floor: Floor = "add",
) -> Tensor:
    r"""Whitened values over the mask, $(x_{bt} - \bar x) / \sqrt{\mathrm{var} + \epsilon}$.

    The statistics are those of the batch handed over: pass the whole rollout, not a micro-batch.
    Population variance is what OpenRLHF uses; verl and TRL use the unbiased one.

    Args:
        x_BT: Values, [B, T].
        mask_BT: True = counts.
        shift_mean: Whether the result has mean 0; otherwise it keeps the mean of the input, as is
            usual for rewards.
        scale: Whether the result has variance 1; otherwise it keeps the variance of the input.
        unbiased: Divide by n - 1 in the variance.
        eps: Added to the variance, or its floor.
        floor: ``add`` takes var + eps, ``clamp`` max(var, eps).

    Returns:
        Whitened values, [B, T]; zeros outside the mask.

    Raises:
        ConfigError: ``floor`` is unknown.
    """
    check_choice("floor", floor, FLOORS)
    mean = masked_mean(x_BT, mask_BT)
    whitened_BT = select(x_BT, mask_BT) - mean
    if scale:
        var = masked_var(x_BT, mask_BT, unbiased=unbiased)
        var = var + eps if floor == "add" else var.clamp(min=eps)
        whitened_BT = whitened_BT * torch.rsqrt(var)
    if not shift_mean:
        whitened_BT = whitened_BT + mean
    return select(whitened_BT, mask_BT)


def one_past(mask_BT: Tensor) -> Tensor:
    """The mask with one more position in each row: the one after its last True, if there is room.

    A row without a True gains its first position. This is where TRL puts the terminal score, and
    over what it takes values, returns and the value loss.
    """
    check_batch(mask_BT)
    position_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B1 = torch.where(mask_BT, position_T, -1).amax(dim=1, keepdim=True)
    return mask_BT | (position_T == last_B1 + 1)
