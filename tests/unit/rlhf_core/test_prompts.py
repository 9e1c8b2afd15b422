"""Seeds and prompts: pure functions of (seed, position)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import Zoo, byte_level, characters, words

from rlhf_core.errors import ConfigError
from rlhf_core.prompts import PromptSet, chunks_of, encode_prompt
from rlhf_core.seeding import derive
from rlhf_core.types import Prompt


def _set(path: str | Path, tokenizer: Any = None, limit: int = 64) -> PromptSet:
    return PromptSet(str(path), tokenizer or characters(), limit, "auto")


def _jsonl(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def test_seeds_follow_from_what_they_are_for() -> None:
    assert derive(0, "sample", 1, 2) == derive(0, "sample", 1, 2)
    positions = [(s, p, i) for s in range(4) for p in ("prompts", "sample") for i in range(100)]
    seeds = {derive(*position) for position in positions}
    assert len(seeds) == len(positions)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive(1, 23) != derive(12, 3)


def test_the_stream_is_pure_and_each_pass_is_a_permutation(zoo: Zoo) -> None:
    prompts = _set(zoo.prompts)
    size = len(prompts.prompts)
    stream = prompts.take(0, 3 * size, seed=5)
    laps = [[p.text for p in stream[i * size : (i + 1) * size]] for i in range(3)]
    everything = sorted(p.text for p in prompts.prompts)
    assert all(sorted(lap) == everything for lap in laps)
    assert laps[0] != laps[1] != laps[2]
    assert prompts.take(size - 3, 7, seed=5) == stream[size - 3 : size + 4]
    assert prompts.take(0, size, seed=6) != stream[:size]
    assert prompts.take(4, 0, seed=5) == []


def test_chunks_keep_order_and_the_samples_of_a_prompt_together() -> None:
    prompts = [Prompt(str(i), (i,)) for i in range(5)]
    chunks = chunks_of(prompts, 2, 2, 7, "eval")
    assert [[p.text for p in c.prompts] for c in chunks] == [
        ["0", "0", "1", "1"], ["2", "2", "3", "3"], ["4", "4"],
    ]  # fmt: skip
    assert [c.index for c in chunks] == [0, 1, 2]
    assert len({c.seed for c in chunks}) == 3
    assert chunks == chunks_of(prompts, 2, 2, 7, "eval")
    for other in (chunks_of(prompts, 2, 2, 8, "eval"), chunks_of(prompts, 2, 2, 7, 1)):
        assert {c.seed for c in other}.isdisjoint({c.seed for c in chunks})


def test_long_prompts_lose_their_beginning() -> None:
    tokenizer = characters()
    prompt = encode_prompt(tokenizer, {"prompt": "abcdef"}, 3, "auto")
    assert tokenizer.decode(prompt.tokens) == "def"
    assert prompt.text == "abcdef"


def test_a_chat_template_renders_text_and_messages() -> None:
    tokenizer = byte_level(chat=True)
    plain = encode_prompt(tokenizer, {"prompt": "hi"}, 64, "auto")
    assert tokenizer.decode(plain.tokens) == "u.hi<eos>a."
    assert plain.messages is None
    assert tokenizer.decode(encode_prompt(tokenizer, {"prompt": "hi"}, 64, "off").tokens) == "hi"
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    chat = encode_prompt(tokenizer, {"prompt": messages, "id": 3}, 64, "auto")
    assert tokenizer.decode(chat.tokens) == "s.be brief<eos>u.hi<eos>a."
    assert chat.text == "hi"
    assert chat.messages == messages
    assert chat.metadata == {"id": 3, "messages": messages}
    without = encode_prompt(byte_level(), {"prompt": messages}, 64, "auto")
    assert byte_level().decode(without.tokens) == "hi"


def test_a_prompt_is_never_closed_and_never_empty() -> None:
    closing = words()
    tokens = encode_prompt(closing, {"prompt": "the film"}, 64, "auto").tokens
    assert closing.decode(tokens) == "[CLS] the film"
    tokenizer = characters()
    assert encode_prompt(tokenizer, {"prompt": ""}, 64, "auto").tokens == (tokenizer.eos_token_id,)


def test_columns_become_metadata(tmp_path: Path) -> None:
    path = _jsonl(tmp_path, {"prompt": "a", "answer": 4, "messages": "mine"}, {"prompt": "b"})
    first, second = _set(path).prompts
    assert first.metadata == {"answer": 4, "messages": "mine"}
    assert first.messages is None
    assert second.metadata == {}


def test_unicode_separators_do_not_cut_a_line(tmp_path: Path) -> None:
    path = _jsonl(tmp_path, {"prompt": "a\u2028b\x85c\x0bd"}, {"prompt": "e"})
    assert [p.text for p in _set(path).prompts] == ["a\u2028b\x85c\x0bd", "e"]


def test_text_files_are_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\n  two  \nthree")
    assert [p.text for p in _set(path).prompts] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "line 2 is no JSON"),
        ("[1]", "line 2 must be an object with a non-empty 'prompt'"),
        ('{"text": "a"}', "line 2 must be an object"),
        ('{"prompt": ""}', "non-empty"),
        ('{"prompt": []}', "non-empty"),
        ('{"prompt": 3}', "text or a list of messages"),
        ('{"prompt": ["a"]}', "each message of 'prompt' is an object"),
        ('{"prompt": [{"role": "user"}]}', "'role' and a 'content'"),
        ('{"prompt": [{"role": "user", "content": null}]}', "both text"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, says: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{row}\n')
    with pytest.raises(ConfigError, match=r"p\.jsonl") as caught:
        _set(path)
    assert says in str(caught.value)
