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
    return (
        f"on {judgement['prompts']} prompts never trained on, at a KL of "
        f"{judgement['kl_response']:.1f} nats/response"
    )


def sample_lines(judgement: Mapping[str, Any], count: int = SAMPLES) -> list[str]:
    """The first test prompts with the answers of the first and of the final policy."""
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
