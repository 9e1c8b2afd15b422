"""Decoding of small models: the weights are copied into the form in which a step needs the fewest operations.

Projections are joined. The norms' weights, the root of their width and the scale of the attention are folded into
what follows them, adapters are merged. Rows of query and key lie in rotary pairs: a score is a sum over pairs, so
their order does not matter as long as both share it. What a step writes has its place, with all views of it, once
for a batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from rlhf_core.generation.llama import (
    Heads,
    Layer,
    LlamaDecoder,
    Projection,
    Weights,
    parts_of,
)

# Below this many float32 parameters; above, the copy would cost more memory than its speed is worth.
FOLD_BELOW = 30_000_000


def folds(model: Any) -> bool:
    """Whether ``model``, which ``plain_llama`` accepts, is decoded with a copy of its weights."""
    like = model.model.embed_tokens.weight
    return like.dtype == torch.float32 and sum(p.numel() for p in model.parameters()) < FOLD_BELOW


class FoldedDecoder(LlamaDecoder):
    """Decodes one batch of a small model; for the arguments see ``LlamaDecoder``."""

    def __init__(self, model: Any, weights: Weights, mask_BP: Tensor, max_new_tokens: int) -> None:
        super().__init__(model, weights, mask_BP, max_new_tokens)
        self.scale = 1.0
        # |x|^2 + width x eps = hypot(|x|, floor)^2, and the root of the width goes into the weights.
        width, like = self.embedding.shape[1], self.embedding
        self.floor = torch.full((), (width * self.eps) ** 0.5, device=like.device)
        self.step_of_one = _StepOfOne(self)

    @classmethod
    @torch.no_grad()
    def weights_of(cls, model: Any) -> Weights:
        heads, root = Heads.of(model), model.config.hidden_size**0.5
        layers = [_folded(layer, heads, root) for layer in model.model.layers]
        head = _scaled(Projection.of(model.lm_head), model.model.norm.weight * root)
        return Weights(layers, head, None)

    @torch.inference_mode()
    def step(self, ids_BS: Tensor) -> Tensor:
        if ids_BS.shape[1] > 1:
            return super().step(ids_BS)
        place, self.used = self.used, self.used + 1
        return self.step_of_one(ids_BS[:, 0], place, self._bias(self.used))

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.step_of_one = _StepOfOne(self)

    def _rotary(self, cos_BRD: Tensor, sin_BRD: Tensor) -> tuple[Tensor, ...]:
        half = self.head_dim // 2
        return (torch.complex(cos_BRD[..., :half], sin_BRD[..., :half]).unsqueeze(2),)

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)

    def _turn(self, heads_BSND: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
        pairs = torch.view_as_complex(heads_BSND.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * rotary[0]).flatten(-2)

    def _by_pair(self, query_BND: Tensor) -> Tensor:
        heads = query_BND.view(-1, self.groups, self.kv_heads, self.head_dim)
        return heads.permute(2, 0, 1, 3).flatten(0, 1)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        by_group = query.unflatten(2, (self.groups, self.kv_heads))
        return super()._attend(by_group.transpose(2, 3).flatten(2, 3), keys, values)


class _StepOfOne:
    """A step of one token of every row: what its operations read and write, laid out once for a batch.

    Args:
        decoder: Whose weights and cache; all rows of its batch.
    """

    def __init__(self, decoder: FoldedDecoder) -> None:
        self.decoder, like = decoder, decoder.embedding
        rows, heads, pairs = decoder.rows, decoder.heads, decoder.kv_heads * decoder.rows
        turned, size = heads + decoder.kv_heads, decoder.head_dim
        self.weights = [
            tuple((p.weight.t(), p.bias) for p in (*x.qkv, x.out, *x.gate_up, x.down))
            for x in decoder.layers
        ]
        self.head = (decoder.head.weight.t(), decoder.head.bias)
        self.qkv = like.new_empty(rows, (turned + decoder.kv_heads) * size)
        by_head = self.qkv.view(rows, -1, size).transpose(0, 1)
        self.query_in, self.key_in = _complex(by_head[:turned]).split([heads, decoder.kv_heads])
        self.value_in = by_head[turned:]
        query = like.new_empty(heads, rows, size)
        self.query_out = _complex(query)
        self.query_PGD = query.view(decoder.groups, pairs, size).transpose(0, 1)
        self.gate_up = like.new_empty(rows, len(decoder.layers[0].gate_up[0].weight))
        self.gate, self.up = self.gate_up.chunk(2, -1)
        keys, values = decoder.cache.unbind(1)
        self.key_places, self.value_places = _complex(keys), values
        self.keys, self.values = keys.flatten(1, 2).mT, values.flatten(1, 2)
        self.rotary = decoder.rotary[0].squeeze(2)

    def __call__(self, ids_B: Tensor, place: int, bias: Tensor | None) -> Tensor:
        """Logits, [B, V], after tokens that stand at ``place``."""
        decoder, end, rotary = self.decoder, place + 1, self.rotary[:, place]
        hidden = decoder.embedding[ids_B]
        for (qkv, out, gate_up, down), key_place, value_place, keys, values in zip(
            self.weights,
            self.key_places[:, :, :, place].unbind(),
            self.value_places[:, :, :, place].unbind(),
            self.keys[:, :, :, :end].unbind(),
            self.values[:, :, :end].unbind(),
            strict=True,
        ):
            _affine(decoder._normed(hidden, None), *qkv, out=self.qkv)
            torch.mul(self.query_in, rotary, out=self.query_out)
            torch.mul(self.key_in, rotary, out=key_place)
            value_place.copy_(self.value_in)
            _add(hidden, decoder._attend_one(self.query_PGD, keys, values, bias), *out)
            _affine(decoder._normed(hidden, None), *gate_up, out=self.gate_up)
            _add(hidden, silu(self.gate, inplace=True).mul_(self.up), *down)
        return _affine(decoder._normed(hidden, None), *self.head)


def _folded(layer: Any, heads: Heads, root: float) -> Layer:
    parts = parts_of(layer)
    query, key, value = (part.merged for part in parts["qkv"])
    query, key = _paired(query, heads.size), _paired(key, heads.size)
    scaled = Projection(*(t if t is None else t * heads.size**-0.5 for t in query[:2]))
    # Query heads lie by group first, so that a key head's are one strided matrix.
    qkv = joined((_by_group(scaled, heads.key, heads.groups), key, value))
    return Layer(
        norm_in=None,
        norm_out=None,
        qkv=(_scaled(qkv, parts["norm_in"] * root),),
        out=parts["out"].merged,
        gate_up=(_scaled(joined(parts["gate_up"]), parts["norm_out"] * root),),
        down=parts["down"].merged,
    )


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """x [B, in] times weight [in, out], plus bias."""
    if bias is None:
        return torch.mm(x, weight, out=out)
    return torch.addmm(bias, x, weight, out=out)


def _add(onto: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """``_affine`` added in place."""
    onto.addmm_(x, weight)
    if bias is not None:
        onto.add_(bias)


def _complex(pairs: Tensor) -> Tensor:
    """[..., D] as [..., D/2] complex numbers, a view."""
    return torch.view_as_complex(pairs.unflatten(-1, (-1, 2)))


def joined(parts: tuple[Projection, ...]) -> Projection:
    """Projections that read the same, without adapters, as one."""
    merged = [part.merged for part in parts]
    biases = [part.bias for part in merged if part.bias is not None]
    return Projection(
        torch.cat([part.weight for part in merged]), torch.cat(biases) if biases else None
    )


def _paired(part: Projection, size: int) -> Projection:
    """Rows of each head as rotary pairs: 0, D/2, 1, D/2 + 1, ..."""
    rows = torch.arange(len(part.weight), device=part.weight.device)
    return _rows(part, rows.view(-1, 2, size // 2).transpose(1, 2).flatten())


def _rows(part: Projection, order: Tensor) -> Projection:
    return Projection(part.weight[order], None if part.bias is None else part.bias[order])


def _by_group(query: Projection, kv_heads: int, groups: int) -> Projection:
    """Rows of the heads (key head, group) in the order (group, key head)."""
    rows = torch.arange(len(query.weight), device=query.weight.device)
    return _rows(query, rows.view(kv_heads, groups, -1).transpose(0, 1).flatten())


def _scaled(projection: Projection, norm: Tensor) -> Projection:
    return projection.merged._replace(weight=projection.merged.weight * norm)
