r"""Weights for tokens that another policy drew than the one the update starts from.

The sampler's weights may be older than the learner's, and its kernels differ from the learner's.
With $r = \exp(\log \pi_{old} - \log \pi_{rollout})$, old being the learner before the update and
rollout what the sampler stamped on the tokens, the loss of a token drawn by the sampler must be
weighed by r. Truncated weights after https://fengyao.notion.site/off-policy-rl, IcePop after
https://arxiv.org/abs/2510.18855. B sequences, T response tokens; ``mask_BT`` bool, True = counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlhf_core.ppo.checks import check_batch, check_choice, select, statistic_dtype
from rlhf_core.ppo.kl import LOG_RATIO_BOUND, excess
from rlhf_core.ppo.stats import CorrectionStats

CorrectionKind = Literal["none", "tis", "icepop", "sequence_mask"]

CORRECTIONS: tuple[CorrectionKind, ...] = ("none", "tis", "icepop", "sequence_mask")


@dataclass(frozen=True, slots=True)
class Correction:
    """Weights of tokens and what they were made from.

    Rejected tokens have weight 0 and still count in the denominator of the loss, so that a batch
    that is rejected in part takes a smaller step. The other reading lets them leave the mask: hand
    ``kept_BT`` to the loss as its mask, and the ``Normalizer`` of the ``kept_BT`` of the whole
    optimiser step.

    Args:
        weights_BT: Factors of the token losses, without gradient, zeros outside the mask.
        kept_BT: Bool, True = counts and was not rejected.
        stats: Sums over this batch.
    """

    weights_BT: Tensor
    kept_BT: Tensor
    stats: CorrectionStats


@torch.no_grad()
def correct(
    kind: str,
    old_logprobs_BT: Tensor,
    rollout_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    low: float | None = None,
    high: float = 2.0,
    weigh_kept: bool = True,
) -> Correction:
    r"""Weights of tokens drawn by another policy.

    ``none`` 1, and only measures. ``tis`` $\min(r, high)$, and with ``low``
    $\mathrm{clip}(r, low, high)$. ``icepop`` r where $low \le r \le high$, else 0.
    ``sequence_mask`` r where the geometric mean of r over the sequence lies in that band, else 0
    for all tokens of the sequence.

    Args:
        kind: One of ``CORRECTIONS``.
        old_logprobs_BT: Log-probabilities of the learner before the update.
        rollout_logprobs_BT: Log-probabilities stamped by the sampler.
        mask_BT: True = counts.
        low: Lower bound on r, at least 0; None: none.
        high: Upper bound on r, above ``low``.
        weigh_kept: False gives kept tokens the weight 1 under ``icepop`` and ``sequence_mask``,
            which then only reject.

    Returns:
        Weights, the mask of kept tokens, and statistics.

    Raises:
        ConfigError: The kind is unknown.
        ValueError: The bounds do not rise, or shapes disagree.
    """
    check_batch(mask_BT, old_logprobs_BT=old_logprobs_BT, rollout_logprobs_BT=rollout_logprobs_BT)
    check_choice("correction", kind, CORRECTIONS)
    floor = 0.0 if low is None else low
    if not 0 <= floor < high:
        raise ValueError(
            f"0 <= low < high must hold, got low={low!r} and high={high!r}; 0.5 and 2 are usual"
        )
    dtype = statistic_dtype(old_logprobs_BT, rollout_logprobs_BT)
    log_ratio_BT = select(old_logprobs_BT, mask_BT, dtype) - select(
        rollout_logprobs_BT, mask_BT, dtype
    )
    bounded_BT = log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio_BT = judged_BT = bounded_BT.exp()
    if kind == "sequence_mask":
        mean_B1 = bounded_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
        judged_BT = mean_B1.exp().expand(mask_BT.shape)
    below_BT, above_BT = mask_BT & (judged_BT < floor), mask_BT & (judged_BT > high)
    kept_BT = mask_BT & ~below_BT & ~above_BT if kind in ("icepop", "sequence_mask") else mask_BT
    if kind == "tis":
        weights_BT = ratio_BT.clamp(floor, high)
    elif kind == "none" or not weigh_kept:
        weights_BT = torch.ones_like(ratio_BT)
    else:
        weights_BT = ratio_BT
    weights_BT = select(weights_BT, kept_BT)
    stats = CorrectionStats(
        tokens=mask_BT.sum(),
        sequences=mask_BT.any(1).sum(),
        weights=weights_BT.sum(dtype=torch.float64),
        weights_squared=weights_BT.double().square().sum(),
        weight_max=weights_BT.amax(),
        rejected=(mask_BT & ~kept_BT).sum(),
        rejected_sequences=(mask_BT & ~kept_BT).any(1).sum(),
        below=below_BT.sum(),
        above=above_BT.sum(),
        abs_log_ratio=log_ratio_BT.abs().sum(dtype=torch.float64),
        abs_log_ratio_max=log_ratio_BT.abs().amax(),
        kl_k1=-log_ratio_BT.sum(dtype=torch.float64),
        kl_k3=excess(log_ratio_BT).sum(dtype=torch.float64),
    )
    return Correction(weights_BT=weights_BT, kept_BT=kept_BT, stats=stats)
