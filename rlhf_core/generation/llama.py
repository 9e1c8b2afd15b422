"""A lean decode path for the Llama family: the module's own weights, a preallocated cache, few operations a layer.

The Hugging Face module spends most of a small model's decode step on bookkeeping. Here a step is the arithmetic
alone. Anything that is not plainly Llama-shaped (adapters, sliding windows, other norms) is left to the fallback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

FAMILY = ("LlamaForCausalLM", "Qwen2ForCausalLM")
# Below this many parameters the projections are fused by copying them for each batch; above, the copy costs more.
FUSE_BELOW = 30_000_000


@dataclass(frozen=True)
class _Layer:
    norm_in: Tensor
    norm_out: Tensor
    qkv: tuple[tuple[Tensor, Tensor | None], ...]
    out: tuple[Tensor, Tensor | None]
    gate_up: tuple[tuple[Tensor, Tensor | None], ...]
    down: tuple[Tensor, Tensor | None]


def supports(model: nn.Module) -> bool:
    """Whether the lean path computes what ``model`` computes."""
    if type(model).__name__ not in FAMILY:
        return False
    config: Any = model.config
    plain = all(
        type(getattr(part, name)) is nn.Linear
        for layer in model.model.layers  # type: ignore[union-attr]
        for part, names in (
            (layer.self_attn, ("q_proj", "k_proj", "v_proj", "o_proj")),
            (layer.mlp, ("gate_proj", "up_proj", "down_proj")),
        )
        for name in names
    )
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    return plain and not windowed and config.hidden_act == "silu"


class LlamaDecoder:
    """Decodes one batch with the weights that ``model`` has now.

    Args:
        model: A causal model that ``supports`` accepts.
        mask_BP: 1 on prompt tokens, 0 on left padding.
        max_new_tokens: Steps the cache has room for.
    """

    def __init__(self, model: Any, mask_BP: Tensor, max_new_tokens: int) -> None:
        self.model, trunk, config = model, model.model, model.config
        self.eps = config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = trunk.layers[0].self_attn.head_dim
        fuse = sum(p.numel() for p in model.parameters()) < FUSE_BELOW
        self.layers = [_layer(layer, fuse) for layer in trunk.layers]
        size, width = mask_BP.shape
        self.room, self.used = width + max_new_tokens, 0
        shape = (len(self.layers), size, self.kv_heads, self.room, self.head_dim)
        like = trunk.embed_tokens.weight
        self.keys, self.values = (
            torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in "kv"
        )
        # Additive mask over the cache: padding never counts, places not yet written are cut off by slicing.
        self.bias_BR = torch.zeros(size, self.room, dtype=like.dtype, device=like.device)
        self.bias_BR[:, :width].masked_fill_(mask_BP == 0, torch.finfo(like.dtype).min)
        positions_BP = (mask_BP.cumsum(1) - 1).clamp(min=0)
        ahead = torch.arange(1, max_new_tokens + 1, device=mask_BP.device)
        self.positions_BR = torch.cat([positions_BP, positions_BP[:, -1:] + ahead], dim=1)
        cos, sin = trunk.rotary_emb(like, self.positions_BR)
        self.cos, self.sin = cos.unsqueeze(1), sin.unsqueeze(1)

    def step(self, ids_BS: Tensor) -> Tensor:
        """Logits after the last of the next S tokens of every row, [B, V]."""
        start, end = self.used, self.used + ids_BS.shape[1]
        hidden = self.model.model.embed_tokens(ids_BS)
        cos, sin = self.cos[:, :, start:end], self.sin[:, :, start:end]
        bias = self._bias(start, end)
        for index, layer in enumerate(self.layers):
            hidden = self._block(index, layer, hidden, (cos, sin), bias)
        self.used = end
        last = rms_norm(hidden[:, -1], hidden.shape[-1:], self.model.model.norm.weight, self.eps)
        logits: Tensor = self.model.lm_head(last)
        return logits

    def keep(self, rows: Tensor) -> None:
        """Drops all other rows of the batch."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.bias_BR, self.cos, self.sin = self.bias_BR[rows], self.cos[rows], self.sin[rows]

    def _bias(self, start: int, end: int) -> Tensor:
        """Additive attention mask of the new positions over the cache, [B, 1, S, end]."""
        bias = self.bias_BR[:, None, None, :end]
        if end - start == 1:
            return bias
        lowest = torch.finfo(bias.dtype).min
        causal = torch.full((end - start, end), lowest, dtype=bias.dtype, device=bias.device)
        # A padding position attends to itself only, so that no row of the softmax is empty.
        return torch.maximum(bias + causal.triu(start + 1), torch.tensor(lowest, dtype=bias.dtype))

    def _block(
        self, index: int, layer: _Layer, hidden: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor
    ) -> Tensor:
        size, length, width = hidden.shape
        x = rms_norm(hidden, (width,), layer.norm_in, self.eps)
        flat = (
            torch.cat([linear(x, *part) for part in layer.qkv], -1)
            if len(layer.qkv) > 1
            else (linear(x, *layer.qkv[0]))
        )
        split = flat.view(size, length, -1, self.head_dim).transpose(1, 2)
        turned = _rotate(split[:, : self.heads + self.kv_heads], *rotary)
        start, end = self.used, self.used + length
        keys, values = self.keys[index], self.values[index]
        keys[:, :, start:end] = turned[:, self.heads :]
        values[:, :, start:end] = split[:, self.heads + self.kv_heads :]
        attended = scaled_dot_product_attention(
            turned[:, : self.heads],
            keys[:, :, :end],
            values[:, :, :end],
            attn_mask=bias,
            enable_gqa=self.heads != self.kv_heads,
        )
        joined = attended.transpose(1, 2).reshape(size, length, self.heads * self.head_dim)
        hidden = hidden + linear(joined, *layer.out)
        x = rms_norm(hidden, (width,), layer.norm_out, self.eps)
        parts = [linear(x, *part) for part in layer.gate_up]
        gate, up = parts if len(parts) == 2 else parts[0].chunk(2, -1)
        return hidden + linear(silu(gate) * up, *layer.down)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split form of Llama."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def _layer(layer: Any, fuse: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = [(m.weight, m.bias) for m in (attention.q_proj, attention.k_proj, attention.v_proj)]
    gate_up = [(m.weight, m.bias) for m in (mlp.gate_proj, mlp.up_proj)]
    return _Layer(
        norm_in=layer.input_layernorm.weight,
        norm_out=layer.post_attention_layernorm.weight,
        qkv=_fused(qkv) if fuse else tuple(qkv),
        out=(attention.o_proj.weight, attention.o_proj.bias),
        gate_up=_fused(gate_up) if fuse else tuple(gate_up),
        down=(mlp.down_proj.weight, mlp.down_proj.bias),
    )


def _fused(parts: list[tuple[Tensor, Tensor | None]]) -> tuple[tuple[Tensor, Tensor | None], ...]:
    weight = torch.cat([weight for weight, _ in parts])
    biases = [bias for _, bias in parts if bias is not None]
    return ((weight, torch.cat(biases) if biases else None),)
