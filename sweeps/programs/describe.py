"""A PPO trial's configuration in words and as the text of best.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_core.config import TrialConfig


def measured_by(config: TrialConfig, objective: str) -> list[str]:
    """Where a reward of the user's own is optimised and that of the task decides: one line; else none.

    Args:
        config: A trial of the sweep.
        objective: The sweep's objective.
    """
    reward, data = config.reward, config.data
    own = [key for key in ("model", "function", "url") if getattr(reward, key) is not None]
    measured = reward.heldout_model or reward.heldout_function or reward.heldout_url
    if not own or data.task is None or measured:
        return []
    subject = f"objective {objective}" if "heldout" in objective else "the last judgement"
    prompts = data.eval_prompts if subject != "the last judgement" else data.test_prompts
    asked = f"the prompts of task {data.task}" if prompts is None else prompts
    remedy = [f"reward.heldout_{own[0]} to measure by your own"]
    if "heldout" in objective:
        remedy.append("search.objective: eval/weighted to select by the reward that is optimised")
    if data.eval_prompts is None or data.test_prompts is None:
        remedy.append("data.eval_prompts and data.test_prompts for prompts of your own")
    return [
        f"{subject} is measured by the held-out reward of task {data.task} on {asked}, while the "
        f"reward that is optimised is reward.{own[0]} {getattr(reward, own[0])}; name "
        + ", ".join(remedy)
    ]


def measured_on(config: TrialConfig) -> list[str]:
    """Where what is measured is measured on the training prompts: one line; else none."""
    data = config.data
    if data.prompts is None:
        return []
    # Without a task the user's own prompts serve every split that is not named.
    fallback = data.prompts if data.task is None else None
    files = {
        "eval/*": ("data.eval_prompts", data.eval_prompts or fallback),
        "the last judgement": ("data.test_prompts", data.test_prompts or fallback),
    }
    same = {what: key for what, (key, file) in files.items() if file == data.prompts}
    if not same:
        return []
    return [
        f"{' and '.join(same)} {'is' if len(same) == 1 else 'are'} measured on the training prompts "
        f"{data.prompts}, which says nothing about others; name {' and '.join(same.values())} for prompts that "
        "are not trained on"
    ]


def differences_as_yaml(config: TrialConfig) -> str:
    """Every option that differs from its default, as YAML that reads back to an equal configuration."""
    changed = config.model_dump(mode="json", exclude_defaults=True)
    return "".join(_lines(changed)) or "{}\n"


def _lines(tree: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:\n"
            yield from _lines(value, indent + "  ")
        else:
            # JSON is YAML, and leaves no doubt about what is text.
            yield f"{indent}{key}: {json.dumps(value, ensure_ascii=False)}\n"
