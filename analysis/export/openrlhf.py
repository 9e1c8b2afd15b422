"""Export to and import from OpenRLHF's PPO on Ray: its algorithm options, in three dialects.

The dialects: flat flags up to 0.10.1, dotted flags from 0.10.2, and the off-policy correction taken apart in
0.11.2. Rules are written in the dotted names of 0.11.2; ``openrlhf_flat`` renames them for the oldest dialect.
"""

from __future__ import annotations

from typing import Any

from analysis.export.adapters import adapter_rules, recompute_rule, zero_rule
from analysis.export.openrlhf_dialects import VERSIONS, dialect
from analysis.export.openrlhf_flat import rename
from analysis.export.openrlhf_kl import correction_split, correction_typed, kl_rule
from analysis.export.openrlhf_loss import loss_rules
from analysis.export.openrlhf_places import resource_rules
from analysis.export.openrlhf_reward import reward_rules, sampling_rules
from analysis.export.openrlhf_run import optimiser_rules, run_rules
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
    truth,
)
from analysis.export.shared import needs_critic, path, policy, policy_of, reference, variable

__all__ = ["NOWHERE", "REASONS", "VERSIONS", "table"]

NOWHERE = "OpenRLHF has no such option"
RECOMPUTE = ("actor.gradient_checkpointing_enable",)
SERVER = "evaluation there needs a reward server or a reward function"
REASONS = {
    "data.task": "its models and prompts are given in variables; its reward offset is left out",
    "data.eval_prompts": SERVER,
    "eval.": SERVER,
    "rollout.chunk_size": "vLLM makes its own batches",
    "rollout.engine": "vLLM samples there in any case",
    **drop(ASKS, "a process asks for CPUs as for GPUs, and for nothing else"),
    **drop(
        ("sync.transport", "sync.bucket_mb"),
        "weights are broadcast over NCCL, parameter by parameter",
    ),
    "checkpoint.metric": "the best checkpoint is chosen by an evaluation, which there needs a reward server",
}


def table(version: str) -> Table:
    """The rules for a version of ``VERSIONS``."""
    spoken = dialect(version)
    rules = (
        *_model_rules(),
        *reward_rules(),
        *sampling_rules(),
        *loss_rules(spoken),
        correction_split() if spoken.split_correction else correction_typed(),
        kl_rule(spoken),
        *optimiser_rules(shared=spoken.flat),
        *run_rules(spoken.micro),
        *resource_rules(),
    )
    return rename(rules) if spoken.flat else rules


def _model_rules() -> list[Rule]:
    return [
        policy("actor.model_name_or_path", None),
        reference("the reference is the policy at its start"),
        _critic_init(),
        _dtype(),
        fixed("model.device", "auto", "it always runs on GPUs"),
        _prompts(),
        _chat_template(),
        *adapter_rules(("ds.lora.",), "rank", "alpha", "target_modules", "dropout"),
        zero_rule("ds.zero_stage", "ds.adam_offload"),
        recompute_rule(RECOMPUTE, False),
    ]


def _critic_init() -> Rule:
    key = "model.critic_init"
    critic, reward, actor = (f"{role}.model_name_or_path" for role in ("critic", "reward", "actor"))

    def out(case: Case) -> Told:
        if case[key] == "reward":
            return Told()
        start = policy_of(case)
        told = Told({critic: start}, {key: "the policy's path"})
        if start == case["reward.model"]:
            told.dropped[key] = "policy and reward model are the same"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        start = theirs[critic]
        if start is None or start == theirs[reward]:
            return {key: "reward"}
        if start != theirs[actor]:
            raise Unreadable("the critic starts from the policy or from the reward model here")
        return {key: "policy"}

    return needs_critic(Rule((key,), {critic: None, reward: None, actor: None}, out, back))


def _dtype() -> Rule:
    key, name = "model.dtype", "ds.param_dtype"

    def out(case: Case) -> Told:
        if case[key] == "bfloat16":
            return Told({name: "bf16"}, {key: "bfloat16 is called bf16"})
        lost = "bf16 over float32 master weights is used"
        return Told({name: "bf16"}, dropped={key: lost})

    names = {"bf16": "bfloat16"}
    return Rule((key,), {name: "bf16"}, out, lambda t: {key: lookup(names, "", t[name])})


def _prompts() -> Rule:
    key, names = "data.prompts", {"data.prompt_dataset": None, "data.input_key": "input"}

    def out(case: Case) -> Told:
        given = case[key]
        told = Told({"data.prompt_dataset": given, "data.input_key": "prompt"})
        if given is None or not given.endswith(".jsonl"):
            what = "training prompts, a .jsonl with a prompt on each line"
            told.theirs["data.prompt_dataset"] = variable(case, "PROMPTS", what)
        if given is not None and not given.endswith(".jsonl"):
            told.dropped[key] = "prompts are read from .jsonl there; convert the file"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        given = path(theirs["data.prompt_dataset"])
        if given is not None and not given.endswith(".jsonl"):
            raise Unreadable(f"prompts come from .txt or .jsonl files here, not from {given}")
        if given is not None and theirs["data.input_key"] != "prompt":
            raise Unreadable(f"the column is 'prompt' here, not {theirs['data.input_key']!r}")
        return {key: given}

    return Rule((key,), names, out, back)


def _chat_template() -> Rule:
    key, name = "data.chat_template", "data.apply_chat_template"

    def out(case: Case) -> Told:
        if case[key] == "off":
            return Told({name: False})
        return Told({name: True}, {key: "a flag; leave it out if the tokenizer has no template"})

    return Rule((key,), {name: False}, out, lambda t: {key: "auto" if truth(t[name]) else "off"})
