"""Clipped policy loss, clipped value loss and entropy bonus (https://arxiv.org/abs/1707.06347).

B sequences, T response tokens; ``mask_BT`` bool, True = counts. Each function returns the sum of
token losses divided by ``normalizer``: give every micro-batch of an optimiser step the number of
tokens of the whole step, over all ranks, and losses, gradients and statistics add up to those of
the full batch, however it is split.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.ppo.checks import check_batch, select, statistic_dtype
from rlhf_core.ppo.kl import LOG_RATIO_BOUND, excess
from rlhf_core.ppo.stats import EntropyStats, PolicyStats, ValueStats


def policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    normalizer: float | Tensor | None = None,
) -> tuple[Tensor, PolicyStats]:
    r"""$-\frac{1}{N} \sum m \min(\rho A, \mathrm{clip}(\rho, 1-\epsilon_l, 1+\epsilon_h) A)$.

    $\rho = \exp(\log \pi - \log \pi_{old})$, with the log-ratio clamped to +-``LOG_RATIO_BOUND``.

    Args:
        logprobs_BT: Current log-probabilities, with gradient.
        old_logprobs_BT: Log-probabilities before the update.
        advantages_BT: Advantages.
        mask_BT: True = counts.
        clip_low: $\epsilon_l$, 0 to 1.
        clip_high: $\epsilon_h$, at least 0.
        normalizer: N, tokens of the whole optimiser step; None takes those of this mask.

    Returns:
        Scalar loss to minimise, and its statistics.

    Raises:
        ValueError: A clip bound or the normalizer is out of range, or shapes disagree.
    """
    check_batch(
        mask_BT,
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=old_logprobs_BT,
        advantages_BT=advantages_BT,
    )
    if not (0 <= clip_low <= 1 and clip_high >= 0):
        raise ValueError(
            f"0 <= clip_low <= 1 and clip_high >= 0 must hold, got clip_low={clip_low!r} and "
            f"clip_high={clip_high!r}; 0.2 is usual for both"
        )
    dtype = statistic_dtype(logprobs_BT, old_logprobs_BT, advantages_BT)
    old_logprobs_BT = select(old_logprobs_BT.detach(), mask_BT, dtype)
    advantages_BT = select(advantages_BT.detach(), mask_BT, dtype)
    log_ratio_BT = select(logprobs_BT, mask_BT, dtype) - old_logprobs_BT
    ratio_BT = log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    loss_BT = -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
    with torch.no_grad():
        stats = PolicyStats(
            tokens=mask_BT.sum(),
            loss=_total(loss_BT),
            clipped_low=((ratio_BT < 1 - clip_low) & (advantages_BT < 0)).sum(),
            clipped_high=((ratio_BT > 1 + clip_high) & (advantages_BT > 0)).sum(),
            ratio_max=select(ratio_BT, mask_BT).amax(),
            kl_k1=_total(-log_ratio_BT),
            kl_k3=_total(excess(log_ratio_BT)),
        )
    return _normalised(loss_BT, mask_BT, normalizer), stats


def value_loss(
    values_BT: Tensor,
    old_values_BT: Tensor,
    returns_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_range: float | None = None,
    normalizer: float | Tensor | None = None,
) -> tuple[Tensor, ValueStats]:
    r"""$\frac{1}{2N} \sum_{bt} m_{bt} \max((V - R)^2, (\mathrm{clip}(V, V_{old} \pm c) - R)^2)$.

    Args:
        values_BT: Current values, with gradient.
        old_values_BT: Values at rollout time.
        returns_BT: Returns.
        mask_BT: True = counts.
        clip_range: c, at least 0; None switches clipping off.
        normalizer: N, tokens of the whole optimiser step; None takes those of this mask.

    Returns:
        Scalar loss to minimise, and its statistics.

    Raises:
        ValueError: The clip range or the normalizer is out of range, or shapes disagree.
    """
    check_batch(mask_BT, values_BT=values_BT, old_values_BT=old_values_BT, returns_BT=returns_BT)
    if clip_range is not None and not clip_range >= 0:
        raise ValueError(
            f"clip_range must be at least 0, got {clip_range!r}; None switches clipping off"
        )
    dtype = statistic_dtype(values_BT, old_values_BT, returns_BT)
    values_BT = select(values_BT, mask_BT, dtype)
    old_values_BT = select(old_values_BT.detach(), mask_BT, dtype)
    returns_BT = select(returns_BT.detach(), mask_BT, dtype)
    error_BT = worst_BT = (values_BT - returns_BT).square()
    if clip_range is not None:
        clipped_BT = values_BT.clamp(old_values_BT - clip_range, old_values_BT + clip_range)
        worst_BT = torch.maximum(error_BT, (clipped_BT - returns_BT).square())
    loss_BT = 0.5 * worst_BT
    with torch.no_grad():
        residual_BT = returns_BT - old_values_BT
        stats = ValueStats(
            tokens=mask_BT.sum(),
            loss=_total(loss_BT),
            clipped=(worst_BT > error_BT).sum(),
            returns=_total(returns_BT),
            returns_squared=_total(returns_BT.double().square()),
            errors=_total(residual_BT),
            errors_squared=_total(residual_BT.double().square()),
        )
    return _normalised(loss_BT, mask_BT, normalizer), stats


def entropy_bonus(
    entropy_BT: Tensor,
    mask_BT: Tensor,
    *,
    coef: float,
    normalizer: float | Tensor | None = None,
) -> tuple[Tensor, EntropyStats]:
    r"""$-\frac{c}{N} \sum_{bt} m_{bt} H_{bt}$, to be added to the policy loss.

    Args:
        entropy_BT: Entropy of the policy for each token, in nats.
        mask_BT: True = counts.
        coef: c; above 0 rewards entropy.
        normalizer: N, tokens of the whole optimiser step; None takes those of this mask.

    Returns:
        Scalar loss term, and its statistics.
    """
    check_batch(mask_BT, entropy_BT=entropy_BT)
    entropy_BT = select(entropy_BT, mask_BT)
    stats = EntropyStats(tokens=mask_BT.sum(), entropy=_total(entropy_BT.detach()))
    return _normalised(-coef * entropy_BT, mask_BT, normalizer), stats


def _normalised(loss_BT: Tensor, mask_BT: Tensor, normalizer: float | Tensor | None) -> Tensor:
    if normalizer is None:
        normalizer = mask_BT.sum().clamp(min=1)
    elif not isinstance(normalizer, Tensor) and not normalizer > 0:
        raise ValueError(
            f"normalizer must be above 0, got {normalizer!r}; "
            "pass the number of tokens of the whole optimiser step"
        )
    return loss_BT.sum() / normalizer


def _total(x_BT: Tensor) -> Tensor:
    return x_BT.sum(dtype=torch.float64)
