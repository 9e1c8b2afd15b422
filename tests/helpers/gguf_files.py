"""GGUF files of tiny models, written by the package that llama.cpp's converter uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers.": "blk.",
}


def write_gguf(
    folder: str, file: Path, architecture: str = "qwen2"
) -> dict[str, np.ndarray[Any, Any]]:
    """Packs a Qwen2 folder into blocks of eight bits; returns what its weights are once unpacked.

    Args:
        folder: Model with a byte-level tokenizer.
        file: Where to.
        architecture: What the file says it holds.
    """
    import gguf

    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    config, writer = model.config, gguf.GGUFWriter(file, architecture)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    # The class of the tokenizer may add a token that the model has no row for.
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)[
        : config.vocab_size
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([3 if word in tokenizer.all_special_tokens else 1 for word in words])
    writer.add_token_merges([" ".join(pair) for pair in state["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    plain = {}
    for name, parameter in model.state_dict().items():
        data, kind = parameter.numpy(), gguf.GGMLQuantizationType.F32
        if data.ndim == 2 and data.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
        packed = gguf.quants.quantize(data, kind)
        plain[name] = gguf.quants.dequantize(packed, kind)
        for theirs, short in NAMES.items():
            name = name.replace(theirs, short)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return plain
