"""The last judgement in words. Cheap to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.metrics import MEASURES

SAMPLES = 2


def verdict_line(judgement: Mapping[str, Any]) -> str:
    """What was gained, in a line of at most 100 columns."""
    return (
        f"{MEASURES.get(judgement['metric'], judgement['metric'])} reward "
        f"{judgement['before']:.3f} -> {judgement['after']:.3f} ({judgement['gain']:+.3f} +- "
        f"{judgement['stderr']:.3f}, {judgement['standard_errors']:.1f} standard errors)"
    )


def conditions_line(judgement: Mapping[str, Any]) -> str:
    """At what cost and on what it was measured."""
    return f"on {_prompts(judgement)}, at a KL of {judgement['kl_response']:.1f} nats/response"


def _prompts(judgement: Mapping[str, Any]) -> str:
    """How many prompts, and what of them was trained on; a record that does not tell says nothing of it."""
    count, trained_on = judgement["prompts"], judgement.get("trained_on")
    if trained_on is None:
        return f"{count} test prompts"
    if trained_on == 0:
        return f"{count} prompts never trained on"
    return f"{count} prompts, {'all' if trained_on == count else trained_on} of them trained on"


def texts_lines(judgement: Mapping[str, Any]) -> list[str]:
    """What the texts themselves became, for each measure that the record has."""
    pairs = {
        "length": ("length_before", "length_after"),
        "distinct": ("distinct_before", "distinct_after"),
    }
    found = {
        name: (judgement[before], judgement[after])
        for name, (before, after) in pairs.items()
        if before in judgement and after in judgement
    }
    lines = []
    if "length" in found:
        lines.append("length {:.1f} -> {:.1f} tokens".format(*found["length"]))
    for n, (before, after) in enumerate(zip(*found.get("distinct", ((), ())), strict=True), 1):
        lines.append(f"distinct-{n} {before:.3f} -> {after:.3f}")
    return lines


def sample_lines(judgement: Mapping[str, Any], count: int | None = SAMPLES) -> list[str]:
    """The first test prompts, or all, with the answers of the first and of the final policy."""
    lines = []
    for prompt, before, after in (judgement.get("samples") or ())[:count]:
        lines += [
            f"prompt  {_one_line(prompt)}",
            f"before  {_one_line(before)}",
            f"after   {_one_line(after)}",
        ]
    return lines


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "(nothing)"
