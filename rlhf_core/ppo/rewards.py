"""From one score per sequence to one reward per token; what is done to scores: ``scores``.

B sequences, T response tokens; ``mask_BT`` bool, True = counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.ppo.checks import check_batch, check_same_shape, check_shape, select, statistic_dtype


def terminal_rewards(scores_B: Tensor, mask_BT: Tensor) -> Tensor:
    """The score at the last token that counts, zeros elsewhere.

    Args:
        scores_B: One score for each sequence.
        mask_BT: True = counts. A row without a True gets no reward at all.

    Returns:
        [B, T].
    """
    check_batch(mask_BT)
    check_shape("scores_B", scores_B, "B")
    check_same_shape(mask_B=mask_BT[:, 0], scores_B=scores_B)
    position_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B1 = torch.where(mask_BT, position_T, -1).amax(dim=1, keepdim=True)
    return select(scores_B.unsqueeze(1).expand(mask_BT.shape), position_T == last_B1)


def kl_penalised(scores_B: Tensor, kl_BT: Tensor, mask_BT: Tensor, *, coef: float) -> Tensor:
    r"""$r_{bt} = score_b [t = last_b] - \beta \, kl_{bt}$ over the mask, zeros outside.

    Args:
        scores_B: One score for each sequence.
        kl_BT: KL estimate for each token, usually k1.
        mask_BT: True = counts.
        coef: KL coefficient $\beta$.

    Returns:
        Rewards, [B, T].
    """
    check_batch(mask_BT, kl_BT=kl_BT)
    dtype = statistic_dtype(scores_B, kl_BT)
    return terminal_rewards(scores_B.to(dtype), mask_BT) - coef * select(kl_BT, mask_BT, dtype)


def clip_scores(scores_B: Tensor, *, low: float, high: float) -> Tensor:
    """Scores clipped to ``low`` .. ``high``, [B].

    Raises:
        ValueError: ``low`` is not below ``high``.
    """
    if not low < high:
        raise ValueError(f"low < high must hold, got low={low!r} and high={high!r}; swap them")
    return scores_B.clamp(min=low, max=high)


def missing_eos_penalty(scores_B: Tensor, finished_B: Tensor, *, penalty: float) -> Tensor:
    """Scores less ``penalty`` where the response did not end by itself.

    Args:
        scores_B: One score for each sequence.
        finished_B: Bool, True = the response ends with a stop token.
        penalty: What an unfinished response loses, at least 0.

    Returns:
        [B].

    Raises:
        ValueError: The penalty is negative, or the flags are not bool of the shape of the scores.
    """
    check_same_shape(scores_B=scores_B, finished_B=finished_B)
    if finished_B.dtype != torch.bool:
        raise ValueError(
            f"finished_B must be bool with True = ended by itself, got {finished_B.dtype}; "
            "compare or convert it before the call"
        )
    if not penalty >= 0:
        raise ValueError(
            f"penalty must be at least 0, got {penalty!r}; it is subtracted, so drop the sign"
        )
    return torch.where(finished_B, scores_B, scores_B - penalty)
