"""What the learner and the critic need from whoever trains their model. Read this first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from rlhf_core.types import AdamWSettings

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class TrainingEngine(Protocol):
    """AdamW on one module, on this rank of its role.

    Attributes:
        optimizer: Holds the moments, and the options of the last step.
        module: What is trained. Its parameters may lie elsewhere; see ``whole``.
        aligned: All ranks must make the same number of passes, since they meet within one.
        sharded: No rank holds the module's weights as a whole.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    aligned: bool
    sharded: bool

    def begin(self) -> None:
        """Forgets gradients."""
        ...

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        """What ``compute`` makes with the module; without gradients."""
        ...

    def backward(self, compute: Callable[[], Tensor], *, last: bool) -> None:
        """Adds the gradient of the loss that ``compute`` makes with the module.

        Args:
            compute: Returns the loss; those of all passes of all ranks add up to the loss of the step.
            last: No other pass of this rank follows before the step.
        """
        ...

    def used(self) -> list[bool]:
        """Which parameters have a gradient on this rank, for those that are summed after all passes."""
        ...

    def reduce(self, used: Sequence[bool]) -> None:
        """Sums over ranks what is not summed yet; ``used``: which parameters have a gradient on any rank."""
        ...

    def step(self, settings: AdamWSettings) -> float:
        """One step with the gradients since ``begin``; returns their norm before clipping.

        Raises:
            DivergedError: If the norm is not finite; the weights keep their values.
        """
        ...

    def whole(self, parameters: Iterable[nn.Parameter]) -> AbstractContextManager[None]:
        """Inside, these parameters are whole on every rank; collective where ``sharded``."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Trained weights as ``model.NAME``, moments as ``optim.NAME.MOMENT``; on the CPU, float32 or wider.

        They do not depend on the engine or the number of ranks. Collective where the optimiser is sharded; empty
        on other ranks than the first.
        """
        ...

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Takes what ``state`` of any engine returned; on all ranks."""
        ...

    def close(self) -> None:
        """Leaves what it joined."""
        ...


def shape_of(parameter: nn.Parameter) -> torch.Size:
    """Its shape as a whole, wherever it lies."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that can change, by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}
