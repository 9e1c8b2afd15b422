"""A lean decode path for the Llama family: the module's own weights, a preallocated cache, few operations a layer.

The Hugging Face module spends most of a small model's decode step on bookkeeping. Here a step is the arithmetic
alone; adapters are merged where the weights are copied anyway, and computed beside them elsewhere. Anything that
is not plainly Llama-shaped (sliding windows, other norms) is left to the fallback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from rlhf_core.models.llama import of_family
from rlhf_core.models.lora import ADAPTER, is_adapted

FAMILY = ("LlamaForCausalLM", "Qwen2ForCausalLM")
# Below this many float32 parameters every batch makes its own copy of the weights, with projections joined and the
# norms' weights folded in; above, the copy would cost more memory than its speed is worth.
FOLD_BELOW = 30_000_000


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
class _Layer:
    """Projections of a layer; ``norm_in`` and ``norm_out`` are None where they are folded into what follows."""

    norm_in: Tensor | None
    norm_out: Tensor | None
    qkv: tuple[Projection, ...]
    out: Projection
    gate_up: tuple[Projection, ...]
    down: Projection


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
    """Decodes one batch with the weights that ``model`` has now.

    Args:
        model: A causal model that ``plain_llama`` accepts.
        mask_BP: 1 on prompt tokens, 0 on left padding.
        max_new_tokens: Steps the cache has room for.
    """

    def __init__(self, model: Any, mask_BP: Tensor, max_new_tokens: int) -> None:
        trunk, config = model.model, model.config
        self.eps = config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = trunk.layers[0].self_attn.head_dim
        self.embedding = like = trunk.embed_tokens.weight
        size = sum(p.numel() for p in model.parameters())
        self.folded = like.dtype == torch.float32 and size < FOLD_BELOW
        make = _Folder(self.heads + self.kv_heads, self.head_dim) if self.folded else _as_it_is
        self.layers = [make(layer) for layer in trunk.layers]
        head = Projection.of(model.lm_head)
        self.head = _scaled(head, trunk.norm.weight) if self.folded else head
        self.norm = None if self.folded else trunk.norm.weight
        self.floor = torch.full((), (like.shape[1] * self.eps) ** 0.5, device=like.device)
        rows, width = mask_BP.shape
        self.used, room = 0, width + max_new_tokens
        shape = (len(self.layers), 2, rows, self.kv_heads, room, self.head_dim)
        self.cache = torch.zeros(shape, dtype=like.dtype, device=like.device)
        # Additive mask over the cache where there is padding; places not yet written are cut off by slicing.
        self.bias_BR: Tensor | None = None
        if bool((mask_BP == 0).any()):
            self.bias_BR = torch.zeros(rows, room, dtype=like.dtype, device=like.device)
            self.bias_BR[:, :width].masked_fill_(mask_BP == 0, torch.finfo(like.dtype).min)
        positions_BP = (mask_BP.cumsum(1) - 1).clamp(min=0)
        ahead = torch.arange(1, max_new_tokens + 1, device=mask_BP.device)
        cos, sin = trunk.rotary_emb(
            like, torch.cat([positions_BP, positions_BP[:, -1:] + ahead], dim=1)
        )
        half = self.head_dim // 2
        self.rotary = (
            (torch.complex(cos[..., :half], sin[..., :half]).unsqueeze(2),)
            if self.folded
            else (cos.unsqueeze(2), sin.unsqueeze(2))
        )

    @torch.inference_mode()
    def step(self, ids_BS: Tensor) -> Tensor:
        """Logits after the last of the next S tokens of every row, [B, V]."""
        end = self.used + ids_BS.shape[1]
        if self.folded and ids_BS.shape[1] == 1:
            return self._step_one(ids_BS[:, 0])
        hidden = self.embedding[ids_BS]
        rotary = tuple(part[:, self.used : end] for part in self.rotary)
        for index, layer in enumerate(self.layers):
            hidden = self._block(index, layer, hidden, rotary, last=index + 1 == len(self.layers))
        self.used = end
        return self.head(self._normed(hidden[:, -1], self.norm))

    def _step_one(self, ids_B: Tensor) -> Tensor:
        """``step`` for one token of every row and folded weights: two-dimensional throughout, so fewer views."""
        place, self.used = self.used, self.used + 1
        rows, turned = len(ids_B), self.heads + self.kv_heads
        heads = (rows, turned + self.kv_heads, self.head_dim // 2, 2)
        rotary = self.rotary[0][:, place]
        hidden = self.embedding[ids_B]
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            x = self._unit(hidden)
            pairs = torch.view_as_complex(_affine(x, layer.qkv[0]).view(heads))
            query_key = torch.view_as_real(pairs[:, :turned] * rotary).flatten(-2)
            keys[:, :, place] = query_key[:, self.heads :]
            values[:, :, place] = torch.view_as_real(pairs[:, turned:]).flatten(-2)
            query = query_key[:, : self.heads].unsqueeze(1)
            end = self.used
            joined = self._attend_one(query, keys[:, :, :end], values[:, :, :end])[:, 0]
            hidden = _affine(joined, layer.out, onto=hidden)
            gate, up = _affine(self._unit(hidden), layer.gate_up[0]).chunk(2, -1)
            hidden = _affine(silu(gate).mul_(up), layer.down, onto=hidden)
        return _affine(self._unit(hidden), self.head)

    def _unit(self, x: Tensor) -> Tensor:
        """RMS norm without its weight, by sqrt(|x|^2 + width x eps) = hypot(|x|, ...) over sqrt(width)."""
        width = x.shape[-1]
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * (width**0.5 / torch.hypot(length, self.floor))

    def keep(self, rows: Tensor) -> None:
        """Drops all other rows of the batch."""
        self.cache = self.cache[:, :, rows]
        self.rotary = tuple(part[rows] for part in self.rotary)
        if self.bias_BR is not None:
            self.bias_BR = self.bias_BR[rows]

    def _block(
        self, index: int, layer: _Layer, hidden: Tensor, rotary: tuple[Tensor, ...], *, last: bool
    ) -> Tensor:
        """One layer over the new positions; the last one needs no more than the last of them."""
        size, length, _ = hidden.shape
        x = self._normed(hidden, layer.norm_in)
        heads_BSND = _projected(x, layer.qkv).view(size, length, -1, self.head_dim)
        turned = self.heads + self.kv_heads
        query_key = self._turn(heads_BSND[:, :, :turned], rotary)
        start, end = self.used, self.used + length
        keys, values = self.cache[index, 0], self.cache[index, 1]
        keys[:, :, start:end] = query_key[:, :, self.heads :].transpose(1, 2)
        values[:, :, start:end] = heads_BSND[:, :, turned:].transpose(1, 2)
        query = query_key[:, :, : self.heads]
        if last and length > 1:
            query, hidden = query[:, -1:], hidden[:, -1:]
        attend = self._attend_one if query.shape[1] == 1 else self._attend
        joined = attend(query, keys[:, :, :end], values[:, :, :end])
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
        """Rotary embedding: of neighbouring pairs where the weights are folded, of halves otherwise."""
        if self.folded:
            pairs = torch.view_as_complex(heads_BSND.unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * rotary[0]).flatten(-2)
        left, right = heads_BSND.chunk(2, -1)
        return heads_BSND * rotary[0] + torch.cat([-right, left], -1) * rotary[1]

    def _attend_one(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of one position, [B, 1, heads x head_dim]: two batched products beat the fused kernel."""
        size, pairs, length = len(query), len(query) * self.kv_heads, keys.shape[2]
        query = query.reshape(pairs, -1, self.head_dim) * self.head_dim**-0.5
        keys, values = (t.flatten(0, 1) for t in (keys, values))
        if self.bias_BR is None:
            scores = torch.bmm(query, keys.transpose(1, 2))
        else:
            bias = self.bias_BR[:, None, :length].expand(size, self.kv_heads, length)
            bias = bias.reshape(pairs, 1, length)
            scores = torch.baddbmm(bias, query, keys.transpose(1, 2))
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype)
        return torch.bmm(weights, values).view(size, 1, self.heads * self.head_dim)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Causal attention of the newest positions, [B, S, heads x head_dim]."""
        attended = scaled_dot_product_attention(
            query.transpose(1, 2),
            keys,
            values,
            attn_mask=self._causal(query.shape[1], keys.shape[2]),
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


def _affine(x: Tensor, projection: Projection, onto: Tensor | None = None) -> Tensor:
    """The projection of rows [B, in], added to ``onto`` where given."""
    weight, bias = projection[:2]
    if onto is None:
        return linear(x, weight, bias)
    moved = torch.addmm(onto, x, weight.t())
    return moved if bias is None else moved.add_(bias)


def _projected(x: Tensor, parts: tuple[Projection, ...]) -> Tensor:
    if len(parts) == 1:
        return parts[0](x)
    return torch.cat([part(x) for part in parts], -1)


def _parts(layer: Any) -> dict[str, Any]:
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


def _as_it_is(layer: Any) -> _Layer:
    return _Layer(**_parts(layer))


class _Folder:
    """Copies of a layer's weights: projections joined, norms folded in, query and key rows in rotary pairs.

    A score is a sum over pairs, so their order does not matter as long as query and key share it.

    Args:
        turned: Heads under the rotary embedding.
        head_dim: Width of a head.
    """

    def __init__(self, turned: int, head_dim: int) -> None:
        rows = torch.arange(turned * head_dim).view(turned, 2, head_dim // 2)
        self.paired = rows.transpose(1, 2).flatten()

    def __call__(self, layer: Any) -> _Layer:
        parts = _parts(layer)
        weight, bias, *_ = _joined(parts["qkv"])
        rest = torch.arange(len(self.paired), len(weight))
        order = torch.cat([self.paired, rest]).to(weight.device)
        qkv = Projection(weight[order], None if bias is None else bias[order])
        return _Layer(
            norm_in=None,
            norm_out=None,
            qkv=(_scaled(qkv, parts["norm_in"]),),
            out=parts["out"].merged,
            gate_up=(_scaled(_joined(parts["gate_up"]), parts["norm_out"]),),
            down=parts["down"].merged,
        )


def _joined(parts: tuple[Projection, ...]) -> Projection:
    merged = [part.merged for part in parts]
    biases = [part.bias for part in merged if part.bias is not None]
    return Projection(
        torch.cat([part.weight for part in merged]), torch.cat(biases) if biases else None
    )


def _scaled(projection: Projection, norm: Tensor) -> Projection:
    return projection._replace(weight=projection.weight * norm)
