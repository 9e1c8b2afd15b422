"""Film-review sentences from a seeded grammar, and the hidden quality of any text.

A sentence is a neutral prompt ("the acting in this new film is") and a continuation with one to
five opinions ("very sharp, but most critics disliked the plot."). `score` reads text alone, in
`SCORE_RANGE`. It rewards distinct praise with diminishing returns, and it takes off for what the
grammar rarely or never writes: repeated words, piled-up superlatives, broken word order, no full
stop. A reward model fitted to such sentences hardly sees the second half, which is why optimising
it too far loses true quality.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import random
import re
from collections.abc import Sequence

from rlhf_core.tasks.lexicon import (
    ADJECTIVES,
    ASPECTS,
    CATEGORY,
    CONTRAST,
    FRAMES,
    GENRES,
    INTENSIFIERS,
    KINDS,
    NEGATIONS,
    NOUNS,
    OBJECTS,
    PLURALS,
    STRONG,
    SUBJECTS,
    SUPPORT,
    VERBS,
)

SCORE_RANGE = (-1.0, 1.0)

UNFINISHED = 0.5
NO_OPINION = 0.3
BROKEN_ORDER = 0.15
REPEATED_OPINION = 0.25
REPEATED_WORD = 0.1
GUSHING = 0.2
GUSHING_FREE = 3
FALSE_CONTRAST = 0.1

_TOKEN = re.compile(r"[a-z']+|[^\sa-z']", re.IGNORECASE)
_CONTENT = frozenset({"ASPECT", "GENRE", "NOUN", "PLURAL", "KIND"})


def prompts(seed: int, train: int, evaluation: int, test: int) -> dict[str, list[str]]:
    """Disjoint prompt splits ``train``, ``eval`` and ``test`` of the given sizes.

    Raises:
        ValueError: More prompts are asked for than the grammar has.
    """
    pool = [
        frame.format(aspect=aspect, genre=f"{kind} {genre}")
        for frame in FRAMES
        for aspect in ASPECTS
        for genre in GENRES
        for kind in KINDS
    ]
    if train + evaluation + test > len(pool):
        raise ValueError(
            f"the grammar has {len(pool)} prompts, {train + evaluation + test} were asked for"
        )
    picked = random.Random(seed).sample(pool, train + evaluation + test)
    return {
        "train": picked[:train],
        "eval": picked[train : train + evaluation],
        "test": picked[train + evaluation :],
    }


def continuation(rng: random.Random) -> str:
    """One continuation of a prompt: a leading space, one to three clauses, a full stop."""
    mood = rng.uniform(-2.4, 2.4)
    text = " " + _predicate(rng, mood)
    for _ in range(rng.choices((0, 1, 2), (30, 50, 20))[0]):
        contrast = rng.random() < 0.35
        mood = -0.7 * mood if contrast else mood
        text += rng.choice(CONTRAST if contrast else SUPPORT) + " "
        text += _aspect_clause(rng, mood) if rng.random() < 0.55 else _verb_clause(rng, mood)
    return text + "."


def sentences(rng: random.Random, starts: Sequence[str], count: int) -> list[str]:
    """``count`` whole sentences, each a random one of ``starts`` with a continuation."""
    return [rng.choice(starts) + continuation(rng) for _ in range(count)]


def gold_scores(
    prompts: list[str], responses: list[str], metadata: list[dict[str, object]]
) -> list[float]:
    """Hidden quality of each prompt with its response, in `SCORE_RANGE`.

    Args:
        prompts: B prompts.
        responses: B responses, as decoded: usually with a leading space.
        metadata: B mappings, not used here.
    """
    pairs = zip(prompts, responses, metadata, strict=True)
    return [score(_join(prompt, response)) for prompt, response, _ in pairs]


def score(text: str) -> float:
    """Hidden quality of any text, in `SCORE_RANGE`; text that is no sentence is allowed, and low."""
    tokens = [token.lower() for token in _TOKEN.findall(text)]
    values, repeated, strong = _opinions(tokens)
    total = math.tanh(sum(values) / (2.5 + 0.6 * len(values)))
    total -= 0.0 if values else NO_OPINION
    total -= 0.0 if tokens and tokens[-1] == "." else UNFINISHED
    total -= REPEATED_OPINION * repeated + REPEATED_WORD * _repeated_content(tokens)
    total -= GUSHING * max(0, strong - GUSHING_FREE)
    total -= BROKEN_ORDER * _broken(tokens) + FALSE_CONTRAST * _false_contrasts(tokens)
    return min(SCORE_RANGE[1], max(SCORE_RANGE[0], total))


@functools.cache
def fingerprint() -> str:
    """Changes whenever the grammar or the score does; caches of built tasks are keyed by it."""
    rng = random.Random(0)
    starts = prompts(0, 200, 1, 1)["train"]
    lines = [f"{text}\t{score(text):.6f}" for text in sentences(rng, starts, 400)]
    lines += [f"{score(text[: len(text) // 2]):.6f}" for text in lines[:50]]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _join(prompt: str, response: str) -> str:
    glued = prompt[-1:].isalnum() and response[:1].isalnum()
    return prompt + (" " if glued else "") + response


def _nearby(rng: random.Random, words: dict[str, float], target: float) -> str:
    names = list(words)
    weights = [math.exp(-2.0 * (words[name] - target) ** 2) + 1e-6 for name in names]
    return rng.choices(names, weights)[0]


def _adjective(rng: random.Random, mood: float) -> str:
    target = max(-2.0, min(2.0, rng.gauss(mood, 0.5)))
    if abs(target) < 1.4 and rng.random() < 0.14:
        negation = rng.choice(list(NEGATIONS))
        return f"{negation} {_nearby(rng, ADJECTIVES, target / NEGATIONS[negation.split()[0]])}"
    if rng.random() < 0.3:
        intensifier = rng.choice(list(INTENSIFIERS))
        return f"{intensifier} {_nearby(rng, ADJECTIVES, target / INTENSIFIERS[intensifier])}"
    return _nearby(rng, ADJECTIVES, target)


def _predicate(rng: random.Random, mood: float) -> str:
    shape = rng.random()
    first = _adjective(rng, mood)
    if shape < 0.45:
        return first
    if shape < 0.65:
        return f"{first} and {_nearby(rng, ADJECTIVES, rng.gauss(mood, 0.5))}"
    if shape < 0.82:
        plain = _nearby(rng, ADJECTIVES, rng.gauss(mood, 0.5))
        return f"{first} with {plain} {rng.choice(PLURALS)}"
    plain = _nearby(rng, ADJECTIVES, mood)
    return f"{_article(plain)} {plain} {rng.choice(NOUNS)}"


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _aspect_clause(rng: random.Random, mood: float) -> str:
    return f"the {rng.choice(ASPECTS)} is {_predicate(rng, mood)}"


def _verb_clause(rng: random.Random, mood: float) -> str:
    target = rng.choice((*OBJECTS, f"the {rng.choice(ASPECTS)}"))
    return f"{rng.choice(SUBJECTS)} {_nearby(rng, VERBS, rng.gauss(mood, 0.4))} {target}"


def _opinions(tokens: Sequence[str]) -> tuple[list[float], int, int]:
    """Values of distinct opinion words in context, repeats among them, and strong words."""
    values: dict[str, float] = {}
    repeated = strong = 0
    factor = 1.0
    for token in tokens:
        if token in NEGATIONS:
            factor *= NEGATIONS[token]
        elif token in INTENSIFIERS:
            factor *= INTENSIFIERS[token]
            strong += INTENSIFIERS[token] > 1.0
        elif token in ADJECTIVES or token in VERBS:
            value = ADJECTIVES.get(token, VERBS.get(token, 0.0))
            repeated += token in values
            strong += abs(value) >= STRONG
            values.setdefault(token, max(-3.0, min(3.0, factor * value)))
            factor = 1.0
        elif token != "from":
            factor = 1.0
    return list(values.values()), repeated, strong


def _repeated_content(tokens: Sequence[str]) -> int:
    content = [token for token in tokens if CATEGORY.get(token) in _CONTENT]
    return len(content) - len(set(content))


def _false_contrasts(tokens: Sequence[str]) -> int:
    """Contrasting words ("but") with the same clear sign on both sides."""
    count = 0
    for place, token in enumerate(tokens):
        if CATEGORY.get(token) == "CONTRAST":
            before = sum(_opinions(tokens[:place])[0][-1:])
            after = sum(_opinions(tokens[place + 1 :])[0][:1])
            count += before * after > 0.5
    return count


def _categories(tokens: Sequence[str]) -> list[str]:
    return ["<", *(CATEGORY.get(token, token) for token in tokens), ">"]


def _broken(tokens: Sequence[str]) -> int:
    """Places where three words in a row are of kinds that the grammar never puts in this order."""
    allowed = _allowed_orders()
    kinds = _categories(tokens)
    if len(kinds) < 3:
        return 1
    # A missing full stop has its own penalty and is no broken order as well.
    last = len(kinds) - (2 if kinds[-2] == "." else 3)
    wrong = sum(tuple(kinds[i : i + 3]) not in allowed for i in range(max(0, last)))
    misfit = sum(
        first in ("a", "an") and _article(second) != first
        for first, second in itertools.pairwise(tokens)
    )
    return wrong + misfit


@functools.cache
def _allowed_orders() -> frozenset[tuple[str, ...]]:
    """Triples of word kinds that the grammar writes, found by writing many sentences."""
    rng = random.Random(20_240_601)
    starts = [f.format(aspect=ASPECTS[0], genre=f"{KINDS[0]} {GENRES[0]}") for f in FRAMES]
    found: set[tuple[str, ...]] = set()
    for text in sentences(rng, starts, 6000):
        kinds = _categories(_TOKEN.findall(text))
        found.update(tuple(kinds[i : i + 3]) for i in range(len(kinds) - 2))
    return frozenset(found)
