"""Byte-level BPE tokenizers trained on a task's own texts."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rlhf_core.errors import ConfigError

PAD, EOS = "<pad>", "<eos>"
BYTES = 256


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, max_length: int
) -> PreTrainedTokenizerFast:
    """Train a tokenizer for which ``decode(encode(text)) == text``.

    No token is added to a text: whoever trains on texts appends ``eos_token_id`` itself. Padding is
    on the left, as generation needs it, with a token of its own.

    Args:
        texts: Training texts.
        vocab_size: Most tokens, the 256 bytes and the two special tokens included.
        max_length: Longest sequence of the models that will use it, in tokens.

    Raises:
        ConfigError: ``vocab_size`` leaves no room for the bytes and the special tokens.
    """
    if vocab_size < BYTES + 2:
        raise ConfigError(f"vocab_size must be at least {BYTES + 2}, got {vocab_size}; raise it")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    )
