"""Forward passes over right-padded sequences: log-probabilities, entropy and values of response tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rlhf_core.ppo.logprobs import entropy, token_logprobs
from rlhf_core.ppo.minibatches import micro_batches as by_length
from rlhf_core.types import Rollout


def micro_batches(rows: Sequence[int], size: int) -> Iterator[list[int]]:
    """Consecutive slices of ``rows`` of at most ``size``."""
    for start in range(0, len(rows), size):
        yield list(rows[start : start + size])


def split_rows(
    rollout: Rollout, rows: Sequence[int], size: int, tokens: int | None = None
) -> list[list[int]]:
    """Rows in groups of at most ``size``, or, with ``tokens``, of like length and at most so many tokens.

    A sequence longer than ``tokens`` is a group of its own.
    """
    if tokens is None:
        return list(micro_batches(rows, size))
    lengths = rollout.lengths_B[list(rows)].tolist()
    groups = by_length(lengths, max_tokens=max(tokens, *lengths))
    return [[rows[i] for i in group] for group in groups]


def response_positions(rollout: Rollout) -> Tensor:
    """Index of the position that predicts each response token, [B, T]; past the response it repeats the last."""
    depth = rollout.response_mask_BT.shape[1]
    steps_T = torch.arange(depth, device=rollout.tokens_BL.device)
    last_B = rollout.lengths_B - 2
    positions_BT = rollout.prompt_lengths_B.unsqueeze(1) - 1 + steps_T
    return torch.minimum(positions_BT, last_B.clamp(min=0).unsqueeze(1))


def response_tokens(rollout: Rollout) -> Tensor:
    """Response tokens, [B, T]; arbitrary outside the mask."""
    return rollout.tokens_BL.gather(1, response_positions(rollout) + 1)


def policy_logits(model: nn.Module, rollout: Rollout) -> Tensor:
    """Logits that predict each response token, [B, T, V]; the prompt's own are never computed."""
    positions_BT = response_positions(rollout)
    first, last = int(positions_BT.min()), int(positions_BT.max())
    window = torch.arange(first, last + 1, device=positions_BT.device)
    logits_BWV = model(input_ids=rollout.tokens_BL, use_cache=False, logits_to_keep=window).logits
    index = (positions_BT - first).unsqueeze(-1).expand(-1, -1, logits_BWV.shape[-1])
    return logits_BWV.gather(1, index)


def logprobs(model: nn.Module, rollout: Rollout, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of response tokens, each float32 [B, T], 0 outside the mask."""
    logits_BTV = policy_logits(model, rollout)
    mask_BT = rollout.response_mask_BT
    logprobs_BT = token_logprobs(logits_BTV, response_tokens(rollout), temperature=temperature)
    entropy_BT = entropy(logits_BTV, temperature=temperature)
    return logprobs_BT.masked_fill(~mask_BT, 0.0), entropy_BT.masked_fill(~mask_BT, 0.0)


def values(model: nn.Module, rollout: Rollout) -> Tensor:
    """Value of the state before each response token, float32 [B, T], 0 outside the mask."""
    values_BL: Tensor = model(rollout.tokens_BL)
    values_BT = values_BL.gather(1, response_positions(rollout))
    return values_BT.masked_fill(~rollout.response_mask_BT, 0.0)
