"""The models of a trial's roles: whole ones, or adapters on one base that the roles of a process share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from rlhf_core.config.trial import TrialConfig
from rlhf_core.models.load import ValueModel, load_critic, load_policy, make_critic
from rlhf_core.models.lora import add_adapters, with_shared_tensors
from rlhf_core.models.warm import shared, stamp


def adapted_policy(config: TrialConfig, source: str, device: torch.device) -> nn.Module:
    """The policy as learner and rollout start with it; with adapters only these can change.

    Raises:
        ConfigError: If it cannot be loaded, or has no such modules for adapters.
    """
    dtype, lora = config.model.dtype, config.model.lora
    if not lora.rank:
        return load_policy(source, dtype, device)
    model = _on_base(load_policy)(source, dtype, device)
    add_adapters(model, lora, config.seed, "policy")
    return model


def adapted_critic(
    config: TrialConfig, reward: str | None, policy: str, device: torch.device, bias: float
) -> ValueModel:
    """The critic as ``load_critic`` makes it; with adapters only these and the head can change.

    Raises:
        ConfigError: As for ``adapted_policy``.
    """
    dtype, lora = config.model.dtype, config.model.lora
    if not lora.rank:
        return load_critic(reward, policy, dtype, device, bias)
    model = make_critic(reward, policy, dtype, device, bias, through=_on_base)
    add_adapters(model.trunk, lora, config.seed, "critic")
    return model


def reference_policy(config: TrialConfig, source: str, device: torch.device) -> nn.Module:
    """The reference; where there are adapters, the base without them."""
    load = partial(load_policy, key="model.reference")
    through = _on_base if config.model.lora.rank else _itself
    return through(load)(source, config.model.dtype, device)


def _itself(load: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return load


def _on_base(load: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """``load`` of a frozen model whose tensors all roles of the process share."""

    def loaded(source: str, dtype: str, device: torch.device, *rest: Any) -> nn.Module:
        named = getattr(load, "func", load).__name__
        base = shared(
            (named, stamp(source), dtype), device, lambda device: load(source, dtype, device, *rest)
        )
        return with_shared_tensors(base.requires_grad_(False))

    return loaded
