"""Hugging Face folders of tiny random models, each with a tokenizer of its own, made in a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyz ."
POSITIONS = 96
CHAT = (
    "{% for m in messages %}{{ m['role'][0] }}.{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}a.{% endif %}"
)
TEXTS = ("the film is good and the plot is thin", "a bad film with a fine end", "it was fine")
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE = {"intermediate_size": 48, "max_position_embeddings": POSITIONS, "initializer_range": 0.25}


def characters(chat: bool = False, order: str = LETTERS) -> Any:
    """One token a letter, padding apart from end-of-sequence."""
    vocab = {name: i for i, name in enumerate(("<pad>", "<eos>", "<unk>", *order))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    if chat:
        wrapped.chat_template = CHAT
    return wrapped


def byte_level(chat: bool = False) -> Any:
    """A trained byte-level tokenizer that pads with its end-of-sequence token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=272, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS * 4, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<eos>", eos_token="<eos>"
    )
    if chat:
        wrapped.chat_template = CHAT
    return wrapped


def words() -> Any:
    """Whole words between [CLS] and [SEP], as encoders want them."""
    known = sorted({word for text in TEXTS for word in text.split()})
    vocab = {name: i for i, name in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *known))}
    backend = Tokenizer(models.WordLevel(vocab=vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", eos_token="[SEP]",
    )  # fmt: skip


def config_of(family: str, tokenizer: Any) -> Any:
    """Configuration of a tiny model for ``tokenizer``."""
    ids = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "num_labels": 1,
    }
    if family == "GPT2":
        return transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=4, n_positions=POSITIONS, initializer_range=0.25, **ids
        )
    if family == "Bert":
        return transformers.BertConfig(**SHAPE, **WIDE, **ids)
    return getattr(transformers, f"{family}Config")(**SHAPE, **WIDE, num_key_value_heads=2, **ids)


def save(folder: Path, family: str, head: str, tokenizer: Any, seed: int) -> str:
    """Writes a model of the family with random weights and its tokenizer; returns the folder."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"AutoModelFor{head}").from_config(
            config_of(family, tokenizer)
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@dataclass(frozen=True)
class Zoo:
    """Folders by what they are.

    Attributes:
        policies: Causal models by family.
        rewards: Sequence classifiers; ``same`` shares the Llama policy's tokenizer, the others do not.
        prompts: A prompt file.
    """

    policies: Mapping[str, str]
    rewards: Mapping[str, str]
    prompts: str


def build(root: Path) -> Zoo:
    """All of them below ``root``."""
    transformers.utils.logging.disable_progress_bar()
    policies = {
        "Llama": save(root / "llama", "Llama", "CausalLM", characters(), 1),
        "GPT2": save(root / "gpt2", "GPT2", "CausalLM", byte_level(), 2),
        "Qwen2": save(root / "qwen2", "Qwen2", "CausalLM", byte_level(chat=True), 3),
    }
    kind = "SequenceClassification"
    rewards = {
        "same": save(root / "same", "Llama", kind, characters(), 4),
        "templated": save(root / "templated", "Llama", kind, characters(chat=True), 9),
        "same_gpt2": save(root / "same_gpt2", "GPT2", kind, byte_level(), 5),
        "chat": save(root / "chat", "Llama", kind, characters(True, LETTERS[::-1]), 6),
        "other": save(root / "other", "GPT2", kind, byte_level(), 7),
        "encoder": save(root / "encoder", "Bert", kind, words(), 8),
    }
    prompts = root / "prompts.txt"
    stems = ("the film is", "a bad", "it was", "the plot", "a fine film with", "end", "i")
    prompts.write_text("".join(f"{a} {b}\n" for a in stems for b in ("good", "thin", "a", "x")))
    return Zoo(policies, rewards, str(prompts))
