"""Tokenizers trained on a task's texts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rlhf_core.errors import ConfigError
from rlhf_core.tasks import grammar
from rlhf_core.tasks.tokenizer import train_tokenizer

TEXTS = grammar.sentences(random.Random(0), grammar.prompts(0, 50, 1, 1)["train"], 500)
ODD = ["", "  two  spaces ", "don't , stop .", "naïve 日本 🙂", "line\nline\ttab", "ABC 3.14?!"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(TEXTS, 600, 64).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_decoding_gives_back_the_text(saved: PreTrainedTokenizerBase) -> None:
    for text in [*ODD, *TEXTS[:50]]:
        assert saved.decode(saved.encode(text)) == text
        assert saved.decode(saved.encode(text), skip_special_tokens=True) == text


def test_special_tokens_are_distinct_and_padding_is_on_the_left(
    saved: PreTrainedTokenizerBase,
) -> None:
    assert saved.pad_token_id != saved.eos_token_id
    assert saved.padding_side == "left"
    rows = saved(["the acting is", "the"], padding=True)
    assert rows["input_ids"][1][0] == saved.pad_token_id
    assert rows["attention_mask"][1][0] == 0


def test_no_token_is_added_and_the_size_is_kept(saved: PreTrainedTokenizerBase) -> None:
    assert len(saved) <= 600
    special = {saved.pad_token_id, saved.eos_token_id}
    assert not special & set(saved.encode(TEXTS[0]))


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocab_size must be at least 258, got 100"):
        train_tokenizer(TEXTS, 100, 64)
