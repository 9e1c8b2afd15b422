"""Options of generation engines, and which of them exclude each other. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core.config.fields import Group, in_vain, option

if TYPE_CHECKING:
    from rlhf_core.config.trial import TrialConfig


class VllmConfig(Group):
    gpu_memory_utilization: float | None = option(
        None,
        "Part of a GPU's memory that vLLM takes, of the host's where it runs on a CPU; null: its weights and a "
        "cache for a whole chunk.",
        gt=0,
        le=1,
    )
    enforce_eager: bool | None = option(
        None,
        "Layers are called one by one, none is compiled: a start of seconds, slower sampling; null: on CPUs only.",
    )


def rests_between_batches(config: TrialConfig) -> bool:
    """Whether rollouts give up their memory after each batch, because others beside them compute then.

    vLLM has a part of a GPU, the native engine a copy of the weights in its process.
    """
    resources, native = config.resources, config.rollout.engine == "native"
    if config.sync.mode == "async":
        return False
    if resources.layout == "fused":
        return native or resources.roles.fused.gpus > 0
    if native or resources.layout == "split" or not resources.roles.rollout.gpus:
        return False
    sharing = next((s.roles for s in resources.colocate if "rollout" in s.roles), ())
    return len(set(sharing) & set(config.roles)) > 1


def broken_generation_rules(config: TrialConfig) -> list[str]:
    """Rules between the options of generation engines that ``config`` breaks, one line each."""
    rollout, resources = config.rollout, config.resources
    if rollout.engine == "native":
        off = "the engine vllm, but rollout.engine is 'native'"
        names = ("gpu_memory_utilization", "enforce_eager")
        return in_vain(rollout.vllm, names, "rollout.vllm.", off)
    problems = []
    if resources.layout == "fused" and config.optim.engine == "deepspeed":
        problems.append(
            "rollout.engine 'vllm' and optim.engine 'deepspeed' need torch's default process group each, but in "
            "resources.layout 'fused' they share a process; use layout 'colocated' or 'split', or another engine"
        )
    own = resources.roles.fused if resources.layout == "fused" else resources.roles.rollout
    name = "fused" if resources.layout == "fused" else "rollout"
    if own.gpus > 1:
        problems.append(
            f"resources.roles.{name}.gpus must be at most 1 with rollout.engine 'vllm', which holds the policy on "
            f"one GPU, but is {own.gpus:g}; lower it and raise the number of workers"
        )
    problems += _broken_share(config)
    return problems


def _broken_share(config: TrialConfig) -> list[str]:
    """A worker that takes more of a GPU than it is given."""
    taken, resources = config.rollout.vllm.gpu_memory_utilization, config.resources
    own = resources.roles.rollout
    if taken is None or resources.layout == "fused" or not own.gpus:
        return []
    colocated = resources.layout == "colocated"
    key, given = ("share", own.share) if colocated else ("gpus", own.gpus)
    if given is None or taken <= given:
        return []
    return [
        f"rollout.vllm.gpu_memory_utilization must be at most the {given:g} of resources.roles.rollout.{key}, the "
        f"part of a GPU that a worker has, but is {taken:g}; lower it or raise that"
    ]
