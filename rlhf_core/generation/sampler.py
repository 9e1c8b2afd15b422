"""Sampling from a Hugging Face causal model, log-probabilities taken on the way.

Prompts are left-padded while sampling, sampling ends with the last unfinished response, and no tensor over the
vocabulary outlives its step.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Sampling:
    """How to sample.

    Attributes:
        max_new_tokens: Longest response.
        temperature: Divides the logits.
        stop_ids: Tokens that end a response; the token is kept.
        pad_id: Fills unused places.
    """

    max_new_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]
    pad_id: int


@torch.no_grad()
def sample(
    model: nn.Module, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Samples one response to each prompt.

    Args:
        model: A causal model with a key-value cache.
        prompts: Token ids; each at least one token.
        sampling: How to sample.
        seed: Seed of this batch; the same batch and seed give the same tokens.

    Returns:
        ``(tokens_BT, logprobs_BT, mask_BT)``: int64 padded with ``pad_id``, float32 and bool.
    """
    device = next(model.parameters()).device
    ids_BP, mask_BP = _left_pad(prompts, sampling.pad_id, device)
    generator = torch.Generator(device=device).manual_seed(seed)
    size, depth = len(prompts), sampling.max_new_tokens
    tokens_BT = torch.full((size, depth), sampling.pad_id, dtype=torch.int64, device=device)
    logprobs_BT = torch.zeros(size, depth, device=device)
    mask_BT = torch.zeros(size, depth, dtype=torch.bool, device=device)
    stop = torch.tensor(sampling.stop_ids, device=device)
    alive_B = torch.ones(size, dtype=torch.bool, device=device)
    positions_BP = (mask_BP.cumsum(1) - 1).clamp(min=0)
    cache_name = _cache_name(model)
    step_ids, step_positions, cache, used = ids_BP, positions_BP, None, 0
    for used in range(1, depth + 1):
        out = model(
            input_ids=step_ids,
            attention_mask=mask_BP,
            position_ids=step_positions,
            use_cache=True,
            logits_to_keep=1,
            **{cache_name: cache},
        )
        cache = getattr(out, cache_name)
        picked_B, logp_B = _draw(out.logits[:, -1], sampling.temperature, generator)
        tokens_BT[:, used - 1] = torch.where(alive_B, picked_B, sampling.pad_id)
        logprobs_BT[:, used - 1] = torch.where(alive_B, logp_B, 0.0)
        mask_BT[:, used - 1] = alive_B
        alive_B = alive_B & ~torch.isin(picked_B, stop)
        if not bool(alive_B.any()):
            break
        step_ids = tokens_BT[:, used - 1 : used]
        step_positions = step_positions[:, -1:] + 1
        mask_BP = torch.cat([mask_BP, mask_BP.new_ones(size, 1)], dim=1)
    return tokens_BT[:, :used], logprobs_BT[:, :used], mask_BT[:, :used]


def _cache_name(model: nn.Module) -> str:
    """What this version of transformers calls the key-value cache of this model."""
    named = inspect.signature(model.forward).parameters
    return "cache" if "cache" in named else "past_key_values"


def _left_pad(
    prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), pad_id, dtype=torch.int64)
    mask = torch.zeros(len(prompts), width, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.int64)
        mask[row, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def _draw(
    logits_BV: Tensor, temperature: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    logp_BV = torch.log_softmax(logits_BV.float() / temperature, dim=-1)
    # What torch.multinomial does, less its check: a NaN is picked and shows in the log-probability, where
    # multinomial raises on a CPU and takes down a CUDA context.
    race_BV = torch.empty_like(logp_BV).exponential_(1, generator=generator)
    picked_B1 = (logp_BV.exp() / race_BV).argmax(-1, keepdim=True)
    return picked_B1.squeeze(1), logp_BV.gather(1, picked_B1).squeeze(1)
