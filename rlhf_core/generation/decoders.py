"""Who computes the next logits of a batch: the lean path where it fits, the Hugging Face module elsewhere."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rlhf_core.generation.folded import FoldedDecoder, folds
from rlhf_core.generation.llama import LlamaDecoder, plain_llama


class Decoder(Protocol):
    """A batch in decoding, with its key-value cache."""

    def step(self, ids_BS: Tensor) -> Tensor:
        """Logits after the last of the next S tokens of every row, [B, V]; the first call takes the prompts."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Drops all other rows."""
        ...


def make_decoder(model: nn.Module, mask_BP: Tensor, max_new_tokens: int) -> Decoder:
    """The decoder for ``model``.

    Args:
        model: A causal model with a key-value cache.
        mask_BP: 1 on prompt tokens, 0 on left padding.
        max_new_tokens: Steps that may follow the prompts.
    """
    if plain_llama(model):
        kind = FoldedDecoder if folds(model) else LlamaDecoder
        return kind(model, mask_BP, max_new_tokens)
    return ModuleDecoder(model, mask_BP)


class ModuleDecoder:
    """Any Hugging Face causal model, by its own forward."""

    def __init__(self, model: Any, mask_BP: Tensor) -> None:
        self.model, self.mask = model, mask_BP
        self.positions = (mask_BP.cumsum(1) - 1).clamp(min=0)
        self.cache: Any = None
        # What this version of transformers calls the cache of this model.
        named = inspect.signature(model.forward).parameters
        self.cache_name = "cache" if "cache" in named else "past_key_values"

    def step(self, ids_BS: Tensor) -> Tensor:
        if self.cache is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(ids_BS), 1)], dim=1)
            self.positions = self.positions[:, -1:] + 1
        out = self.model(
            input_ids=ids_BS,
            attention_mask=self.mask,
            position_ids=self.positions,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_name: self.cache},
        )
        self.cache = getattr(out, self.cache_name)
        logits: Tensor = out.logits[:, -1]
        return logits

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask, self.positions = self.mask[rows], self.positions[rows]
