"""A lean forward of the Llama family, for training and scoring.

It computes what the Hugging Face module computes, on the layers of the module itself, so adapters and their
gradients are included. The last layer goes on from the wanted positions only, padding is left out where there is
much of it, and norms and rotary embeddings have backward passes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

FAMILY = ("LlamaModel", "Qwen2Model")
# Above this share of real tokens, leaving out the others costs more than it saves.
PACK_BELOW = 0.85


def is_llama(trunk: nn.Module) -> bool:
    """Whether ``trunk`` (a model without its head) computes what ``hidden_at`` computes."""
    # An engine that shards weights gathers them when the module's own forward is called.
    return of_family(trunk) and not getattr(trunk, "own_forward", False)


def of_family(trunk: nn.Module) -> bool:
    """Whether ``trunk`` is a Llama with full causal attention and without dropout."""
    if type(trunk).__name__ not in FAMILY:
        return False
    config: Any = trunk.config
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    dropout = trunk.training and config.attention_dropout > 0
    return config.hidden_act == "silu" and not windowed and not dropout


def hidden_at(trunk: Any, tokens_BL: Tensor, lengths_B: Tensor, places_N: Tensor) -> Tensor:
    """Last hidden states, after the final norm, of some positions.

    Args:
        trunk: A model that ``is_llama`` accepts.
        tokens_BL: Token ids, padded on the right.
        lengths_B: Tokens of each row.
        places_N: Wanted positions as row x L + column; none of them padding.

    Returns:
        [N, H].
    """
    layout = _Layout.of(tokens_BL, lengths_B)
    like = trunk.embed_tokens.weight
    positions_1L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device).unsqueeze(0)
    cos, sin = trunk.rotary_emb(like, positions_1L)
    rotary = rotary_tables(cos[0], sin[0], trunk.config.num_attention_heads)
    hidden = trunk.embed_tokens(layout.pack(tokens_BL.flatten()))
    wanted = layout.packed_places(places_N)
    for index, layer in enumerate(trunk.layers):
        last = index + 1 == len(trunk.layers)
        block = _recomputed if layer.training and layer.gradient_checkpointing else _block
        hidden = block(layer, hidden, layout, rotary, wanted if last else None)
    return rms_norm(hidden, trunk.norm.weight, trunk.norm.variance_epsilon)


@dataclass(frozen=True)
class _Layout:
    """Where the real tokens of a padded batch are.

    Attributes:
        size, length: B and L.
        real: Flat places of the real tokens; None where padding is carried along.
    """

    size: int
    length: int
    real: Tensor | None

    @classmethod
    def of(cls, tokens_BL: Tensor, lengths_B: Tensor) -> _Layout:
        size, length = tokens_BL.shape
        if int(lengths_B.sum()) >= PACK_BELOW * tokens_BL.numel():
            return cls(size, length, None)
        columns_L = torch.arange(length, device=tokens_BL.device)
        real = (columns_L < lengths_B.unsqueeze(1)).flatten().nonzero().squeeze(1)
        return cls(size, length, real)

    def pack(self, flat: Tensor) -> Tensor:
        """[B x L, ...] -> [tokens, ...]."""
        return flat if self.real is None else flat.index_select(0, self.real)

    def pad(self, packed: Tensor) -> Tensor:
        """[tokens, F] -> [B x L, F], 0 on padding."""
        if self.real is None:
            return packed
        zeros = packed.new_zeros(self.size * self.length, packed.shape[1])
        return zeros.index_copy(0, self.real, packed)

    def packed_places(self, places_N: Tensor) -> Tensor:
        """Flat places -> rows of the packed tensor."""
        return places_N if self.real is None else torch.searchsorted(self.real, places_N)


def _recomputed(layer: Any, *args: Any) -> Tensor:
    """``_block`` that keeps nothing but its input for the backward pass."""
    hidden: Tensor = layer._gradient_checkpointing_func(_block, layer, *args)
    return hidden


def _block(
    layer: Any,
    hidden: Tensor,
    layout: _Layout,
    rotary: tuple[Tensor, Tensor],
    wanted: Tensor | None,
) -> Tensor:
    """One layer; past its attention only the rows ``wanted``, if given."""
    attention, mlp = layer.self_attn, layer.mlp
    norm = layer.input_layernorm
    x = rms_norm(hidden, norm.weight, norm.variance_epsilon)
    heads = (layout.size, layout.length, -1, attention.head_dim)
    query, key, value = (
        layout.pad(project(x)).view(heads)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    query, key = rotate(query, *rotary), rotate(key, *rotary)
    attended = scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        is_causal=True,
        scale=attention.scaling,
        enable_gqa=query.shape[2] != key.shape[2],
    )
    joined = layout.pack(attended.transpose(1, 2).reshape(layout.size * layout.length, -1))
    if wanted is not None:
        joined, hidden = joined.index_select(0, wanted), hidden.index_select(0, wanted)
    hidden = hidden + attention.o_proj(joined)
    norm = layer.post_attention_layernorm
    x = rms_norm(hidden, norm.weight, norm.variance_epsilon)
    return hidden + mlp.down_proj(silu(mlp.gate_proj(x)) * mlp.up_proj(x))


def rms_norm(x_NH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) x weight over the last axis; statistics in float32 or wider."""
    normed: Tensor = _RMSNorm.apply(x_NH, weight_H, eps)  # type: ignore[no-untyped-call]
    return normed


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        scale = torch.linalg.vecdot(wide, wide).div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze(-1)
        ctx.save_for_backward(x, weight, scale)
        normed = wide * scale
        if normed.dtype != x.dtype:
            normed = normed.to(x.dtype)
        return normed.mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        wide_grad, factor = grad.to(scale.dtype), weight.to(scale.dtype)
        normed = x.to(scale.dtype) * scale
        product = wide_grad * normed
        slope = (product @ factor).unsqueeze(-1).div_(-x.shape[-1])
        into_x = (wide_grad * factor).addcmul_(normed, slope).mul_(scale)
        return into_x.to(x.dtype), product.sum(0).to(weight.dtype), None


def rotary_tables(cos_LD: Tensor, sin_LD: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Cosines, and sines with the sign they have in the half-split form of Llama, each [L, heads, D].

    Written out for every head: products with them then run along the memory.
    """
    left, right = sin_LD.chunk(2, -1)
    signed_LD = torch.cat([-left, right], -1)
    cos_LND, signed_LND = (
        t.unsqueeze(1).expand(-1, heads, -1).contiguous() for t in (cos_LD, signed_LD)
    )
    return cos_LND, signed_LND


def rotate(x_BLND: Tensor, cos_LND: Tensor, signed_LND: Tensor) -> Tensor:
    """Rotary embedding; tables of ``rotary_tables``, for as many heads or more."""
    heads = x_BLND.shape[2]
    turned: Tensor = _Rotate.apply(  # type: ignore[no-untyped-call]
        x_BLND, cos_LND[:, :heads], signed_LND[:, :heads]
    )
    return turned


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, signed: Tensor) -> Tensor:
        ctx.save_for_backward(cos[:, :1], signed[:, :1])
        left, right = x.chunk(2, -1)
        return (x * cos).addcmul_(torch.cat([right, left], -1), signed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        cos, signed = ctx.saved_tensors
        half = grad.shape[-1] // 2
        # Comes as attention left it, heads before positions: nothing runs along the memory here.
        out = grad * cos
        out[..., :half].addcmul_(grad[..., half:], signed[..., half:])
        out[..., half:].addcmul_(grad[..., :half], signed[..., :half])
        return out, None, None
