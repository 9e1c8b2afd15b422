"""What was measured while a task was made, in words, and what to do where it is poor. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

FEW_TEXTS = 2000
POOR_ACCURACY = 0.6

WORDS = {
    "texts": ("rated texts used", ",.0f", ""),
    "policy_parameters": ("policy size", ",.0f", " parameters"),
    "policy_perplexity": ("policy perplexity on unseen texts", ".1f", " (lower is better)"),
    "sample_ended_share": ("sampled responses that end by themselves", ".0%", ""),
    "reward_pair_accuracy": (
        "reward model, unseen pairs in the right order",
        ".1%",
        " (chance: 50%)",
    ),
    "heldout_pair_accuracy": ("held-out reward model, the same", ".1%", " (chance: 50%)"),
    "seconds": ("time taken", ".0f", " s"),
}


def description(metrics: Mapping[str, float]) -> list[str]:
    """One aligned line for each measurement, with its unit; a name it does not know stands for itself."""
    rows = [(name, *WORDS.get(name, (name, ".4g", ""))) for name in [*WORDS, *metrics]]
    told = {name: (words, form, unit) for name, words, form, unit in rows if name in metrics}
    width = max((len(words) for words, _, _ in told.values()), default=0)
    return [
        f"{words:<{width}}  {metrics[name]:{form}}{unit}"
        for name, (words, form, unit) in told.items()
    ]


def advice(metrics: Mapping[str, float]) -> list[str]:
    """At most one line: why the task may teach little, and what helps."""
    accuracy, texts = metrics.get("reward_pair_accuracy"), metrics.get("texts")
    found = []
    if accuracy is not None and accuracy < POOR_ACCURACY:
        found.append(
            f"the reward model should order at least {POOR_ACCURACY:.0%} of unseen pairs rightly, but "
            f"orders {accuracy:.1%}"
        )
    if texts is not None and texts < FEW_TEXTS:
        found.append(f"at least {FEW_TEXTS:,} rated texts are sensible, but there are {texts:,.0f}")
    if not found:
        return []
    return ["; ".join(found) + "; give more texts, or ratings that follow from the text alone"]
