"""A lean decode path for the Llama family: the module's own weights, a preallocated cache, few operations a layer.

The Hugging Face module spends most of a small model's decode step on bookkeeping. Here a step is the arithmetic
alone; adapters are computed beside the weights that they adapt. Most models are decoded with copies of the
weights: small ones such that a step needs still fewer operations (``folded.py``), larger ones on a CPU such that
its products are faster (``packed.py``). Anything that is not plainly Llama-shaped (sliding windows, other norms)
is left to the fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from rlhf_core.models.llama import of_family
from rlhf_core.models.lora import ADAPTER, is_adapted

FAMILY = ("LlamaForCausalLM", "Qwen2ForCausalLM")

Affine = Callable[[Tensor], Tensor]
"""A linear layer: a ``Projection``, or one in another form."""


class Projection(NamedTuple):
    """A linear layer; ``down`` and ``up`` are the two matrices of its adapter, scaled, where it has one."""

    weight: Tensor
    bias: Tensor | None
    down: Tensor | None = None
    up: Tensor | None = None

    @classmethod
    def of(cls, module: Any) -> Projection:
        if not is_adapted(module):
            return cls(module.weight, module.bias)
        base, scaling = module.base_layer, module.scaling[ADAPTER]
        down, up = module.lora_A[ADAPTER].weight, module.lora_B[ADAPTER].weight
        return cls(base.weight, base.bias, down, up * scaling)

    @property
    def merged(self) -> Projection:
        """The same without an adapter."""
        if self.down is None or self.up is None:
            return self
        return Projection(torch.addmm(self.weight, self.up, self.down), self.bias)

    def __call__(self, x: Tensor) -> Tensor:
        out = linear(x, self.weight, self.bias)
        if self.down is None or self.up is None:
            return out
        return out + linear(linear(x, self.down), self.up)


@dataclass(frozen=True)
class Layer:
    """Weights of a layer; ``norm_in`` and ``norm_out`` are None where they are folded into what follows."""

    norm_in: Tensor | None
    norm_out: Tensor | None
    qkv: tuple[Affine, ...]
    out: Affine
    gate_up: tuple[Affine, ...]
    down: Affine


@dataclass(frozen=True)
class Weights:
    """What decoders read, of the moment at which it was taken."""

    layers: list[Layer]
    head: Affine
    norm: Tensor | None


@dataclass(frozen=True)
class Heads:
    """How a model attends: ``groups`` query heads share a key head."""

    query: int
    key: int
    groups: int
    size: int

    @classmethod
    def of(cls, model: Any) -> Heads:
        query, key = model.config.num_attention_heads, model.config.num_key_value_heads
        return cls(query, key, query // key, model.model.layers[0].self_attn.head_dim)


def plain_llama(model: nn.Module) -> bool:
    """Whether ``model`` is a Llama with ordinary or adapted linear layers and full causal attention."""
    if type(model).__name__ not in FAMILY or not of_family(model.model):  # type: ignore[arg-type]
        return False
    return all(
        type(getattr(part, name)) is nn.Linear or is_adapted(getattr(part, name))
        for layer in model.model.layers  # type: ignore[union-attr]
        for part, names in (
            (layer.self_attn, ("q_proj", "k_proj", "v_proj", "o_proj")),
            (layer.mlp, ("gate_proj", "up_proj", "down_proj")),
        )
        for name in names
    )


class LlamaDecoder:
    """Decodes one batch.

    Args:
        model: A causal model that ``plain_llama`` accepts.
        weights: What ``weights_of`` took of it.
        mask_BP: 1 on prompt tokens, 0 on left padding.
        max_new_tokens: Steps the cache has room for.
    """

    def __init__(self, model: Any, weights: Weights, mask_BP: Tensor, max_new_tokens: int) -> None:
        trunk, heads = model.model, Heads.of(model)
        self.eps = model.config.rms_norm_eps
        self.heads, self.kv_heads, self.groups = heads.query, heads.key, heads.groups
        self.head_dim, self.scale = heads.size, heads.size**-0.5
        self.embedding = like = trunk.embed_tokens.weight
        self.layers, self.head, self.norm = weights.layers, weights.head, weights.norm
        self.used, self.rows = 0, len(mask_BP)
        room = mask_BP.shape[1] + max_new_tokens
        # A head's rows lie together, so that a step's products are one batch without copies.
        shape = (len(self.layers), 2, self.kv_heads, self.rows, room, self.head_dim)
        self.cache = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.bias_BR = _padding_bias(mask_BP, room, like.dtype)
        positions_BP = (mask_BP.cumsum(1) - 1).clamp(min=0)
        ahead = torch.arange(1, max_new_tokens + 1, device=mask_BP.device)
        positions_BR = torch.cat([positions_BP, positions_BP[:, -1:] + ahead], dim=1)
        self.rotary = self._rotary(*trunk.rotary_emb(like, positions_BR))

    @classmethod
    def weights_of(cls, model: Any) -> Weights:
        """The weights that ``model`` has now, in the form that is decoded with; here its very own."""
        layers = [Layer(**parts_of(layer)) for layer in model.model.layers]
        return Weights(layers, Projection.of(model.lm_head), model.model.norm.weight)

    def _rotary(self, cos_BRD: Tensor, sin_BRD: Tensor) -> tuple[Tensor, ...]:
        return cos_BRD.unsqueeze(2), sin_BRD.unsqueeze(2)

    @torch.inference_mode()
    def step(self, ids_BS: Tensor) -> Tensor:
        """Logits after the last of the next S tokens of every row, [B, V]."""
        end = self.used + ids_BS.shape[1]
        hidden = self.embedding[ids_BS]
        rotary = tuple(part[:, self.used : end] for part in self.rotary)
        for index, layer in enumerate(self.layers):
            hidden = self._block(index, layer, hidden, rotary, last=index + 1 == len(self.layers))
        self.used = end
        return self.head(self._normed(hidden[:, -1], self.norm))

    def keep(self, rows: Tensor) -> None:
        """Drops all other rows of the batch."""
        self.rows = len(rows)
        self.cache = self.cache[:, :, :, rows]
        self.rotary = tuple(part[rows] for part in self.rotary)
        if self.bias_BR is not None:
            self.bias_BR = self.bias_BR[rows]

    def _block(
        self, index: int, layer: Layer, hidden: Tensor, rotary: tuple[Tensor, ...], *, last: bool
    ) -> Tensor:
        """One layer over the new positions; the last one needs no more than the last of them."""
        size, length, _ = hidden.shape
        x = self._normed(hidden, layer.norm_in)
        heads_BSND = _projected(x, layer.qkv).view(size, length, -1, self.head_dim)
        turned = self.heads + self.kv_heads
        query_key = self._turn(heads_BSND[:, :, :turned], rotary)
        start, end = self.used, self.used + length
        # Views of the cache, rows before heads.
        keys, values = self.cache[index].transpose(1, 2)
        keys[:, :, start:end] = query_key[:, :, self.heads :].transpose(1, 2)
        values[:, :, start:end] = heads_BSND[:, :, turned:].transpose(1, 2)
        query = query_key[:, :, : self.heads]
        if last and length > 1:
            query, hidden = query[:, -1:], hidden[:, -1:]
        if query.shape[1] == 1:
            keys, values = self.cache[index, :, :, :, :end].flatten(1, 2)
            bias = self._bias(end)
            joined = self._attend_one(self._by_pair(query[:, 0]), keys.mT, values, bias)
            joined = joined.unsqueeze(1)
        else:
            joined = self._attend(query, keys[:, :, :end], values[:, :, :end])
        hidden = hidden + layer.out(joined)
        x = self._normed(hidden, layer.norm_out)
        if len(layer.gate_up) == 1:
            gate, up = layer.gate_up[0](x).chunk(2, -1)
        else:
            gate, up = (part(x) for part in layer.gate_up)
        return hidden + layer.down(silu(gate).mul_(up))

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """RMS norm; statistics in float32."""
        wide = x.float()
        scale = torch.linalg.vecdot(wide, wide).div_(x.shape[-1]).add_(self.eps).rsqrt_()
        normed = (wide * scale.unsqueeze(-1)).to(x.dtype)
        return normed if weight is None else normed * weight

    def _turn(self, heads_BSND: Tensor, rotary: tuple[Tensor, ...]) -> Tensor:
        """Rotary embedding."""
        left, right = heads_BSND.chunk(2, -1)
        return heads_BSND * rotary[0] + torch.cat([-right, left], -1) * rotary[1]

    def _by_pair(self, query_BND: Tensor) -> Tensor:
        """Scaled queries of each pair of key head and row, [kv_heads x B, groups, head_dim]."""
        heads = query_BND.view(-1, self.kv_heads, self.groups, self.head_dim)
        return heads.transpose(0, 1).flatten(0, 1) * self.scale

    def _bias(self, end: int) -> Tensor | None:
        """Additive mask of each pair of key head and row over the cache, [kv_heads x B, 1, end]."""
        if self.bias_BR is None:
            return None
        return self.bias_BR[:, :end].repeat(self.kv_heads, 1).unsqueeze(1)

    def _attend_one(
        self, query_PGD: Tensor, keys_PDR: Tensor, values_PRD: Tensor, bias_P1R: Tensor | None
    ) -> Tensor:
        """Attention of one position, [B, heads x head_dim]: two batched products beat the fused kernel."""
        if bias_P1R is None:
            scores = torch.bmm(query_PGD, keys_PDR)
        else:
            scores = torch.baddbmm(bias_P1R, query_PGD, keys_PDR)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(values_PRD.dtype)
        joined = torch.bmm(weights, values_PRD).view(self.kv_heads, self.rows, -1)
        return joined.transpose(0, 1).flatten(1)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Causal attention of the newest positions, [B, S, heads x head_dim]."""
        attended = scaled_dot_product_attention(
            query.transpose(1, 2),
            keys,
            values,
            attn_mask=self._causal(query.shape[1], keys.shape[2]),
            scale=self.scale,
            enable_gqa=self.heads != self.kv_heads,
        )
        return attended.transpose(1, 2).flatten(2)

    def _causal(self, length: int, end: int) -> Tensor:
        """Additive mask of the newest positions over the cache, [B or 1, 1, length, end]."""
        like = self.cache
        lowest = torch.finfo(like.dtype).min
        causal = torch.full((length, end), lowest, dtype=like.dtype, device=like.device)
        causal = causal.triu(end - length + 1)
        if self.bias_BR is None:
            return causal[None, None]
        # A padding position attends to the first places too, so that no row of the softmax is empty.
        return (self.bias_BR[:, None, None, :end] + causal).clamp(min=lowest)


def _padding_bias(mask_BP: Tensor, room: int, dtype: torch.dtype) -> Tensor | None:
    """Additive mask over the cache; None without padding. Places not yet written are cut off by slicing."""
    if not bool((mask_BP == 0).any()):
        return None
    bias_BR = torch.zeros(len(mask_BP), room, dtype=dtype, device=mask_BP.device)
    bias_BR[:, : mask_BP.shape[1]].masked_fill_(mask_BP == 0, torch.finfo(dtype).min)
    return bias_BR


def _projected(x: Tensor, parts: tuple[Affine, ...]) -> Tensor:
    if len(parts) == 1:
        return parts[0](x)
    return torch.cat([part(x) for part in parts], -1)


def parts_of(layer: Any) -> dict[str, Any]:
    """Weights of a layer of the module, by the names of ``Layer``."""
    attention, mlp = layer.self_attn, layer.mlp

    def projections(*modules: Any) -> tuple[Projection, ...]:
        return tuple(map(Projection.of, modules))

    return {
        "norm_in": layer.input_layernorm.weight,
        "norm_out": layer.post_attention_layernorm.weight,
        "qkv": projections(attention.q_proj, attention.k_proj, attention.v_proj),
        "out": projections(attention.o_proj)[0],
        "gate_up": projections(mlp.gate_proj, mlp.up_proj),
        "down": projections(mlp.down_proj)[0],
    }
