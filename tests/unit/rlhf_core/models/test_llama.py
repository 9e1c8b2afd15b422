"""The lean Llama forward against the Hugging Face module: values and gradients, in float64 and float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel, Qwen2Config, Qwen2Model

from rlhf_core.models import llama
from rlhf_core.models.forward import hidden_at

SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
TRUNKS: dict[str, Any] = {
    "llama": lambda: LlamaModel(LlamaConfig(**SHAPE, num_key_value_heads=4)),
    "llama, grouped, biases": lambda: LlamaModel(
        LlamaConfig(**SHAPE, num_key_value_heads=2, attention_bias=True, mlp_bias=True)
    ),
    "llama, wide heads, scaled rope": lambda: LlamaModel(
        LlamaConfig(
            **SHAPE,
            num_key_value_heads=4,
            head_dim=16,
            rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        )
    ),
    "qwen2": lambda: Qwen2Model(Qwen2Config(**SHAPE, num_key_value_heads=2)),
}
# Much padding (left out) and little (carried along).
LENGTHS = {"packed": [12, 3, 5, 2], "padded": [12, 12, 11, 12]}


def trunk_of(name: str, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(1)
    trunk = TRUNKS[name]().to(dtype).eval()
    for parameter in trunk.parameters():
        # Biases start at 0 and norms at 1, where a forgotten one would not show.
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return trunk


def batch_of(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    lengths_B = torch.tensor(LENGTHS[kind])
    generator = torch.Generator().manual_seed(0)
    tokens_BL = torch.randint(2, 50, (4, 12), generator=generator)
    places = [
        row * 12 + column for row in range(4) for column in range(lengths_B[row]) if column % 2
    ]
    return tokens_BL, lengths_B, torch.tensor(places)


def plain(trunk: Any, tokens_BL: Tensor, places_N: Tensor) -> Tensor:
    hidden: Tensor = trunk(input_ids=tokens_BL, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1)[places_N]


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("name", TRUNKS)
def test_hidden_states_and_every_gradient_equal_the_modules(name: str, kind: str) -> None:
    trunk = trunk_of(name)
    tokens_BL, lengths_B, places_N = batch_of(kind)
    assert llama.is_llama(trunk)
    assert (llama._Layout.of(tokens_BL, lengths_B).real is not None) == (kind == "packed")
    weights = torch.randn(len(places_N), 32, dtype=torch.float64)
    grads = []
    for forward in (plain, lambda *a: hidden_at(a[0], a[1], lengths_B, a[2])):
        trunk.zero_grad(set_to_none=True)
        hidden_NH = forward(trunk, tokens_BL, places_N)
        (hidden_NH * weights).sum().backward()
        grads.append((hidden_NH.detach(), {n: p.grad for n, p in trunk.named_parameters()}))
    (expected, expected_grads), (got, got_grads) = grads
    # Hugging Face takes norms and angles in float32, also of a float64 model.
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=2e-6)
    for parameter, grad in expected_grads.items():
        torch.testing.assert_close(got_grads[parameter], grad, atol=3e-5, rtol=1e-5, msg=parameter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_come_as_close_as_the_module(dtype: torch.dtype) -> None:
    tokens_BL, lengths_B, places_N = batch_of("packed")
    exact = hidden_at(trunk_of("llama"), tokens_BL, lengths_B, places_N)
    narrow = trunk_of("llama", dtype)
    got = hidden_at(narrow, tokens_BL, lengths_B, places_N)
    assert got.dtype == dtype
    ours = (got.double() - exact).norm()
    theirs = (plain(narrow, tokens_BL, places_N).double() - exact).norm()
    assert ours <= 1.5 * theirs + 1e-6


def test_norm_and_rotation_have_the_gradients_of_their_values() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: llama.rms_norm(a, b, 1e-5), (x, weight))
    angles = torch.rand(5, 4, dtype=torch.float64)
    tables = llama.rotary_tables(*(f(angles).repeat(1, 2) for f in (torch.cos, torch.sin)), 4)
    heads = torch.randn(2, 5, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: llama.rotate(a, *tables), (heads,))


def test_padding_has_neither_influence_nor_gradient() -> None:
    trunk = trunk_of("llama")
    tokens_BL, lengths_B, places_N = batch_of("packed")
    other_BL = tokens_BL.clone()
    other_BL[torch.arange(12) >= lengths_B.unsqueeze(1)] = 49
    one, two = (hidden_at(trunk, t, lengths_B, places_N) for t in (tokens_BL, other_BL))
    assert torch.equal(one, two)


def test_models_it_does_not_know_go_through_their_own_forward() -> None:
    windowed = Qwen2Model(
        Qwen2Config(
            **SHAPE,
            num_key_value_heads=4,
            use_sliding_window=True,
            sliding_window=2,
            max_window_layers=0,
        )
    ).eval()
    gelu = LlamaModel(LlamaConfig(**SHAPE, hidden_act="gelu")).eval()
    tokens_BL, lengths_B, places_N = batch_of("packed")
    for trunk in (windowed, gelu):
        assert not llama.is_llama(trunk)
        expected = plain(trunk, tokens_BL, places_N)
        torch.testing.assert_close(hidden_at(trunk, tokens_BL, lengths_B, places_N), expected)
    dropping = LlamaModel(LlamaConfig(**SHAPE, attention_dropout=0.1))
    assert not llama.is_llama(dropping.train())
    assert llama.is_llama(dropping.eval())
