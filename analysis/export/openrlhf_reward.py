"""Export to and import from OpenRLHF: rewards and sampling."""

from __future__ import annotations

from typing import Any

from analysis.export.rules import (
    NEVER,
    Case,
    Rule,
    Told,
    Unreadable,
    Values,
    fixed,
    number,
    optional,
    pair,
    same,
    truth,
    whole,
)
from analysis.export.shared import by_function, extra_rewards, idle, path, programmed, variable


def reward_rules() -> list[Rule]:
    """What is optimised, and what becomes of a score."""
    return [
        _model(),
        _clip(),
        _normalise(),
        same(
            "reward.truncation_penalty",
            "reward.stop_properly_penalty_coef",
            None,
            optional(number),
        ),
        same("reward.overlong_buffer", "reward.overlong_buffer_len", None, optional(whole)),
        same("reward.overlong_penalty", "reward.overlong_penalty_factor", 1, number),
        fixed("reward.offset", 0.0, "scores are taken as they are"),
        fixed("reward.missing_eos_penalty", 0.0, "nothing is subtracted"),
        fixed("reward.weight", 1.0, "scores are taken as they are"),
        extra_rewards("there is one reward; the file of the reward function returns the sum"),
    ]


def _model() -> Rule:
    names = {"reward.model_name_or_path": None, "reward.remote_url": None}

    def out(case: Case) -> Told:
        if case["reward.url"] and not case.config.reward.extra:
            return Told({"reward.remote_url": case["reward.url"]})
        if by_function(case):
            return programmed(case, "reward.remote_url", "reward_func(queries, prompts, labels)")
        model = case["reward.model"] or variable(case, "REWARD_MODEL", "the reward model")
        return Told({"reward.model_name_or_path": model})

    def back(theirs: Values) -> dict[str, Any]:
        url = theirs["reward.remote_url"]
        if isinstance(url, str) and url.startswith(("http://", "https://")) and "," not in url:
            return {"reward.model": None, "reward.function": None, "reward.url": url}
        if url is not None:
            raise Unreadable("a reward function, or several servers; name one in reward.function")
        model = path(theirs["reward.model_name_or_path"])
        return {"reward.model": model, "reward.function": None, "reward.url": None}

    return Rule(("reward.model", "reward.function", "reward.url"), names, out, back)


def _clip() -> Rule:
    def out(case: Case) -> Told:
        reach = case["reward.clip"]
        told = Told({"reward.clip_range": [-(reach or NEVER), reach or NEVER]})
        told.notes["reward.clip"] = (
            "off: a range that no score leaves"
            if reach is None
            else "both ends; after the baseline"
        )
        return told

    def back(theirs: Values) -> dict[str, Any]:
        low, high = pair(theirs["reward.clip_range"])
        if low != -high:
            raise Unreadable("scores are clipped symmetrically here")
        return {"reward.clip": None if high >= NEVER else high}

    return Rule(("reward.clip",), {"reward.clip_range": [-10, 10]}, out, back)


def _normalise() -> Rule:
    name = "reward.normalize_enable"

    def out(case: Case) -> Told:
        kind, keys = case["reward.normalise"], ("reward.mean", "reward.std")
        told = Told({name: kind == "static"})
        if kind == "running":
            told.dropped["reward.normalise"] = (
                "only static normalisation is offered; off is written"
            )
        if kind == "static":
            told.notes["reward.normalise"] = "static is a flag"
            return idle(told, keys, "read from the reward model's config.json")
        return told

    def back(theirs: Values) -> dict[str, Any]:
        on = truth(theirs[name])
        return {"reward.normalise": "static" if on else "off"}

    keys = ("reward.normalise", "reward.mean", "reward.std")
    return Rule(keys, {name: False}, out, back)


def sampling_rules() -> list[Rule]:
    """Prompts and responses."""
    return [
        _lengths(),
        same("rollout.prompts_per_iteration", "rollout.batch_size", 1024, whole),
        same("rollout.samples_per_prompt", "rollout.n_samples_per_prompt", 1, whole),
        same("rollout.temperature", "rollout.temperature", 1.0, number),
        same("rollout.top_p", "rollout.top_p", 1.0, number),
        fixed("rollout.top_k", 0, "all tokens are sampled from"),
        fixed("rollout.stop", (), "only the end of sequence ends a response"),
    ]


def _lengths() -> Rule:
    names = {"rollout.max_new_tokens": None, "data.max_len": 2048}

    def out(case: Case) -> Told:
        response = case["rollout.max_new_tokens"]
        longest = case["data.max_prompt_tokens"] + response
        return Told(
            {"rollout.max_new_tokens": response, "data.max_len": longest},
            {"data.max_prompt_tokens": "data.max_len is prompt and response together"},
        )

    def back(theirs: Values) -> dict[str, Any]:
        if theirs["rollout.max_new_tokens"] is None:
            raise Unreadable(
                "without rollout.max_new_tokens prompt and response share data.max_len"
            )
        response = whole(theirs["rollout.max_new_tokens"])
        prompt = whole(theirs["data.max_len"]) - response
        if prompt < 1:
            raise Unreadable(f"data.max_len leaves {prompt} tokens to the prompt")
        return {"rollout.max_new_tokens": response, "data.max_prompt_tokens": prompt}

    return Rule(("rollout.max_new_tokens", "data.max_prompt_tokens"), names, out, back)
