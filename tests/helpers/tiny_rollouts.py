"""Configurations and rollouts of tiny models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from tiny_models import Zoo
from torch import Tensor

from rlhf_core.assets import resolve
from rlhf_core.config import TrialConfig, apply
from rlhf_core.config.ppo import PPOConfig
from rlhf_core.prompts import encode_prompt
from rlhf_core.roles.build import build_role
from rlhf_core.types import (
    AdamWSettings,
    CallContext,
    Chunk,
    Experience,
    Prompt,
    Rollout,
    UpdateSettings,
)

CPU = torch.device("cpu")
CONTEXT = CallContext("test")
ADAM = AdamWSettings(1e-3, 0.9, 0.95, 1e-5, 0.0, 1.0)
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


def experience(zoo: Zoo, **changes: Tensor) -> Experience:
    """Responses to prompts of unequal length with random advantages, returns and values."""
    batch, _ = rollout(trial_config(zoo))
    generator = torch.Generator().manual_seed(0)
    mask_BT = batch.response_mask_BT

    def noise() -> Tensor:
        return torch.randn(mask_BT.shape, generator=generator).masked_fill(~mask_BT, 0.0)

    plain = Experience(batch, advantages_BT=noise(), returns_BT=noise(), values_BT=noise() * 0.1)
    return replace(plain, **changes)


def settings(minibatches: list[list[int]] | None = None, **changes: Any) -> UpdateSettings:
    """One step on all rows, unless said otherwise; options of AdamW and of ``PPOConfig`` by name."""
    optim = replace(ADAM, **{k: changes.pop(k) for k in list(changes) if hasattr(ADAM, k)})
    steps = minibatches or [list(range(8))]
    ppo = PPOConfig(**{k: changes.pop(k) for k in list(changes) if k in PPOConfig.model_fields})
    return UpdateSettings(optim, steps, **{"micro_batch_size": 8, "ppo": ppo, **changes})


def weights(trained: Any) -> Tensor:
    """All parameters of a role, flat."""
    return torch.cat([p.detach().flatten() for p in trained.model.parameters()]).clone()
