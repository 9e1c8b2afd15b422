"""Prompt files -> token ids, and which prompts belong to which iteration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from rlhf_core.assets import read_prompts
from rlhf_core.models.warm import kept, stamp
from rlhf_core.seeding import derive
from rlhf_core.types import Chunk, Prompt


def as_messages(prompt: str | list[dict[str, str]]) -> list[dict[str, str]]:
    """A prompt as chat messages; plain text is one user message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def as_text(prompt: str | list[dict[str, str]]) -> str:
    """A prompt as plain text; of several messages the last one's content."""
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def encode_prompt(tokenizer: Any, row: dict[str, Any], max_tokens: int, template: str) -> Prompt:
    """Token ids of one row of a prompt file.

    Args:
        tokenizer: The policy's.
        row: ``prompt`` (text or messages) and further columns, which become metadata.
        max_tokens: Longer prompts lose their beginning.
        template: ``auto`` renders through the tokenizer's chat template where it has one.
    """
    prompt = row["prompt"]
    if template == "auto" and tokenizer.chat_template:
        text = tokenizer.apply_chat_template(
            as_messages(prompt), tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(as_text(prompt))["input_ids"]
        # Some tokenizers close every text; a prompt is to be continued.
        if ids and ids[-1] == tokenizer.eos_token_id and len(ids) > 1:
            ids = ids[:-1]
    if not ids:
        ids = [
            tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        ]
    metadata = {key: value for key, value in row.items() if key != "prompt"}
    messages = None if isinstance(prompt, str) else prompt
    if messages is not None:
        metadata["messages"] = messages
    return Prompt(as_text(prompt), tuple(ids[-max_tokens:]), metadata, messages)


class PromptSet:
    """The prompts of one split.

    Args:
        path: Prompt file.
        tokenizer: The policy's tokenizer.
        max_tokens: Longer prompts lose their beginning.
        template: See ``encode_prompt``.
    """

    def __init__(self, path: str, tokenizer: Any, max_tokens: int, template: str) -> None:
        def read() -> list[Prompt]:
            rows = read_prompts(Path(path))
            return [encode_prompt(tokenizer, row, max_tokens, template) for row in rows]

        words = stamp(str(getattr(tokenizer, "name_or_path", "")))
        self.prompts = kept(("prompts", stamp(path), words, max_tokens, template), read)

    def take(self, start: int, count: int, seed: int) -> list[Prompt]:
        """``count`` prompts of an endless stream from position ``start``: pass after pass, each shuffled."""
        return self.at(range(start, start + count), seed)

    def at(self, positions: Iterable[int], seed: int) -> list[Prompt]:
        """The prompts at ``positions`` of that stream.

        A pure function of its arguments, so nothing about prompt order needs to be checkpointed.
        """
        size = len(self.prompts)
        orders: dict[int, list[int]] = {}
        taken = []
        for position in positions:
            lap, offset = divmod(position, size)
            if lap not in orders:
                generator = torch.Generator().manual_seed(derive(seed, "prompts", lap))
                orders[lap] = torch.randperm(size, generator=generator).tolist()
            taken.append(self.prompts[orders[lap][offset]])
        return taken


def chunks_of(
    prompts: list[Prompt], samples: int, chunk_size: int, seed: int, *position: int | str
) -> list[Chunk]:
    """Cuts a batch into chunks of at most ``chunk_size`` prompts, each prompt repeated ``samples`` times.

    Args:
        prompts: The batch.
        samples: Responses to each prompt; they stay in one chunk.
        chunk_size: Prompts of a chunk.
        seed: The trial's seed.
        position: What the sampling is for; with the chunk's index it fixes the chunk's seed.
    """
    chunks = []
    for index, start in enumerate(range(0, len(prompts), chunk_size)):
        part = prompts[start : start + chunk_size]
        repeated = tuple(prompt for prompt in part for _ in range(samples))
        chunks.append(Chunk(index, repeated, derive(seed, "sample", *position, index)))
    return chunks
