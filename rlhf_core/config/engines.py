"""Options of training engines and adapters, and which of them exclude each other. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core.config.fields import Group, in_vain, option

if TYPE_CHECKING:
    from rlhf_core.config.trial import TrialConfig

# Every linear layer but the output head.
ALL_LINEAR = "all-linear"


class LoraConfig(Group):
    rank: int = option(0, "Rank of the adapters; 0: none, all weights are trained.", ge=0, le=4096)
    alpha: float = option(16.0, "What the adapters add is scaled by alpha / rank.", gt=0, le=65536)
    dropout: float = option(
        0.0, "Share of the adapters' inputs that an update leaves out.", ge=0, lt=1
    )
    targets: tuple[str, ...] = option(
        (ALL_LINEAR,),
        "Names of the modules that get adapters, such as 'q_proj', or the ends of their dotted names; "
        "'all-linear' is every linear layer but the head.",
    )


def joint_methods(config: TrialConfig, role: str) -> frozenset[str]:
    """Methods of ``role`` in which its ranks meet, though only the first one's answer counts."""
    optim = config.optim
    if role not in ("learner", "critic") or optim.engine == "torch" or optim.zero_stage == 0:
        return frozenset()
    whole = ("generate", "publish", "export") if optim.zero_stage == 3 else ()
    return frozenset(("save", *whole))


def keeps_models(config: TrialConfig) -> bool:
    """Whether a process can serve another trial: DeepSpeed changes its modules for good, vLLM the process."""
    return config.optim.engine == "torch" and config.rollout.engine == "native"


def broken_engine_rules(config: TrialConfig) -> list[str]:
    """Rules between the options of engines and adapters that ``config`` breaks, one line each."""
    return [*_broken_lora(config), *_broken_engine(config), *_broken_offload(config)]


def _broken_lora(config: TrialConfig) -> list[str]:
    lora = config.model.lora
    if not lora.rank:
        off = "adapters, but model.lora.rank is 0"
        return in_vain(lora, ("alpha", "dropout", "targets"), "model.lora.", off)
    if not lora.targets:
        return ["model.lora.targets must name a module, but is empty; name one or use 'all-linear'"]
    if ALL_LINEAR in lora.targets and len(lora.targets) > 1:
        return [
            "model.lora.targets: 'all-linear' stands alone, but is one of "
            f"{', '.join(lora.targets)}; remove it or the others"
        ]
    return []


def _broken_engine(config: TrialConfig) -> list[str]:
    optim, problems = config.optim, []
    half = config.model.dtype == "bfloat16"
    if half and optim.autocast != "off":
        problems.append(
            f"optim.autocast {optim.autocast!r} has no effect: it belongs to float32 weights, but model.dtype "
            "is 'bfloat16'; remove it or change that"
        )
    if optim.engine == "torch":
        off = "the engine deepspeed, but optim.engine is 'torch'"
        return problems + in_vain(optim, ("zero_stage", "offload"), "optim.", off)
    if half and optim.zero_stage == 0:
        problems.append(
            "optim.zero_stage must be 1, 2 or 3 with model.dtype 'bfloat16', but is 0, where DeepSpeed sums "
            "gradients in bfloat16; raise it, or use optim.engine 'torch'"
        )
    if optim.zero_stage == 3 and config.sync.transport == "collective":
        problems.append(
            "sync.transport 'collective' needs whole weights on the learner's first rank, which "
            "optim.zero_stage 3 shards; use object_store or a lower stage"
        )
    return problems


def _broken_offload(config: TrialConfig) -> list[str]:
    optim = config.optim
    least = {"none": 0, "optimizer": 1, "all": 3}[optim.offload]
    if optim.engine == "torch" or optim.zero_stage >= least:
        return []
    return [
        f"optim.offload {optim.offload!r} needs optim.zero_stage {least}{'' if least == 3 else ' or more'}, but "
        f"it is {optim.zero_stage}; change either"
    ]
