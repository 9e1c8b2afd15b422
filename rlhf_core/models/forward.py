"""Forward passes over right-padded sequences: log-probabilities, entropy and values of response tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rlhf_core.models import llama
from rlhf_core.models.load import ValueModel
from rlhf_core.ppo.logprobs import token_logprobs, token_logprobs_and_entropy
from rlhf_core.ppo.minibatches import micro_batches as by_length
from rlhf_core.types import Rollout

# Models whose logits are the output head on the trunk's last hidden state, and nothing else.
PLAIN_HEADS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "GPT2LMHeadModel", "MistralForCausalLM")


def micro_batches(rows: Sequence[int], size: int) -> Iterator[list[int]]:
    """Consecutive slices of ``rows`` of at most ``size``."""
    for start in range(0, len(rows), size):
        yield list(rows[start : start + size])


def split_rows(
    rollout: Rollout, rows: Sequence[int], size: int, tokens: int | None = None
) -> list[list[int]]:
    """Rows in groups of at most ``size``, or, with ``tokens``, of like length and at most so many tokens."""
    lengths = rollout.lengths_B[list(rows)].tolist()
    return [[rows[i] for i in group] for group in split_lengths(lengths, size, tokens)]


def split_lengths(lengths: Sequence[int], size: int, tokens: int | None = None) -> list[list[int]]:
    """Indices of sequences in groups of at most ``size``, in order.

    With ``tokens`` in groups of like length instead, each of at most so many tokens, padding included; a longer
    sequence is a group of its own.
    """
    if tokens is None:
        return list(micro_batches(range(len(lengths)), size))
    return by_length([min(length, tokens) for length in lengths], max_tokens=tokens)


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


def hidden_at(trunk: nn.Module, tokens_BL: Tensor, lengths_B: Tensor, places_N: Tensor) -> Tensor:
    """Last hidden states of some positions, [N, H].

    Args:
        trunk: A causal model without its head.
        tokens_BL: Token ids, padded on the right.
        lengths_B: Tokens of each row.
        places_N: Wanted positions as row x L + column; none of them padding.
    """
    if llama.is_llama(trunk):
        return llama.hidden_at(trunk, tokens_BL, lengths_B, places_N)
    hidden_BLH: Tensor = trunk(input_ids=tokens_BL, use_cache=False).last_hidden_state
    return hidden_BLH.flatten(0, 1)[places_N]


def response_places(rollout: Rollout) -> Tensor:
    """Positions that predict the tokens of the mask, in row order, as row x L + column, [N]."""
    rows_B1 = torch.arange(rollout.size, device=rollout.tokens_BL.device).unsqueeze(1)
    places_BT = response_positions(rollout) + rows_B1 * rollout.tokens_BL.shape[1]
    return places_BT[rollout.response_mask_BT]


def token_logits(model: nn.Module, rollout: Rollout) -> Tensor:
    """Logits that predict each response token, [N, V] for the N tokens of the mask in row order.

    Neither the prompt's logits nor those of padding are computed, nor is a tensor of B x T x V made.
    """
    if type(model).__name__ in PLAIN_HEADS:
        trunk, head = model.base_model, model.lm_head
        places_N = response_places(rollout)
        hidden_NH = hidden_at(trunk, rollout.tokens_BL, rollout.lengths_B, places_N)  # type: ignore[arg-type]
        logits_NV: Tensor = head(hidden_NH)  # type: ignore[operator]
        return logits_NV
    positions_BT, mask_BT = response_positions(rollout), rollout.response_mask_BT
    first, last = int(positions_BT.min()), int(positions_BT.max())
    window = torch.arange(first, last + 1, device=positions_BT.device)
    logits_BWV = model(input_ids=rollout.tokens_BL, use_cache=False, logits_to_keep=window).logits
    rows_BT = torch.arange(rollout.size, device=mask_BT.device).unsqueeze(1).expand_as(mask_BT)
    picked_NV: Tensor = logits_BWV[rows_BT[mask_BT], positions_BT[mask_BT] - first]
    return picked_NV


def logprobs(model: nn.Module, rollout: Rollout, temperature: float) -> Tensor:
    """Log-probabilities of response tokens, float32 [B, T], 0 outside the mask."""
    mask_BT = rollout.response_mask_BT
    logits_1NV = token_logits(model, rollout).unsqueeze(0)
    tokens_1N = response_tokens(rollout)[mask_BT].unsqueeze(0)
    return _spread(token_logprobs(logits_1NV, tokens_1N, temperature=temperature)[0], mask_BT)


def logprobs_and_entropy(
    model: nn.Module, rollout: Rollout, temperature: float, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of response tokens, each float32 [B, T], 0 outside the mask."""
    mask_BT = rollout.response_mask_BT
    logprobs_1N, entropy_1N = token_logprobs_and_entropy(
        token_logits(model, rollout).unsqueeze(0),
        response_tokens(rollout)[mask_BT].unsqueeze(0),
        temperature=temperature,
        entropy_gradient=entropy_gradient,
    )
    return _spread(logprobs_1N[0], mask_BT), _spread(entropy_1N[0], mask_BT)


def _spread(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    """Values of the mask's tokens back in their places, [B, T]."""
    return values_N.new_zeros(mask_BT.shape).index_put((mask_BT,), values_N)


def values(model: ValueModel, rollout: Rollout) -> Tensor:
    """Value of the state before each response token, float32 [B, T], 0 outside the mask."""
    places_N = response_places(rollout)
    hidden_NH = hidden_at(model.trunk, rollout.tokens_BL, rollout.lengths_B, places_N)
    return _spread(model.head(hidden_NH).squeeze(-1).float(), rollout.response_mask_BT)
