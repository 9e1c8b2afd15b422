"""Decoding on a CPU with matrices laid out in advance.

A product of few rows with a large matrix spends much of its time on bringing the matrix into the order in which
it is multiplied. oneDNN does that once for all products; the rest is as in ``folded.py``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlhf_core.generation.folded import FoldedDecoder
from rlhf_core.generation.llama import Affine, Projection

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


class PackedDecoder(FoldedDecoder):
    """Decodes one batch of a larger model; for the arguments see ``LlamaDecoder``."""

    @staticmethod
    def _laid(projection: Projection) -> Affine:
        return _Packed(projection)

    def _step_of_one(self) -> Callable[[Tensor, int, Tensor | None], Tensor] | None:
        return None


class _Packed:
    """A linear layer in oneDNN's layout."""

    def __init__(self, projection: Projection) -> None:
        weight = projection.weight.detach().contiguous()
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        self.bias = projection.bias

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return out
