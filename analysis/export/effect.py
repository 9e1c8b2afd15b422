"""Options that have no effect beside the value of another: neither exported nor imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _among(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _given(value: Any) -> bool:
    return value is not None


# An option, the values at which others count, and those others.
OWNERS: tuple[tuple[str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    (
        "ppo.advantage",
        _among("gae"),
        ("ppo.lam", "ppo.value_clip_range", "ppo.critic_warmup_iterations"),
    ),
    ("ppo.correction.kind", _among("icepop", "sequence_mask"), ("ppo.correction.low",)),
    ("ppo.correction.kind", _among("tis", "icepop", "sequence_mask"), ("ppo.correction.high",)),
    ("ppo.kl.target_per_token", _among(None), ("ppo.kl.target_per_response",)),
    (
        "ppo.kl.controller",
        _among("adaptive"),
        ("ppo.kl.target_per_response", "ppo.kl.target_per_token", "ppo.kl.horizon"),
    ),
    ("reward.normalise", _among("static"), ("reward.mean", "reward.std")),
    ("reward.overlong_buffer", _given, ("reward.overlong_penalty",)),
    ("optim.micro_batch_tokens", _among(None), ("optim.micro_batch_size",)),
    ("optim.engine", _among("deepspeed"), ("optim.zero_stage", "optim.offload")),
    ("model.lora.rank", bool, ("model.lora.alpha", "model.lora.dropout", "model.lora.targets")),
    ("sync.mode", _among("async"), ("sync.max_staleness",)),
    ("rollout.partial_tokens", _given, ("rollout.partial_prompts",)),
    (
        "rollout.engine",
        _among("vllm"),
        ("rollout.vllm.gpu_memory_utilization", "rollout.vllm.enforce_eager"),
    ),
)


def without_effect(values: Mapping[str, Any], shown: Callable[[Any], str] = str) -> dict[str, str]:
    """Our keys that change nothing in a configuration, and why.

    Args:
        values: Every option by dotted key.
        shown: How a value is spelled.
    """
    return {
        key: f"has no effect with {owner} {shown(values[owner])}"
        for owner, counts, keys in OWNERS
        if not counts(values[owner])
        for key in keys
    }
