"""What is optimised and what is only measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rlhf_core.config.fields import Group, Name, family, in_vain, option
from rlhf_core.errors import nearest
from rlhf_core.paths import malformed_url


class RewardComponent(Group):
    model: str | None = option(None, "Reward model of the component: folder or hub id.")
    function: str | None = option(
        None, "Import path 'package.module:function' of the component, instead of a model."
    )
    url: str | None = option(
        None, "Address of a server that scores the component, instead of a model."
    )
    weight: float = option(1.0, "Weight of the component in the sum.", ge=-1e6, le=1e6)
    offset: float = option(
        0.0,
        "Subtracted from the score of the component's model, before its weight.",
        ge=-1e6,
        le=1e6,
    )


class RewardConfig(Group):
    model: str | None = option(
        None, "Reward model: folder or hub id of a sequence classifier; null takes the task's."
    )
    function: str | None = option(
        None, "Import path 'package.module:function' of a reward used instead of a model."
    )
    url: str | None = option(
        None,
        "Address (http or https) of a server used instead of a model: it is sent texts as JSON and answers with "
        "one number each.",
    )
    offset: float = option(
        0.0, "Subtracted from the score of reward.model, before its weight.", ge=-1e6, le=1e6
    )
    weight: float = option(1.0, "Weight of this reward in the sum of rewards.", ge=-1e6, le=1e6)
    extra: dict[Name, RewardComponent] = family(
        "Further rewards by name; what is optimised is the weighted sum of all."
    )
    heldout_offset: float = option(
        0.0, "Subtracted from the score of reward.heldout_model.", ge=-1e6, le=1e6
    )
    heldout_model: str | None = option(
        None, "Sequence classifier that is measured, never optimised."
    )
    heldout_function: str | None = option(
        None, "Import path of a reward that is measured, never optimised."
    )
    heldout_url: str | None = option(
        None, "Address of a reward server that is measured, never optimised."
    )
    workers: int = option(
        1,
        "CPU processes of each reward function, and requests at a time to each reward server; 0 runs functions "
        "inside the reward role.",
        unit="processes",
        ge=0,
        le=256,
    )
    timeout_s: float = option(
        300.0,
        "A reward function slower than this fails the trial (not watched where reward.workers is 0), and so does "
        "a reward server that is silent for so long, at every attempt.",
        unit="s",
        gt=0,
    )
    url_batch_size: int = option(
        64, "Texts in one request to a reward server.", unit="texts", ge=1, le=65536
    )
    url_retries: int = option(
        3,
        "A request that a reward server does not answer, or answers with an error of its own (status 429 or from "
        "500), is repeated so many times, after pauses that double from half a second.",
        ge=0,
        le=20,
    )
    clip: float | None = option(
        None,
        "Scores are clipped to [-clip, clip] before the KL penalty; null: never.",
        gt=0,
        le=1e30,
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


def broken_reward_rules(reward: RewardConfig, max_new_tokens: int) -> list[str]:
    """Rules between options of the reward that are broken, one line each."""
    return [
        *_broken_source_rules(reward),
        *_broken_sum_rules(reward),
        *_broken_shaping_rules(reward, max_new_tokens),
    ]


def _broken_source_rules(reward: RewardConfig) -> Iterator[str]:
    sound = [name for name, part in reward.extra.items() if part.model or part.function or part.url]
    parts = {f"reward.extra.{name}.": part for name, part in reward.extra.items()}
    named = [
        ("reward.", reward.model, reward.function, reward.url, reward.offset),
        (
            "reward.heldout_",
            reward.heldout_model,
            reward.heldout_function,
            reward.heldout_url,
            reward.heldout_offset,
        ),
        *((key, part.model, part.function, part.url, part.offset) for key, part in parts.items()),
    ]
    for key, model, function, url, offset in named:
        given = [
            f"{key}{kind}"
            for kind, value in (("model", model), ("function", function), ("url", url))
            if value
        ]
        if len(given) > 1:
            yield f"{' and '.join(given)} exclude each other; remove {'one' if len(given) == 2 else 'two'}"
        elif offset and not model:
            yield (
                f"{key}offset belongs to a {key}model, which is not named, but is {offset:g}; set it to 0, "
                "or name the model"
            )
        if url is not None and (wrong := malformed_url(url)):
            yield f"{key}url {wrong}"
    for name in reward.extra:
        if name not in sound:
            yield (
                f"reward.extra.{name} must name a model, a function or a url, but names none"
                f"{nearest(name, sound) or '; name one, or remove it'}"
            )
    if not any(url for _, _, _, url, _ in named):
        yield from in_vain(
            reward,
            ("url_batch_size", "url_retries"),
            "reward.",
            "a reward server, but no url is named",
        )


def _broken_sum_rules(reward: RewardConfig) -> Iterator[str]:
    if not any([reward.weight, *(part.weight for part in reward.extra.values())]):
        yield (
            "reward.weight and the weights of reward.extra must not all be 0: nothing would be optimised; "
            "raise one"
        )


def _broken_shaping_rules(reward: RewardConfig, max_new_tokens: int) -> Iterator[str]:
    buffer = reward.overlong_buffer
    if buffer is not None and buffer > max_new_tokens:
        yield (
            f"reward.overlong_buffer must be at most rollout.max_new_tokens, but is {buffer} of "
            f"{max_new_tokens}; lower it"
        )
    if buffer is None:
        off = "reward.overlong_buffer, but that is null"
        yield from in_vain(reward, ("overlong_penalty",), "reward.", off)
    if reward.normalise != "static":
        off = f"reward.normalise 'static', but that is {reward.normalise!r}"
        yield from in_vain(reward, ("mean", "std"), "reward.", off)
    urls = (reward.url, reward.heldout_url, *(part.url for part in reward.extra.values()))
    if reward.workers == 0 and not any(urls):
        off = "workers that can be watched, but reward.workers is 0"
        yield from in_vain(reward, ("timeout_s",), "reward.", off)
