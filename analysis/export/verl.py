"""Export to and import from verl: hydra overrides of ``verl.trainer.main_ppo`` with FSDP and vLLM."""

from __future__ import annotations

from typing import Any

from analysis.export.adapters import adapter_rules, recompute_rule
from analysis.export.places import ASKS
from analysis.export.rules import (
    Case,
    Rule,
    Table,
    Told,
    Unreadable,
    Values,
    drop,
    fixed,
    lookup,
    number,
    same,
    truth,
    whole,
)
from analysis.export.shared import (
    by_function,
    extra_rewards,
    needs_critic,
    path,
    policy,
    policy_of,
    programmed,
    reference,
    variable,
    whitening,
)
from analysis.export.verl_loss import loss_rules
from analysis.export.verl_run import run_rules

VERSIONS = ("0.9.1",)
NOWHERE = "verl has no such option"
MODELS = ("actor_rollout_ref.model.", "critic.model.")
REASONS = {
    "data.task": "its models and prompts are given in variables; its reward offset is left out",
    "data.prompts": "verl reads chat messages with a data source from .parquet or .json",
    "data.eval_prompts": "verl reads chat messages with a data source from .parquet or .json",
    "rollout.chunk_size": "vLLM makes its own batches",
    "rollout.engine": "vLLM samples there in any case",
    **drop(ASKS, "a pool asks for CPUs as for GPUs, and for nothing else"),
    **drop(
        ("sync.transport",), "actor and rollout share GPUs, and weights are handed over in place"
    ),
    "reward.": "in a reward manager or function of your own",
}
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def table(version: str) -> Table:
    """The rules for a version of ``VERSIONS``."""
    return (
        *_model_rules(),
        *_sampling_rules(),
        *_advantage_rules(),
        *loss_rules(),
        *run_rules(),
    )


REWARD_NAMES: dict[str, Any] = {
    "reward.reward_model.enable": False,
    "reward.reward_model.model_path": None,
    "reward.reward_model.rollout.name": None,
    "reward.reward_model.rollout.tensor_model_parallel_size": 2,
    "reward.custom_reward_function.path": None,
}


def _model_rules() -> list[Rule]:

    starts = {
        "critic.model.path": None,
        "actor_rollout_ref.model.path": None,
        "reward.reward_model.model_path": None,
    }
    return [
        policy("actor_rollout_ref.model.path", None),
        reference("the reference is the policy at its start"),
        Rule(
            ("reward.model", "reward.function", "reward.url"),
            REWARD_NAMES,
            _reward_out,
            _reward_back,
        ),
        needs_critic(Rule(("model.critic_init",), starts, _critic_out, _critic_back)),
        _dtype(),
        fixed("model.device", "auto", "it always runs on GPUs"),
        *adapter_rules(MODELS, "lora_rank", "lora_alpha", "target_modules"),
        recompute_rule(tuple(f"{model}enable_gradient_checkpointing" for model in MODELS), True),
        fixed("data.chat_template", "auto", "prompts always go through the chat template"),
    ]


def _critic_back(theirs: Values) -> dict[str, Any]:
    start = theirs["critic.model.path"]
    if start is None or start == theirs["reward.reward_model.model_path"]:
        return {"model.critic_init": "reward"}
    if start != theirs["actor_rollout_ref.model.path"]:
        raise Unreadable("the critic starts from the policy or from the reward model here")
    return {"model.critic_init": "policy"}


def _critic_out(case: Case) -> Told:
    kind = case["model.critic_init"]
    if kind == "reward" and not by_function(case):
        return Told({"critic.model.path": _reward_model(case)})
    start = policy_of(case)
    told = Told({"critic.model.path": start}, {"model.critic_init": "the policy's path"})
    if kind == "reward":
        told.dropped["model.critic_init"] = "without a reward model the policy is the start"
    return told


def _reward_back(theirs: Values) -> dict[str, Any]:
    if theirs["reward.custom_reward_function.path"] is not None:
        raise Unreadable("a reward function of another signature; name one in reward.function")
    return {
        "reward.model": path(theirs["reward.reward_model.model_path"]),
        "reward.function": None,
        "reward.url": None,
    }


def _reward_out(case: Case) -> Told:
    if by_function(case):
        form = "compute_score(data_source, solution_str, ground_truth, extra_info)"
        return programmed(case, "reward.custom_reward_function.path", form)
    values = (True, _reward_model(case), "vllm", 1)
    return Told(dict(zip(REWARD_NAMES, values, strict=False)))


def _reward_model(case: Case) -> Any:
    return case["reward.model"] or variable(case, "REWARD_MODEL", "the reward model")


def _dtype() -> Rule:
    name = f"{ACTOR}fsdp_config.model_dtype"
    names = {"float32": "fp32", "bfloat16": "bf16"}
    ours = {"fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}

    def out(case: Case) -> Told:
        there = names[case["model.dtype"]]
        note = f"weights in {there}; passes are bfloat16 either way"
        return Told({name: there, "critic.fsdp.model_dtype": there}, {"model.dtype": note})

    return Rule(
        ("model.dtype",),
        {name: "fp32", "critic.fsdp.model_dtype": "fp32"},
        out,
        lambda t: {"model.dtype": lookup(ours, "", t[name])},
    )


def _sampling_rules() -> list[Rule]:
    top_k = f"{ROLLOUT}top_k"

    def top_k_out(case: Case) -> Told:
        off = case["rollout.top_k"] == 0
        return Told(
            {top_k: case["rollout.top_k"] or -1}, {"rollout.top_k": "-1 is off"} if off else {}
        )

    def top_k_back(theirs: Values) -> dict[str, Any]:
        return {"rollout.top_k": max(0, whole(theirs[top_k]))}

    def length(case: Case) -> Told:
        return Told(
            {"data.max_prompt_length": case["data.max_prompt_tokens"], "data.truncation": "left"}
        )

    def length_back(theirs: Values) -> dict[str, Any]:
        return {"data.max_prompt_tokens": whole(theirs["data.max_prompt_length"])}

    return [
        same("rollout.prompts_per_iteration", "data.train_batch_size", 1024, whole),
        same("rollout.samples_per_prompt", f"{ROLLOUT}n", 1, whole),
        same("rollout.max_new_tokens", "data.max_response_length", 512, whole),
        same("rollout.temperature", f"{ROLLOUT}temperature", 1.0, number),
        same("rollout.top_p", f"{ROLLOUT}top_p", 1, number),
        Rule(("rollout.top_k",), {top_k: -1}, top_k_out, top_k_back),
        fixed("rollout.stop", (), "only the end of sequence ends a response"),
        Rule(
            ("data.max_prompt_tokens",),
            {"data.max_prompt_length": 512, "data.truncation": "error"},
            length,
            length_back,
        ),
        *(fixed(f"reward.{key}", value, "in a reward manager or function of your own") for key, value in
          REWARD.items()),
        extra_rewards("there is one reward; the file of the reward function returns the sum"),
    ]  # fmt: skip


REWARD: dict[str, Any] = {
    "offset": 0.0,
    "clip": None,
    "normalise": "off",
    "missing_eos_penalty": 0.0,
    "truncation_penalty": None,
    "overlong_buffer": None,
    "weight": 1.0,
}


CALLED = {
    "gae": "gae",
    "reinforce": "reinforce_plus_plus",
    "reinforce_baseline": "reinforce_plus_plus_baseline",
    "rloo": "rloo",
    "group_norm": "grpo",
    "dr_grpo": "grpo",
}
OURS = {
    **{there: here for here, there in CALLED.items() if there != "grpo"},
    "rloo_vectorized": "rloo",
    "grpo": "group_norm",
    "grpo_vectorized": "group_norm",
}


def _advantage_rules() -> list[Rule]:
    names = {"algorithm.adv_estimator": "gae", "algorithm.norm_adv_by_std_in_grpo": True}

    return [
        Rule(("ppo.advantage",), names, _advantage_out, _advantage_back),
        same("ppo.gamma", "algorithm.gamma", 1.0, number),
        same("ppo.lam", "algorithm.lam", 1.0, number),
        whitening(),
        fixed(
            "ppo.filter_groups",
            False,
            "no group is left out; the filter there replaces groups by new ones",
        ),
    ]


def _advantage_back(theirs: Values) -> dict[str, Any]:
    estimator = lookup(OURS, "", theirs["algorithm.adv_estimator"])
    if estimator == "group_norm" and not truth(theirs["algorithm.norm_adv_by_std_in_grpo"]):
        estimator = "dr_grpo"
    return {"ppo.advantage": estimator}


def _advantage_out(case: Case) -> Told:
    estimator = case["ppo.advantage"]
    told = Told({"algorithm.adv_estimator": CALLED[estimator]})
    if CALLED[estimator] == "grpo":
        told.theirs["algorithm.norm_adv_by_std_in_grpo"] = estimator == "group_norm"
    if CALLED[estimator] != estimator:
        told.notes["ppo.advantage"] = f"CALLED {CALLED[estimator]}"
    return told
