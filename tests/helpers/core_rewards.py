"""Reward functions that the tests name; worker processes import them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Metadata = Sequence[Mapping[str, Any]]


class TwoArgumentsError(Exception):
    """Does not survive pickling: unpickling calls it with one argument."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def letter_a(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    """Share of the letter a."""
    return [response.count("a") / 4 for response in responses]


def vowels(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    """Vowels, a quarter each: a reward that differs between responses of random models."""
    return [sum(response.count(v) for v in "aeiou") / 4 for response in responses]


def constant(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    """Nothing to learn from."""
    return [0.5] * len(responses)


def length(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    """Letters of prompt and response, and the row's own bonus."""
    return [
        len(p) + len(r) / 100 + row.get("bonus", 0)
        for p, r, row in zip(prompts, responses, metadata, strict=True)
    ]


def process(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    """Who computes."""
    return [float(os.getpid())] * len(prompts)


def one_less(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    return [0.0] * (len(prompts) - 1)


def nan(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    return [float("nan")] * len(prompts)


def text(prompts: list[str], responses: list[str], metadata: Metadata) -> str:
    return "1" * len(prompts)


def by_row(prompts: list[str], responses: list[str], metadata: Metadata) -> dict[int, float]:
    return dict.fromkeys(range(len(prompts)), 1.0)


def none_inside(prompts: list[str], responses: list[str], metadata: Metadata) -> list[Any]:
    return [None] * len(prompts)


def lazy(prompts: list[str], responses: list[str], metadata: Metadata) -> Iterator[float]:
    """No list, but it can be read as one."""
    return (float(len(p)) for p in prompts)


def raises(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    raise KeyError("no such rating")


def raises_unpicklable(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    raise TwoArgumentsError("not", "portable")


def exits(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    sys.exit(3)


def crashes(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    os._exit(1)


def hangs(prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
    time.sleep(600)
    return []
