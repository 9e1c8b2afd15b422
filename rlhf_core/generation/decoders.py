"""Who computes the next logits of a batch: the lean path where it fits, the Hugging Face module elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rlhf_core.generation.folded import FoldedDecoder, folds
from rlhf_core.generation.llama import LlamaDecoder, plain_llama
from rlhf_core.generation.packed import PackedDecoder, packs


class Decoder(Protocol):
    """A batch in decoding, with its key-value cache."""

    def step(self, ids_BS: Tensor) -> Tensor:
        """Logits after the last of the next S tokens of every row, [B, V]; the first call takes the prompts."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Drops all other rows."""
        ...


MakeDecoder = Callable[[Tensor, int], Decoder]
"""From a batch's mask, 1 on prompt tokens and 0 on left padding, [B, P], and the steps that may follow."""


def decoders_of(model: nn.Module) -> MakeDecoder:
    """Makes decoders with the weights that ``model``, a causal one with a key-value cache, has at this moment.

    They may be those of a later moment where no copy is needed: use it only as long as the weights stay.
    """
    if not plain_llama(model):
        return lambda mask_BP, _: ModuleDecoder(model, mask_BP)
    kind = FoldedDecoder if folds(model) else PackedDecoder if packs(model) else LlamaDecoder
    return partial(kind, model, kind.weights_of(model))


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
