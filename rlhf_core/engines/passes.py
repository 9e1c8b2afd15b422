"""How passes of a trained model run: in which type, what they keep, which inputs of adapters they leave out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import ConfigError
from rlhf_core.models.lora import SeededDropout
from rlhf_core.seeding import derive


class Passes:
    """The options of passes, for one module.

    Args:
        config: The trial.
        module: What is trained.
        device: Where it lives.

    Raises:
        ConfigError: If the module or the device cannot do what an option asks for.
    """

    def __init__(self, config: TrialConfig, module: nn.Module, device: torch.device) -> None:
        self._device, self._autocast = device, config.optim.autocast != "off"
        if self._autocast or config.model.dtype == "bfloat16":
            check_bfloat16(device)
        self._dropouts = [m for m in module.modules() if isinstance(m, SeededDropout)]
        layers = [m for m in module.modules() if isinstance(m, GradientCheckpointingLayer)]
        if config.optim.gradient_checkpointing and not layers:
            raise ConfigError(
                "optim.gradient_checkpointing needs a model with layers that can be computed again, but "
                f"{type(module).__name__} has none; leave it out"
            )
        self._layers = layers if config.optim.gradient_checkpointing else []

    @property
    def plain(self) -> bool:
        """Whether a pass that learns computes and keeps what any pass with gradients does."""
        return not (self._layers or self._dropouts)

    def typed(self) -> contextlib.AbstractContextManager[None]:
        """Inside, matrix products have the type that was asked for."""
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast)

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Inside, layers keep for the backward pass what was asked for, and nothing more."""
        try:
            for layer in self._layers:
                # Only the layer itself: dropout inside of it stays off.
                layer.training = layer.gradient_checkpointing = True
                layer._gradient_checkpointing_func = partial(
                    checkpoint, use_reentrant=False, preserve_rng_state=False
                )
            yield
        finally:
            for layer in self._layers:
                layer.training = layer.gradient_checkpointing = False
            for dropout in self._dropouts:
                dropout.seed = None

    def seed(self, seed: int, *position: int | str) -> None:
        """Sets what adapters leave out in the pass at ``position``, until ``learning`` ends."""
        for index, dropout in enumerate(self._dropouts):
            dropout.seed = derive(seed, "dropout", *position, index)


def check_bfloat16(device: torch.device) -> None:
    """Refuses bfloat16 on a device that computes it in no hardware.

    Raises:
        ConfigError: On such a device.
    """
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise ConfigError(
            f"model.dtype and optim.autocast: {name} does not compute bfloat16; use float32 and 'off'"
        )
