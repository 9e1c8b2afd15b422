"""Who samples for a role: one interface, and ``rollout.engine`` says who is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from rlhf_core.config.trial import TrialConfig
from rlhf_core.generation.decoders import MakeDecoder, decoders_of
from rlhf_core.generation.sampler import Sampling, sample_with


class GenerationEngine(Protocol):
    """Samples from a model whose weights its owner changes between calls."""

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One response to each prompt; arguments and result as of ``generation.sampler.sample``."""
        ...

    def refresh(self) -> None:
        """The model's weights have changed; what is sampled from now on is sampled with them.

        Raises:
            RlhfError: If the engine did not take all of them.
        """
        ...

    def rest(self) -> None:
        """Nothing is sampled for a while: gives up device memory where others can use it."""
        ...

    def close(self) -> None:
        """Gives up everything."""
        ...


class NativeEngine:
    """This project's own sampler.

    What decoding needs of the weights is taken when a batch is sampled first, and again after ``refresh``.

    Args:
        model: A causal model with a key-value cache.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._decoders: MakeDecoder | None = None

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self._decoders is None:
            self._decoders = decoders_of(self.model)
        device = next(self.model.parameters()).device
        return sample_with(self._decoders, device, prompts, sampling, seed)

    def refresh(self) -> None:
        self._decoders = None

    def rest(self) -> None:
        self._decoders = None

    def close(self) -> None:
        self._decoders = None


def home_of(config: TrialConfig, device: torch.device) -> torch.device:
    """Where the weights lie that a rollout is sent; vLLM has its own copy, so these stay off its GPU."""
    return device if config.rollout.engine == "native" else torch.device("cpu")


def build_generation(
    config: TrialConfig, source: str, model: nn.Module, device: torch.device
) -> GenerationEngine:
    """The engine that ``rollout.engine`` names.

    Args:
        config: The trial.
        source: Folder or hub id of ``model``.
        model: The policy as it is read from there.
        device: Where the engine computes.

    Raises:
        ConfigError: If vLLM is asked for and not installed, or cannot serve the model.
    """
    if config.rollout.engine == "native":
        return NativeEngine(model)
    from rlhf_core.generation.vllm_engine import VllmEngine

    return VllmEngine(config, source, model, device)
