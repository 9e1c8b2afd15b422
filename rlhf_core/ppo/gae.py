"""Discounted returns and generalised advantage estimation (https://arxiv.org/abs/1506.02438)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlhf_core.ppo.checks import check_batch, check_choice, select, statistic_dtype

Holes = Literal["skip", "step"]

HOLES: tuple[Holes, ...] = ("skip", "step")


@torch.no_grad()
def gae(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    holes: Holes = "skip",
) -> tuple[Tensor, Tensor]:
    r"""Advantages and returns of the tokens that count.

    $\delta_t = r_t + \gamma V_{t+1} - V_t$, $A_t = \delta_t + \gamma \lambda A_{t+1}$,
    $R_t = A_t + V_t$, where t + 1 is the next token that counts: tokens outside the mask, also
    those inside a response (tool output), are skipped and cost no discount. The value after the
    last token is 0, also for a truncated response. ``lam=1`` gives Monte-Carlo return minus value.

    Args:
        rewards_BT: Rewards, [B, T].
        values_BT: Values at rollout time, [B, T].
        mask_BT: True = counts.
        gamma: Discount, 0 to 1.
        lam: Lambda, 0 to 1.
        holes: ``skip`` as above; with ``step`` a token outside the mask is a step with reward and
            value 0, which costs its discount, as in OpenRLHF.

    Returns:
        Advantages and returns, each [B, T], without gradient, zeros outside the mask.

    Raises:
        ConfigError: ``holes`` is unknown.
        ValueError: gamma or lam lies outside 0 .. 1, or shapes disagree.
    """
    check_batch(mask_BT, rewards_BT=rewards_BT, values_BT=values_BT)
    _check_discounts(holes, gamma=gamma, lam=lam)
    dtype = statistic_dtype(rewards_BT, values_BT)
    rewards_BT, values_BT = select(rewards_BT, mask_BT, dtype), select(values_BT, mask_BT, dtype)
    steps_BT = mask_BT if holes == "skip" else torch.ones_like(mask_BT)
    delta_BT = rewards_BT + gamma * _next_values(values_BT, steps_BT) - values_BT
    delta_BT = select(delta_BT, steps_BT)
    # Outside the steps delta is 0 and the decay is 1, so the advantage is carried over unchanged.
    decay_BT = torch.full_like(delta_BT, gamma * lam).masked_fill(~steps_BT, 1.0)
    advantages_BT = select(_backward_scan(delta_BT, decay_BT), mask_BT)
    return advantages_BT, advantages_BT + values_BT


@torch.no_grad()
def discounted_returns(
    rewards_BT: Tensor, mask_BT: Tensor, *, gamma: float = 1.0, holes: Holes = "skip"
) -> Tensor:
    r"""$R_t = r_t + \gamma R_{t+1}$, where t + 1 is the next token that counts.

    Args:
        rewards_BT: Rewards, [B, T].
        mask_BT: True = counts.
        gamma: Discount, 0 to 1.
        holes: As for ``gae``.

    Returns:
        [B, T], without gradient, zeros outside the mask.

    Raises:
        ConfigError: ``holes`` is unknown.
        ValueError: gamma lies outside 0 .. 1, or shapes disagree.
    """
    check_batch(mask_BT, rewards_BT=rewards_BT)
    _check_discounts(holes, gamma=gamma)
    rewards_BT = select(rewards_BT, mask_BT)
    decay_BT = torch.full_like(rewards_BT, gamma)
    if holes == "skip":
        decay_BT = decay_BT.masked_fill(~mask_BT, 1.0)
    return select(_backward_scan(rewards_BT, decay_BT), mask_BT)


def _check_discounts(holes: str, **discounts: float) -> None:
    check_choice("holes", holes, HOLES)
    for name, value in discounts.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in 0 .. 1, got {value!r}; 1.0 and 0.95 are usual")


def _next_values(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """For each position the value at the next position that counts, 0 after the last."""
    length = mask_BT.shape[1]
    position_T = torch.arange(length, device=mask_BT.device)
    at_or_after_BT = torch.where(mask_BT, position_T, length).flip(1).cummin(1).values.flip(1)
    padded_BT = torch.nn.functional.pad(values_BT, (0, 1))
    after_BT = torch.nn.functional.pad(at_or_after_BT[:, 1:], (0, 1), value=length)
    return padded_BT.gather(1, after_BT)


def _backward_scan(delta_BT: Tensor, decay_BT: Tensor) -> Tensor:
    r"""$A_t = \delta_t + decay_t A_{t+1}$ from the last column to the first."""
    deltas, decays = delta_BT.t().contiguous().unbind(0), decay_BT.t().contiguous().unbind(0)
    running_B = torch.zeros_like(deltas[-1])
    columns = []
    for delta_B, decay_B in zip(reversed(deltas), reversed(decays), strict=True):
        running_B = torch.addcmul(delta_B, decay_B, running_B)
        columns.append(running_B)
    return torch.stack(columns[::-1], dim=1)
