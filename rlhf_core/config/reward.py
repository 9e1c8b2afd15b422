"""What is optimised and what is only measured."""

from __future__ import annotations

from typing import Literal

from rlhf_core.config.fields import Group, option


class RewardConfig(Group):
    model: str | None = option(
        None, "Reward model: folder or hub id of a sequence classifier; null takes the task's."
    )
    function: str | None = option(
        None, "Import path 'package.module:function' of a reward used instead of a model."
    )
    offset: float = option(0.0, "Subtracted from the score of reward.model.", ge=-1e6, le=1e6)
    heldout_offset: float = option(
        0.0, "Subtracted from the score of reward.heldout_model.", ge=-1e6, le=1e6
    )
    heldout_model: str | None = option(
        None, "Sequence classifier that is measured, never optimised."
    )
    heldout_function: str | None = option(
        None, "Import path of a reward that is measured, never optimised."
    )
    workers: int = option(
        1,
        "CPU processes that run reward functions; 0 runs them inside the reward role.",
        unit="processes",
        ge=0,
        le=256,
    )
    timeout_s: float = option(
        300.0,
        "A reward function slower than this fails the trial; not watched where reward.workers is 0.",
        unit="s",
        gt=0,
    )
    clip: float | None = option(
        None, "Scores are clipped to [-clip, clip] before the KL penalty; null: never.", gt=0
    )
    normalise: Literal["off", "static", "running"] = option(
        "off",
        "(score - mean) / std: with the mean and std below, or with those of all scores so far.",
    )
    mean: float = option(0.0, "Mean of the static normalisation.", ge=-1e6, le=1e6)
    std: float = option(1.0, "Standard deviation of the static normalisation.", gt=0, le=1e6)
    missing_eos_penalty: float = option(
        0.0, "Subtracted from the score of a response without end-of-sequence.", ge=0
    )
    truncation_penalty: float | None = option(
        None,
        "A response without end-of-sequence keeps this share of its score, or, below 0, gets this score; "
        "null: neither.",
        ge=-1e6,
        le=1,
    )
    overlong_buffer: int | None = option(
        None,
        "Responses lose score linearly over the last tokens before max_new_tokens; null: never.",
        unit="tokens",
        ge=1,
    )
    overlong_penalty: float = option(
        1.0, "What a response of max_new_tokens loses to the overlong buffer.", ge=0, le=1e6
    )
    extra_function: str | None = option(
        None, "Import path of a second reward that is added to the first and logged beside it."
    )
    extra_weight: float = option(1.0, "Weight of the second reward in the sum.", ge=-1e6, le=1e6)


def broken_reward_rules(reward: RewardConfig, max_new_tokens: int) -> list[str]:
    """Rules between options of the reward that are broken, one line each."""
    problems = []
    if reward.model and reward.function:
        problems.append("reward.model and reward.function exclude each other; remove one")
    if reward.heldout_model and reward.heldout_function:
        problems.append(
            "reward.heldout_model and reward.heldout_function exclude each other; remove one"
        )
    buffer = reward.overlong_buffer
    if buffer is not None and buffer > max_new_tokens:
        problems.append(
            f"reward.overlong_buffer must be at most rollout.max_new_tokens, but is {buffer} of "
            f"{max_new_tokens}; lower it"
        )
    return problems
