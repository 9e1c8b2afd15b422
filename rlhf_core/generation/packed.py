"""Decoding on a CPU with matrices laid out in advance.

A product of few rows with a large matrix spends much of its time on bringing the matrix into the order in which
it is multiplied. oneDNN does that once for all products. Projections that read the same are joined, adapters are
merged.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import Tensor

from rlhf_core.generation.folded import joined
from rlhf_core.generation.llama import Layer, LlamaDecoder, Projection, Weights, parts_of

# Below this many float32 parameters; above, the copy would cost more memory than its speed is worth.
PACK_BELOW = 1 << 30
# Rows that the layout is chosen for; products of 1 to 512 rows gain by it.
ROWS = 32


def packs(model: Any) -> bool:
    """Whether ``model``, which ``plain_llama`` accepts, is decoded with matrices that are laid out in advance."""
    like = model.model.embed_tokens.weight
    return (
        like.device.type == "cpu"
        and like.dtype == torch.float32
        and platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and sum(p.numel() for p in model.parameters()) < PACK_BELOW
    )


class PackedDecoder(LlamaDecoder):
    """Decodes one batch of a larger model; for the arguments see ``LlamaDecoder``."""

    @classmethod
    @torch.no_grad()
    def weights_of(cls, model: Any) -> Weights:
        layers = [_laid(layer) for layer in model.model.layers]
        return Weights(layers, _Packed(Projection.of(model.lm_head)), model.model.norm.weight)


def _laid(layer: Any) -> Layer:
    parts = parts_of(layer)
    return Layer(
        norm_in=parts["norm_in"],
        norm_out=parts["norm_out"],
        qkv=(_Packed(joined(parts["qkv"])),),
        out=_Packed(parts["out"]),
        gate_up=(_Packed(joined(parts["gate_up"])),),
        down=_Packed(parts["down"]),
    )


class _Packed:
    """A linear layer in oneDNN's layout."""

    def __init__(self, projection: Projection) -> None:
        whole = projection.merged
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(
            whole.weight.detach().contiguous(), ROWS
        )
        self.bias = whole.bias

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return out
