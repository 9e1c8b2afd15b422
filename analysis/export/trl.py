"""Export to and import from TRL 1.12's ``PPOConfig``, the last TRL with PPO.

Names in capitals are constants of the exported script; the others are arguments of ``PPOConfig``.
"""

from __future__ import annotations

from typing import Any

from analysis.export.adapters import recompute_rule
from analysis.export.places import ASKS
from analysis.export.rules import (
    Case,
    Rule,
    Table,
    Told,
    Values,
    bound,
    choice,
    drop,
    fixed,
    number,
    optional,
    same,
    truth,
    whole,
)
from analysis.export.shared import (
    extra_rewards,
    path,
    policy,
    reference,
    variable,
    whitening,
)
from analysis.export.trl_run import run_rules

VERSIONS = ("1.12.0",)
NOWHERE = "TRL's PPO has no such option"
REASONS = {
    "data.task": "its models and prompts come from the environment; its reward offset is left out",
    "rollout.chunk_size": "responses are sampled in batches of local_rollout_forward_batch_size",
    "rollout.engine": "responses are sampled by the model itself",
    **drop(ASKS, "`accelerate launch` starts processes, and asks for nothing"),
    **drop(
        ("sync.transport", "sync.bucket_mb"), "the policy that learns samples: no weights travel"
    ),
    "eval.": "its evaluation only prints samples",
}


def table(version: str) -> Table:
    """The rules for a version of ``VERSIONS``."""
    return (
        *_model_rules(),
        *_sampling_rules(),
        *_algorithm_rules(),
        *run_rules(),
    )


def _model_rules() -> list[Rule]:
    return [
        policy("sft_model_path", None),
        reference("the reference is the policy at its start"),
        choice(
            "model.critic_init",
            "CRITIC",
            "reward",
            {"reward": "reward", "policy": "policy"},
            "choose one of them",
        ),
        Rule(
            ("model.dtype",),
            {"bf16": True},
            lambda case: Told(
                {"bf16": case["model.dtype"] == "bfloat16"},
                {"model.dtype": "mixed precision, or none"},
            ),
            lambda t: {"model.dtype": "bfloat16" if truth(t["bf16"]) else "float32"},
        ),
        fixed(
            "model.lora.rank",
            0,
            "all weights are trained",
            refuse="set it to 0, or use another target",
        ),
        recompute_rule(("gradient_checkpointing",), True),
        Rule(
            ("model.device",),
            {"use_cpu": False},
            _device_out,
            lambda t: {"model.device": "cpu" if truth(t["use_cpu"]) else "auto"},
        ),
        Rule(
            ("reward.model", "reward.function", "reward.url"),
            {"reward_model_path": None},
            _reward_out,
            _reward_back,
        ),
        Rule(
            ("data.prompts",),
            {"PROMPTS": None},
            _prompts_out,
            lambda t: {"data.prompts": path(t["PROMPTS"])},
        ),
        same("data.max_prompt_tokens", "MAX_PROMPT_TOKENS", 64, whole),
        choice(
            "data.chat_template",
            "CHAT_TEMPLATE",
            "auto",
            {"auto": "auto", "off": "off"},
            "choose one of them",
        ),
    ]


def _device_out(case: Case) -> Told:
    kind = case["model.device"]
    told = Told({"use_cpu": kind == "cpu"})
    if kind == "cuda":
        told.dropped["model.device"] = "a GPU is taken where there is one"
    return told


def _prompts_out(case: Case) -> Told:
    given = case["data.prompts"]
    what = "training prompts, a .jsonl with a prompt on each line"
    told = Told({"PROMPTS": given or variable(case, "PROMPTS", what)})
    if given is not None and not given.endswith(".jsonl"):
        told.theirs["PROMPTS"] = variable(case, "PROMPTS", what)
        told.dropped["data.prompts"] = "the script reads .jsonl; convert the file"
    return told


def _reward_back(theirs: Values) -> dict[str, Any]:
    model = path(theirs["reward_model_path"])
    return {"reward.model": model, "reward.function": None, "reward.url": None}


def _reward_out(case: Case) -> Told:
    model = case["reward.model"] or variable(case, "REWARD_MODEL", "the reward model")
    told = Told({"reward_model_path": model})
    lost = "the reward is a sequence classifier; give one in REWARD_MODEL"
    told.dropped |= {key: lost for key in ("reward.function", "reward.url") if case[key]}
    return told


def _sampling_rules() -> list[Rule]:
    key = "reward.missing_eos_penalty"
    rest = {
        "offset": 0.0,
        "clip": None,
        "normalise": "off",
        "truncation_penalty": None,
        "overlong_buffer": None,
        "weight": 1.0,
    }
    return [
        Rule(
            (key,),
            {"missing_eos_penalty": None},
            lambda case: Told({"missing_eos_penalty": case[key] or None}),
            lambda t: {key: optional(number)(t["missing_eos_penalty"]) or 0.0},
        ),
        *(
            fixed(f"reward.{name}", value, "scores are taken as they are")
            for name, value in rest.items()
        ),
        extra_rewards("the reward is one sequence classifier"),
        same("rollout.max_new_tokens", "response_length", 53, whole),
        same("rollout.temperature", "temperature", 0.7, number),
        fixed("rollout.top_p", 1.0, "all tokens are sampled from"),
        fixed("rollout.top_k", 0, "all tokens are sampled from"),
        fixed("rollout.stop", (), "only the end of sequence ends a response"),
        fixed(
            "rollout.samples_per_prompt",
            1,
            "there is one response to a prompt",
            refuse="set it to 1",
        ),
    ]


def _algorithm_rules() -> list[Rule]:
    def clip(case: Case) -> Told:
        low, high = case["ppo.clip_range_low"], case["ppo.clip_range_high"]
        if low != high:
            rule = "ppo.clip_range_low and ppo.clip_range_high must be equal for this target"
            return Told(refused=[f"{rule}, but are {low:g} and {high:g}; change either"])
        return Told({"cliprange": low})

    def clip_back(theirs: Values) -> dict[str, Any]:
        both = number(theirs["cliprange"])
        return {"ppo.clip_range_low": both, "ppo.clip_range_high": both}

    other = "choose another target"
    return [
        fixed("ppo.advantage", "gae", "advantages are always gae", refuse=other),
        same("ppo.gamma", "gamma", 1.0, number),
        same("ppo.lam", "lam", 0.95, number),
        whitening(),
        Rule(("ppo.clip_range_low", "ppo.clip_range_high"), {"cliprange": 0.2}, clip, clip_back),
        bound("ppo.value_clip_range", "cliprange_value", 0.2),
        fixed("ppo.dual_clip", None, "there is no dual clip"),
        fixed("ppo.ratio", "token", "there is one ratio a token", refuse=other),
        fixed("ppo.log_ratio_clamp", None, "log ratios are not clamped"),
        fixed("ppo.aggregation", "token_mean", "losses are means over tokens", refuse=other),
        fixed("ppo.constant_length", None, "losses are means over tokens"),
        fixed("ppo.critic_warmup_iterations", 0, "policy and critic learn from the start"),
        fixed("ppo.entropy_coef", 0.0, "there is no entropy bonus"),
        fixed("ppo.filter_groups", False, "there are no groups"),
        _correction(),
        *_kl_rules(),
        same("ppo.epochs", "num_ppo_epochs", 4, whole),
    ]


def _correction() -> Rule:
    keys = ("ppo.correction.kind", "ppo.correction.low", "ppo.correction.high")

    def out(case: Case) -> Told:
        if case[keys[0]] == "none":
            return Told()
        rule = f"{keys[0]} must be none for this target, but is {case[keys[0]]}: there is no other sampler"
        return Told(refused=[f"{rule}; set it to none"])

    return Rule(keys, {}, out, lambda _: {keys[0]: "none"})


def _kl_rules() -> list[Rule]:
    prefix = "ppo.kl."
    targets = tuple(
        prefix + name for name in ("target_per_response", "target_per_token", "horizon")
    )

    def controller(case: Case) -> Told:
        kind = case[prefix + "controller"]
        if kind == "fixed":
            return Told()
        rule = f"{prefix}controller must be fixed for this target, but is {kind}"
        return Told(refused=[f"{rule}: the coefficient stays; set it to fixed"])

    return [
        same(prefix + "coef", "kl_coef", 0.05, number),
        choice(
            prefix + "estimator",
            "kl_estimator",
            "k1",
            {"k1": "k1", "k3": "k3"},
            "choose one of them",
        ),
        fixed(
            prefix + "mode",
            "reward",
            "the KL is a penalty on the reward",
            refuse="set it to reward",
        ),
        fixed(prefix + "measure", True, "a reference is always kept"),
        Rule(
            (prefix + "controller", *targets),
            {},
            controller,
            lambda _: {prefix + "controller": "fixed"},
        ),
    ]
