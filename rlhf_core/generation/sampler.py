"""Sampling from a causal model, log-probabilities taken on the way.

Prompts are left-padded while sampling, finished responses leave the batch, and no tensor over the vocabulary
outlives its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlhf_core.generation.decoders import MakeDecoder, decoders_of

# Finished rows are decoded along until this share of the batch is left; moving the cache has its price too.
COMPACT_AT = 0.75


@dataclass(frozen=True)
class Sampling:
    """How to sample.

    Attributes:
        max_new_tokens: Longest response.
        temperature: Divides the logits.
        top_p: Only the likeliest tokens up to this probability are drawn; 1: all.
        top_k: Only so many of the likeliest tokens are drawn; 0: all.
        stop_ids: Tokens that end a response; the token is kept.
        pad_id: Fills unused places.
    """

    max_new_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]
    pad_id: int
    top_p: float = 1.0
    top_k: int = 0


def sample(
    model: nn.Module, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``sample_with`` the weights that ``model``, a causal one with a key-value cache, has now."""
    device = next(model.parameters()).device
    return sample_with(decoders_of(model), device, prompts, sampling, seed)


@torch.no_grad()
def sample_with(
    decoders: MakeDecoder,
    device: torch.device,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Samples one response to each prompt.

    Args:
        decoders: Makes the batch's decoder.
        device: Where it computes.
        prompts: Token ids; each at least one token.
        sampling: How to sample.
        seed: Seed of this batch; the same batch and seed give the same tokens.

    Returns:
        ``(tokens_BT, logprobs_BT, mask_BT)``: int64 padded with ``pad_id``, float32 and bool.
    """
    ids_BP, mask_BP = _left_pad(prompts, sampling.pad_id, device)
    generator = torch.Generator(device=device).manual_seed(seed)
    depth = sampling.max_new_tokens
    decoder, book = decoders(mask_BP, depth), _Book(len(prompts), sampling, device)
    step_ids = ids_BP
    for _ in range(depth):
        picked_B1, prob_B1 = _draw(decoder.step(step_ids), sampling, generator)
        unfinished = book.write(picked_B1, prob_B1)
        if unfinished == 0:
            break
        if unfinished <= COMPACT_AT * len(picked_B1):
            kept = book.keep_unfinished()
            decoder.keep(kept)
            picked_B1 = picked_B1[kept]
        step_ids = picked_B1
    return book.close()


class _Book:
    """What was sampled so far. Columns are gathered and written together: a write has its price.

    Args:
        size: Rows of the batch.
        sampling: How it is sampled.
        device: Where.
    """

    def __init__(self, size: int, sampling: Sampling, device: torch.device) -> None:
        shape = (size, sampling.max_new_tokens)
        self.tokens_BT = torch.full(shape, sampling.pad_id, dtype=torch.int64, device=device)
        self.logprobs_BT = torch.zeros(shape, device=device)
        self.mask_BT = torch.zeros(shape, dtype=torch.bool, device=device)
        self.stop = torch.tensor(sampling.stop_ids, device=device)
        self.pad_id, self.written = sampling.pad_id, 0
        # Rows of the batch that are still decoded, and which of them are unfinished.
        self.rows = torch.arange(size, device=device)
        self.alive_B1 = torch.ones(size, 1, dtype=torch.bool, device=device)
        self.columns: list[tuple[Tensor, Tensor, Tensor]] = []

    def write(self, picked_B1: Tensor, prob_B1: Tensor) -> int:
        """Notes the next token of every row that is still decoded; returns how many are unfinished."""
        self.columns.append((picked_B1, prob_B1, self.alive_B1))
        self.alive_B1 = self.alive_B1 & (picked_B1 != self.stop).all(1, keepdim=True)
        return int(self.alive_B1.sum())

    def keep_unfinished(self) -> Tensor:
        """Drops the finished rows; returns the places of the others among those decoded."""
        self._flush()
        kept = self.alive_B1.squeeze(1).nonzero().squeeze(1)
        self.rows, self.alive_B1 = self.rows[kept], self.alive_B1[kept]
        return kept

    def close(self) -> tuple[Tensor, Tensor, Tensor]:
        """``(tokens_BT, logprobs_BT, mask_BT)`` up to the last column in use."""
        self._flush()
        used = self.written
        return self.tokens_BT[:, :used], self.logprobs_BT[:, :used], self.mask_BT[:, :used]

    def _flush(self) -> None:
        if not self.columns:
            return
        picked, probs, alive = (torch.cat(part, 1) for part in zip(*self.columns, strict=True))
        start, self.written = self.written, self.written + len(self.columns)
        self.tokens_BT[self.rows, start : self.written] = torch.where(alive, picked, self.pad_id)
        self.logprobs_BT[self.rows, start : self.written] = torch.where(alive, probs.log(), 0.0)
        self.mask_BT[self.rows, start : self.written] = alive
        self.columns.clear()


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
    logits_BV: Tensor, sampling: Sampling, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling: one uniform number a row; the token and its probability, [B, 1].

    The probability is that of the whole distribution at this temperature, also where top-p or top-k cut it for
    drawing: the learner computes the same. Not ``torch.multinomial``: that draws a number for every token, and its
    check for NaN raises on a CPU and takes down a CUDA context; here a NaN shows in the probability.
    """
    if sampling.temperature != 1:
        logits_BV = logits_BV.float() / sampling.temperature
    probs_BV = torch.softmax(logits_BV, dim=-1, dtype=torch.float32)
    # In float64: float32 sums over a large vocabulary would lose the rarest tokens.
    cdf_BV = _cut(probs_BV, sampling).cumsum(-1, dtype=torch.float64)
    dice_B1 = torch.rand(
        len(probs_BV), 1, dtype=torch.float64, device=probs_BV.device, generator=generator
    )
    picked_B1 = torch.searchsorted(cdf_BV, dice_B1 * cdf_BV[:, -1:], right=True)
    picked_B1 = picked_B1.clamp(max=probs_BV.shape[-1] - 1)
    return picked_B1, probs_BV.gather(1, picked_B1)


def _cut(probs_BV: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities with 0 for tokens outside top-k and top-p; the likeliest token always stays."""
    if sampling.top_k:
        least_B1 = probs_BV.topk(min(sampling.top_k, probs_BV.shape[-1]), dim=-1).values[:, -1:]
        probs_BV = torch.where(probs_BV >= least_B1, probs_BV, 0.0)
    if sampling.top_p < 1:
        sorted_BV, order_BV = probs_BV.sort(dim=-1, descending=True)
        # A token stays while those before it have not reached top-p (of what top-k left).
        before_BV = sorted_BV.cumsum(-1) - sorted_BV
        kept_BV = before_BV < sampling.top_p * sorted_BV.sum(-1, keepdim=True)
        probs_BV = torch.where(
            torch.empty_like(kept_BV).scatter_(1, order_BV, kept_BV), probs_BV, 0.0
        )
    return probs_BV
