"""Rules that several targets share: models, schedules, whitening, batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis.export.rules import (
    Case,
    Rule,
    Told,
    Unreadable,
    Values,
    Var,
    divisor,
    drop,
    lookup,
    number,
    own_keys,
    text,
    whole,
)
from rlhf_core.config import TrialConfig
from rlhf_core.config.reward import RewardComponent

DEFAULT = TrialConfig()
USUAL_WHITENING = {
    "gae": "mean_std",
    "reinforce": "mean_std",
    "reinforce_baseline": "mean_std",
}
ROLES = ("policy", "critic")
BESIDE_TOKENS = "written as well; dynamic batches take its place"


def path(value: Any) -> str | None:
    """A path or hub id; a variable stands for what the configuration leaves open."""
    return None if value is None or isinstance(value, Var) else text(value)


def variable(case: Case, name: str, what: str) -> Var:
    """A variable for a model or file that only the task names."""
    task = case["data.task"]
    return Var(name, f"{what} (of {task})" if task else what)


def policy_of(case: Case) -> str | Var:
    """The policy as they can read it: a folder or a hub id, and no GGUF file."""
    ours: str | None = case["model.policy"]
    if ours is not None and (ours.startswith("package:") or ours.endswith(".gguf")):
        return Var("POLICY", f"the policy as a Hugging Face folder (of {ours})")
    return ours or variable(case, "POLICY", "the policy")


def policy(name: str, default: Any) -> Rule:
    """The policy's weights."""

    def out(case: Case) -> Told:
        return Told({name: policy_of(case)})

    return Rule(("model.policy",), {name: default}, out, lambda t: {"model.policy": path(t[name])})


def reference(instead: str) -> Rule:
    """No reference of its own: there it always is the policy at its start."""
    key = "model.reference"

    def out(case: Case) -> Told:
        ours = case[key]
        if ours is None:
            return Told()
        if ours == case["model.policy"]:
            return Told(dropped={key: f"{instead}, which is the same model"})
        rule = f"{key} must be null for this target, but is {ours}: {instead}; set it to null"
        return Told(refused=[rule])

    return Rule((key,), {}, out, lambda _: {key: None})


def whitening(mean_only: str | None = None) -> Rule:
    """Whitening there follows from the estimator; ``mean_only`` is their flag for leaving the deviation."""
    key = "ppo.whitening"

    def out(case: Case) -> Told:
        estimator, used = case["ppo.advantage"], case.config.ppo.whitening_used
        usual = USUAL_WHITENING.get(estimator, "off")
        flags = {} if mean_only is None else {mean_only: False}
        if used == usual:
            notes = {} if case[key] == "auto" else {key: f"{used} is what {estimator} does there"}
            return Told(flags, notes)
        if mean_only and (used, usual) == ("mean", "mean_std"):
            return Told({mean_only: True}, {key: "mean is a flag of its own"})
        return Told(flags, dropped={key: f"{usual} is what {estimator} does there"})

    def back(theirs: Values) -> dict[str, Any]:
        return {key: "mean" if mean_only and theirs[mean_only] else "auto"}

    return Rule((key,), {} if mean_only is None else {mean_only: False}, out, back)


def schedule_keys(role: str) -> tuple[str, ...]:
    """Our keys of a learning-rate schedule."""
    names = ("schedule", "warmup_iterations", "horizon_iterations", "min_lr_ratio")
    return tuple(f"optim.{role}.{name}" for name in names)


def schedule_dropped(case: Case, role: str) -> dict[str, str]:
    """What a schedule that ends with the run cannot say."""
    kind, _, horizon, ratio = (case[key] for key in schedule_keys(role))
    _, _, *beyond = schedule_keys(role)
    horizon_key, ratio_key = beyond
    if kind == "constant":
        return drop(beyond, "has no effect with schedule constant")
    dropped = {}
    iterations = case["budget.iterations"]
    if horizon != iterations:
        dropped[horizon_key] = f"the schedule ends with the run, after {iterations} iterations"
    if kind == "linear" and ratio:
        dropped[ratio_key] = "a linear schedule ends at 0"
    return dropped


def schedule_back(
    role: str, kind: str, warmup: int, iterations: int | None, ratio: float
) -> dict[str, Any]:
    """Our schedule; the horizon is the length of the run, and always beyond the warm-up."""
    usual: int = getattr(DEFAULT.optim, role).horizon_iterations
    ends = usual if kind == "constant" or iterations is None else iterations
    values = (kind, warmup, max(ends, warmup + 1), 0.0 if kind == "constant" else ratio)
    return dict(zip(schedule_keys(role), values, strict=True))


def rank_responses(case: Case, gpus: int) -> tuple[int, list[str]]:
    """Responses of one optimiser step on one GPU, and why that cannot be."""
    if case.responses % gpus == 0:
        return case.responses // gpus, []
    return 1, [
        f"the {case.responses} responses of a minibatch must divide over {gpus} GPUs for this target, but "
        f"leave {case.responses % gpus}; change rollout.prompts_per_iteration, ppo.minibatches or the GPUs"
    ]


def micro_batch(case: Case, gpus: int, beside_tokens: str) -> tuple[int, Told]:
    """Responses in one pass of one GPU, which must divide what that GPU has of a step.

    Args:
        case: The configuration.
        gpus: GPUs over which a step is spread.
        beside_tokens: What the size is for there where passes are counted in tokens here.
    """
    key, asked = "optim.micro_batch_size", case["optim.micro_batch_size"]
    mine, refused = rank_responses(case, gpus)
    size = divisor(mine, asked)
    told = Told(refused=refused)
    if case["optim.micro_batch_tokens"] is not None:
        told.notes[key] = beside_tokens
        told.written.add(key)
    if size != asked:
        told.dropped[key] = (
            f"{size} is written, which divides the {mine} responses of a step on a GPU"
        )
    return size, told


def minibatches(step: int, batch: int) -> dict[str, Any]:
    """Our count of minibatches for optimiser steps of ``step`` out of ``batch``."""
    if step < 1 or batch % step:
        raise Unreadable(f"steps of {step} do not divide a batch of {batch}")
    return {"ppo.minibatches": batch // step}


def role_rules(make: Callable[[str], list[Rule]]) -> list[Rule]:
    """The same rules for both optimisers."""
    return [rule for role in ROLES for rule in make(role)]


def needs_critic(rule: Rule) -> Rule:
    """A rule of the critic: without one nothing is written and its keys are dropped."""

    def out(case: Case) -> Told:
        if case.config.ppo.needs_critic:
            return rule.out(case)
        reason = f"ppo.advantage {case['ppo.advantage']} has no critic"
        return Told(dropped=dict.fromkeys(rule.keys, reason))

    return Rule(rule.keys, rule.theirs, out, rule.back)


def idle(told: Told, keys: tuple[str, ...], reason: str) -> Told:
    """``told`` with keys that have no effect in this configuration."""
    told.dropped.update(dict.fromkeys(keys, reason))
    return told


def clip_ends(low: Any, high: Any) -> dict[str, Any]:
    """Both clip ranges of the ratio."""
    return {"ppo.clip_range_low": number(low), "ppo.clip_range_high": number(high)}


def steps(value: Any, *, off: int = -1) -> int | None:
    """A count of steps that may be switched off."""
    found = whole(value)
    return None if found == off or found <= 0 else found


def per_token_target(case: Case) -> list[str]:
    """Why an adaptive controller cannot be exported to those who take its target per token."""
    kl = case.config.ppo.kl
    if kl.target_per_token is not None or kl.target_per_response is None:
        return []
    return [
        f"ppo.kl.target_per_response must be given per token for this target, but is "
        f"{kl.target_per_response:g} nats/response; divide it by the mean length of a response and set "
        "ppo.kl.target_per_token"
    ]


def every_iteration() -> Rule:
    """Weights go to the samplers in every iteration, and there is no option for another interval."""
    keys = ("sync.interval", "sync.interval_episodes")

    def out(case: Case) -> Told:
        if case.config.sync_interval != 1:
            said = [key for key in keys if case[key] not in (1, None)]
            return Told(dropped=dict.fromkeys(said, "weights are delivered in every iteration"))
        if case[keys[1]] is None:
            return Told()
        return Told(dropped={keys[1]: "below one batch it means every iteration, as there"})

    return Rule(keys, {}, out, lambda _: {keys[0]: 1, keys[1]: None})


def in_turns(instead: str, names: Values | None = None) -> Rule:
    """No asynchronous training as ours.

    Args:
        instead: What happens there.
        names: Their setting that says so, with its value; another one cannot be read.
    """
    keys, said = ("sync.mode", "sync.max_staleness"), names or {}

    def out(case: Case) -> Told:
        lost = {} if case[keys[0]] == "sync" else drop(keys, instead)
        return Told(dict(said), dropped=lost)

    def back(theirs: Values) -> dict[str, Any]:
        for name, value in said.items():
            lookup({value: value}, name, theirs[name])
        return {keys[0]: "sync", keys[1]: None}

    return Rule(keys, said, out, back)


EXTRA = tuple(f"reward.extra.NAME.{name}" for name in RewardComponent.model_fields)


def extra_rewards(instead: str) -> Rule:
    """No further rewards."""

    def out(case: Case) -> Told:
        return Told(dropped=drop(own_keys(EXTRA, case.flat), instead))

    return Rule(EXTRA, {}, out, lambda _: {})


def by_function(case: Case) -> bool:
    """Whether the reward takes a program there: a function, a server, or a sum of several."""
    return bool(case["reward.function"] or case["reward.url"] or case.config.reward.extra)


def programmed(case: Case, name: str, form: str) -> Told:
    """The reward as a file that the user writes.

    Args:
        case: The configuration.
        name: Their setting for the file.
        form: The function that they look for in it.
    """
    if case.config.reward.extra:
        what = f"a .py file with {form} that returns the weighted sum of all rewards"
        keys, lost = (
            ["reward.model", "reward.function", "reward.url"],
            "there is one reward; the file returns the sum",
        )
    elif case["reward.url"]:
        what = f"a .py file with {form} that asks the server"
        keys, lost = ["reward.url"], "a file with a function asks the server"
    else:
        what = f"a .py file with {form}"
        keys, lost = (
            ["reward.function"],
            "a reward function has another signature there; wrap it in a file",
        )
    return Told({name: Var("REWARD_FUNCTION", what)}, dropped=drop(keys, lost))
