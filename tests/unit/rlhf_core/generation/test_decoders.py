"""The lean decode path computes what the module computes, row for row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rlhf_core.generation import folded, llama, packed
from rlhf_core.generation.decoders import ModuleDecoder, decoders_of
from rlhf_core.generation.engine import NativeEngine
from rlhf_core.generation.sampler import Sampling, sample

SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=4)),
    "llama, grouped": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2)),
    "llama, biases": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, num_key_value_heads=4, attention_bias=True, mlp_bias=True)
    ),
    "llama, tied": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, num_key_value_heads=1, tie_word_embeddings=True)
    ),
    "llama, wide heads": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, num_key_value_heads=2, head_dim=16)
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2)),
}
MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1], [0, 1, 1, 1, 1]])


KINDS = [llama.LlamaDecoder, folded.FoldedDecoder, packed.PackedDecoder]


def decode_with(kind: type[llama.LlamaDecoder], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has models of any size decoded by ``kind``."""
    if kind is packed.PackedDecoder and not packed.packs(model_of("llama")):
        pytest.skip("this machine lays out no matrices in advance")
    monkeypatch.setattr(folded, "FOLD_BELOW", 10**9 if kind is folded.FoldedDecoder else 0)
    monkeypatch.setattr(packed, "PACK_BELOW", 10**9 if kind is packed.PackedDecoder else 0)


def model_of(name: str) -> Any:
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    for parameter in model.parameters():
        # Biases start at zero, where a forgotten one would not show.
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("mask", [MASK, torch.ones_like(MASK)], ids=["padded", "full"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_equal_the_modules_at_every_step(
    name: str, kind: type[llama.LlamaDecoder], mask: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_with(kind, monkeypatch)
    model = model_of(name)
    assert llama.plain_llama(model)
    generator = torch.Generator().manual_seed(0)
    lean, plain = decoders_of(model)(mask, 6), ModuleDecoder(model, mask)
    assert type(lean) is kind
    ids = torch.randint(2, 50, mask.shape, generator=generator)
    for step in range(7):
        logits = lean.step(ids)
        torch.testing.assert_close(logits, plain.step(ids), atol=2e-5, rtol=1e-5)
        if step == 3:
            rows = torch.tensor([1, 3])
            lean.keep(rows)
            plain.keep(rows)
            logits = logits[rows]
        ids = torch.randint(2, 50, (len(logits), 1), generator=generator)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_decoders_use_the_weights_of_the_moment(
    kind: type[llama.LlamaDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_with(kind, monkeypatch)
    model = model_of("llama")
    ids = torch.randint(2, 50, MASK.shape)
    before = decoders_of(model)(MASK, 2).step(ids)
    model.model.layers[0].self_attn.q_proj.weight.mul_(2)
    after = decoders_of(model)(MASK, 2).step(ids)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, ModuleDecoder(model, MASK).step(ids), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("told", ["refresh", "rest"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_an_engine_that_was_told_samples_with_the_new_weights(
    kind: type[llama.LlamaDecoder], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_with(kind, monkeypatch)
    model, prompts = model_of("llama"), [[10, 7, 9], [4]] * 4
    engine, sampling = NativeEngine(model), Sampling(8, 1.0, (1,), pad_id=0)
    before = engine.sample(prompts, sampling, 5)
    assert all(map(torch.equal, before, engine.sample(prompts, sampling, 5)))
    # In place and unseen by autograd, as a delivery writes them.
    model.model.layers[0].self_attn.q_proj.weight.data.mul_(2)
    getattr(engine, told)()
    after = engine.sample(prompts, sampling, 5)
    assert not torch.equal(before[1], after[1])
    assert all(map(torch.equal, after, sample(model, prompts, sampling, seed=5)))


def test_what_is_not_plainly_llama_goes_to_the_module() -> None:
    model = model_of("llama")
    model.model.layers[1].mlp.up_proj = torch.nn.Sequential(model.model.layers[1].mlp.up_proj)
    assert not llama.plain_llama(model)
    windowed = Qwen2ForCausalLM(
        Qwen2Config(
            **SHAPE, num_key_value_heads=4, use_sliding_window=True, sliding_window=4,
            max_window_layers=0,
        )
    )  # fmt: skip
    assert not llama.plain_llama(windowed)
    gelu = LlamaForCausalLM(LlamaConfig(**SHAPE, hidden_act="gelu"))
    assert not llama.plain_llama(gelu)
    assert isinstance(decoders_of(windowed)(MASK, 2), ModuleDecoder)


def test_finished_rows_leave_the_batch_and_the_others_do_not_notice() -> None:
    model = model_of("llama")
    sampling = Sampling(max_new_tokens=20, temperature=1.0, stop_ids=tuple(range(1, 9)), pad_id=0)
    prompts = [[10 + i, 20 + i, 30] for i in range(16)]
    tokens_BT, logprobs_BT, mask_BT = sample(model, prompts, sampling, seed=3)
    lengths = mask_BT.sum(1)
    assert len(set(lengths.tolist())) > 4
    for row, prompt in enumerate(prompts):
        count = int(lengths[row])
        whole = torch.tensor([prompt + tokens_BT[row, :count].tolist()])
        with torch.no_grad():
            expected = torch.log_softmax(model(whole).logits[0, 2:-1], -1)
        picked = expected.gather(1, tokens_BT[row, :count, None]).squeeze(1)
        torch.testing.assert_close(logprobs_BT[row, :count], picked, atol=1e-5, rtol=1e-5)
        assert (tokens_BT[row, count:] == 0).all()
        assert (logprobs_BT[row, count:] == 0).all()
