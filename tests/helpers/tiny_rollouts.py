"""Configurations and rollouts of tiny models."""

from __future__ import annotations

from typing import Any

import torch
from tiny_models import Zoo

from rlhf_core.assets import resolve
from rlhf_core.config import TrialConfig, apply
from rlhf_core.prompts import encode_prompt
from rlhf_core.roles.build import build_role
from rlhf_core.types import CallContext, Chunk, Prompt, Rollout

CPU = torch.device("cpu")
CONTEXT = CallContext("test")
STARTS = (
    "the film is",
    "a",
    "it was so good that",
    "bad",
    "the plot of it",
    "i saw",
    "end",
    "fine a",
)


def trial_config(zoo: Zoo, family: str = "Llama", **values: Any) -> TrialConfig:
    """A trial of a tiny policy under a Python reward; ``__`` in a name stands for a dot."""
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    return apply(
        TrialConfig(),
        {
            "model.policy": zoo.policies[family],
            "data.prompts": zoo.prompts,
            "reward.workers": 0,
            "rollout.prompts_per_iteration": 8,
            "rollout.max_new_tokens": 8,
            "rollout.chunk_size": 3,
            "eval.prompts": 4,
            "eval.every_iterations": 100,
            "optim.policy.lr": 3e-3,
            "optim.critic.lr": 3e-3,
            "budget.iterations": 4,
            "resources.roles.fused.gpus": 0,
            **({} if "reward.model" in dotted else {"reward.function": "core_rewards:vowels"}),
            **dotted,
        },
    )


def role(name: str, config: TrialConfig) -> Any:
    """The role ``name`` on the CPU."""
    return build_role(name, config, CPU)


def prompts(config: TrialConfig) -> tuple[Prompt, ...]:
    """Prompts of unequal length."""
    from rlhf_core.models.load import load_tokenizer

    tokenizer = load_tokenizer(resolve(config).policy)
    return tuple(encode_prompt(tokenizer, {"prompt": text}, 64, "auto") for text in STARTS)


def rollout(config: TrialConfig, seed: int = 3) -> tuple[Rollout, tuple[Prompt, ...]]:
    """Responses of the initial policy to prompts of unequal length."""
    asked = prompts(config)
    return role("rollout", config).generate(CONTEXT, Chunk(0, asked, seed)), asked
