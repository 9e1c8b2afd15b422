"""Clipped policy loss, clipped value loss, entropy bonus and KL term.

After https://arxiv.org/abs/1707.06347; sequence ratio after https://arxiv.org/abs/2507.18071; dual
clip after https://arxiv.org/abs/1912.09729. B sequences, T response tokens; ``mask_BT`` bool,
True = counts. Each function aggregates token losses as ``aggregation`` says: give every micro-batch
of an optimiser step the ``Normalizer`` of the whole step, over all ranks, and losses, gradients and
statistics add up to those of the full batch, however it is split.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlhf_core.ppo.aggregation import Aggregation, Normalizer, aggregate
from rlhf_core.ppo.checks import check_batch, check_choice, select, statistic_dtype
from rlhf_core.ppo.kl import (
    LOG_RATIO_BOUND,
    WEIGHT_CAP,
    KLEstimator,
    KLGradient,
    excess,
    kl_surrogate,
)
from rlhf_core.ppo.stats import EntropyStats, KLStats, PolicyStats, ValueStats

Ratio = Literal["token", "sequence", "sequence_token"]

RATIOS: tuple[Ratio, ...] = ("token", "sequence", "sequence_token")

LogRatioClamp = float | tuple[float, float] | None


def policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio: Ratio = "token",
    log_ratio_clamp: LogRatioClamp = LOG_RATIO_BOUND,
    weights_BT: Tensor | None = None,
    aggregation: Aggregation = "token_mean",
    constant_length: float | None = None,
    normalizer: Normalizer | float | Tensor | None = None,
) -> tuple[Tensor, PolicyStats]:
    r"""$-\frac{1}{N} \sum m \, w \min(\rho A, \mathrm{clip}(\rho, 1-\epsilon_l, 1+\epsilon_h) A)$.

    $\rho = \exp(x)$, where x is the log-ratio $\log \pi - \log \pi_{old}$ of the token (``token``)
    or its mean over the sequence (``sequence``). The latter's gradient reaches every token of the
    sequence; ``sequence_token`` has the same value, but the gradient of a token's own loss reaches
    that token alone, undivided: both agree where all tokens of a sequence share one advantage and
    a sequence is averaged over its tokens. With dual clip c the minimum is not let below
    $c A$ where A < 0.

    Args:
        logprobs_BT: Current log-probabilities, with gradient.
        old_logprobs_BT: Log-probabilities before the update.
        advantages_BT: Advantages.
        mask_BT: True = counts.
        clip_low: $\epsilon_l$, 0 to 1.
        clip_high: $\epsilon_h$, at least 0.
        dual_clip: c, above 1; None switches it off.
        ratio: One of ``RATIOS``.
        log_ratio_clamp: x is clamped to +- this, or to these two bounds; None never clamps, and the
            exponential may overflow.
        weights_BT: w, constant factors of the token losses, see ``correction``; None is 1.
        aggregation: As for ``aggregate``.
        constant_length: As for ``aggregate``.
        normalizer: N, counts of the whole optimiser step, as for ``aggregate``.

    Returns:
        Scalar loss to minimise, and its statistics.

    Raises:
        ConfigError: A name is unknown.
        ValueError: A bound or the normalizer is out of range, or shapes disagree.
    """
    check_batch(
        mask_BT,
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=old_logprobs_BT,
        advantages_BT=advantages_BT,
        **({} if weights_BT is None else {"weights_BT": weights_BT}),
    )
    check_choice("ratio", ratio, RATIOS)
    _check_clips(clip_low, clip_high, dual_clip)
    dtype = statistic_dtype(logprobs_BT, old_logprobs_BT, advantages_BT)
    old_logprobs_BT = select(old_logprobs_BT.detach(), mask_BT, dtype)
    advantages_BT = select(advantages_BT.detach(), mask_BT, dtype)
    log_ratio_BT = select(logprobs_BT, mask_BT, dtype) - old_logprobs_BT
    ratio_BT = _ratio(log_ratio_BT, mask_BT, ratio, log_ratio_clamp)
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    surrogate_BT = torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
    clipped_dual = None
    if dual_clip is not None:
        bound_BT = dual_clip * advantages_BT
        dual_BT = (advantages_BT < 0) & (surrogate_BT < bound_BT)
        surrogate_BT = torch.where(dual_BT, bound_BT, surrogate_BT)
        clipped_dual = dual_BT.sum()
    loss_BT = -surrogate_BT
    if weights_BT is not None:
        loss_BT = loss_BT * select(weights_BT.detach(), mask_BT, dtype)
    with torch.no_grad():
        stats = PolicyStats(
            tokens=mask_BT.sum(),
            loss=_total(loss_BT),
            clipped_low=((ratio_BT < 1 - clip_low) & (advantages_BT < 0)).sum(),
            clipped_high=((ratio_BT > 1 + clip_high) & (advantages_BT > 0)).sum(),
            ratio_max=select(ratio_BT, mask_BT).amax(),
            kl_k1=_total(-log_ratio_BT),
            kl_k3=_total(excess(log_ratio_BT)),
            clipped_dual=clipped_dual,
        )
    loss = aggregate(
        loss_BT,
        mask_BT,
        aggregation=aggregation,
        constant_length=constant_length,
        normalizer=normalizer,
    )
    return loss, stats


def value_loss(
    values_BT: Tensor,
    old_values_BT: Tensor,
    returns_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_range: float | None = None,
    aggregation: Aggregation = "token_mean",
    constant_length: float | None = None,
    normalizer: Normalizer | float | Tensor | None = None,
) -> tuple[Tensor, ValueStats]:
    r"""$\frac{1}{2N} \sum_{bt} m_{bt} \max((V - R)^2, (\mathrm{clip}(V, V_{old} \pm c) - R)^2)$.

    Args:
        values_BT: Current values, with gradient.
        old_values_BT: Values at rollout time.
        returns_BT: Returns.
        mask_BT: True = counts.
        clip_range: c, at least 0; None switches clipping off.
        aggregation: As for ``aggregate``.
        constant_length: As for ``aggregate``.
        normalizer: N, counts of the whole optimiser step, as for ``aggregate``.

    Returns:
        Scalar loss to minimise, and its statistics.

    Raises:
        ConfigError: The aggregation is unknown.
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
    loss = aggregate(
        loss_BT,
        mask_BT,
        aggregation=aggregation,
        constant_length=constant_length,
        normalizer=normalizer,
    )
    return loss, stats


def entropy_bonus(
    entropy_BT: Tensor,
    mask_BT: Tensor,
    *,
    coef: float,
    aggregation: Aggregation = "token_mean",
    constant_length: float | None = None,
    normalizer: Normalizer | float | Tensor | None = None,
) -> tuple[Tensor, EntropyStats]:
    r"""$-\frac{c}{N} \sum_{bt} m_{bt} H_{bt}$, to be added to the policy loss.

    Args:
        entropy_BT: Entropy of the policy for each token, in nats.
        mask_BT: True = counts.
        coef: c; above 0 rewards entropy.
        aggregation: As for ``aggregate``.
        constant_length: As for ``aggregate``.
        normalizer: N, counts of the whole optimiser step, as for ``aggregate``.

    Returns:
        Scalar loss term, and its statistics.
    """
    check_batch(mask_BT, entropy_BT=entropy_BT)
    entropy_BT = select(entropy_BT, mask_BT)
    stats = EntropyStats(tokens=mask_BT.sum(), entropy=_total(entropy_BT.detach()))
    loss = aggregate(
        -coef * entropy_BT,
        mask_BT,
        aggregation=aggregation,
        constant_length=constant_length,
        normalizer=normalizer,
    )
    return loss, stats


def kl_loss(
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    coef: float,
    estimator: KLEstimator = "k3",
    gradient: KLGradient = "straight_through",
    old_logprobs_BT: Tensor | None = None,
    weight_cap: float = WEIGHT_CAP,
    bound: float = LOG_RATIO_BOUND,
    value_clamp: float | None = None,
    aggregation: Aggregation = "token_mean",
    constant_length: float | None = None,
    normalizer: Normalizer | float | Tensor | None = None,
) -> tuple[Tensor, KLStats]:
    r"""$\frac{\beta}{N} \sum_{bt} m_{bt} \, kl_{bt}$, to be added to the policy loss.

    Use it instead of the penalty in the reward, not beside it.

    Args:
        logprobs_BT: Current log-probabilities, with gradient.
        ref_logprobs_BT: Log-probabilities under the reference.
        mask_BT: True = counts.
        coef: $\beta$.
        estimator: Estimator of the value, see ``kl``.
        gradient: Form of the gradient, see ``kl_surrogate``; its default is right in expectation.
        old_logprobs_BT: Log-probabilities under the policy that drew the tokens; weighs the
            gradient, for updates after the first.
        weight_cap: Largest of these weights.
        bound: As for ``estimate``.
        value_clamp: As for ``estimate``.
        aggregation: As for ``aggregate``.
        constant_length: As for ``aggregate``.
        normalizer: N, counts of the whole optimiser step, as for ``aggregate``.

    Returns:
        Scalar loss term, and its statistics.
    """
    check_batch(mask_BT, logprobs_BT=logprobs_BT, ref_logprobs_BT=ref_logprobs_BT)
    dtype = statistic_dtype(logprobs_BT, ref_logprobs_BT)
    if old_logprobs_BT is not None:
        check_batch(mask_BT, old_logprobs_BT=old_logprobs_BT)
        old_logprobs_BT = select(old_logprobs_BT, mask_BT, dtype)
    kl_BT = kl_surrogate(
        estimator,
        select(logprobs_BT, mask_BT, dtype),
        select(ref_logprobs_BT, mask_BT, dtype),
        gradient=gradient,
        old_logprobs_BT=old_logprobs_BT,
        weight_cap=weight_cap,
        bound=bound,
        value_clamp=value_clamp,
    )
    stats = KLStats(tokens=mask_BT.sum(), kl=_total(kl_BT.detach()))
    loss = aggregate(
        coef * kl_BT,
        mask_BT,
        aggregation=aggregation,
        constant_length=constant_length,
        normalizer=normalizer,
    )
    return loss, stats


def _ratio(log_ratio_BT: Tensor, mask_BT: Tensor, ratio: str, clamp: LogRatioClamp) -> Tensor:
    if ratio != "token":
        mean_B1 = log_ratio_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
        if ratio == "sequence":
            log_ratio_BT = mean_B1.expand(mask_BT.shape)
        else:
            log_ratio_BT = mean_B1.detach() + (log_ratio_BT - log_ratio_BT.detach())
    if clamp is not None:
        low, high = clamp if isinstance(clamp, tuple) else (-clamp, clamp)
        if not low < high:
            raise ValueError(
                f"log_ratio_clamp must be above 0 or two rising bounds, got {clamp!r}; 20 is usual"
            )
        log_ratio_BT = log_ratio_BT.clamp(low, high)
    return log_ratio_BT.exp()


def _check_clips(clip_low: float, clip_high: float, dual_clip: float | None) -> None:
    if not (0 <= clip_low <= 1 and clip_high >= 0):
        raise ValueError(
            f"0 <= clip_low <= 1 and clip_high >= 0 must hold, got clip_low={clip_low!r} and "
            f"clip_high={clip_high!r}; 0.2 is usual for both"
        )
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(
            f"dual_clip must be above 1, got {dual_clip!r}; 3 is usual, None switches it off"
        )


def _total(x_BT: Tensor) -> Tensor:
    return x_BT.sum(dtype=torch.float64)
