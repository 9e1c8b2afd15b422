"""What the learner and the critic share: a module, its AdamW state, and saving both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.checkpoint import copy_into, load_part, save_part
from rlhf_core.errors import DivergedError
from rlhf_core.models.forward import split_rows
from rlhf_core.ppo.aggregation import Normalizer
from rlhf_core.store import open_store
from rlhf_core.types import AdamWSettings, CallContext, Experience, Rollout, UpdateSettings

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Trainer:
    """A module under AdamW.

    Args:
        role: Name of the role, for messages and files.
        model: Trained in place.
        device: Where it lives.
    """

    def __init__(self, role: str, model: nn.Module, device: torch.device) -> None:
        self.role, self.model, self.device = role, model, device
        # Settings are set again before every step, see step().
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)

    def run(
        self,
        experience: Experience,
        settings: UpdateSettings,
        loss: Callable[[Experience, Normalizer], tuple[Tensor, Any]],
    ) -> tuple[list[Any], list[float]]:
        """All optimiser steps of one update.

        Args:
            experience: The batch.
            settings: Minibatches and optimiser settings.
            loss: ``(micro-batch, counts of the optimiser step) -> (loss, statistics)``; the losses of a
                step's micro-batches add up to the loss of the step.

        Returns:
            The statistics of every micro-batch and the gradient norm of every step.

        Raises:
            DivergedError: If a gradient is not finite; the weights keep their last finite values.
        """
        stats, norms = [], []
        for rows in settings.minibatches:
            counts = Normalizer.of(experience.rollout.response_mask_BT[list(rows)])
            self.optimizer.zero_grad(set_to_none=True)
            for part in self.parts(experience.rollout, rows, settings):
                value, stat = loss(experience.select(part).to(self.device), counts)
                value.backward()  # type: ignore[no-untyped-call]
                stats.append(stat)
            norms.append(self.step(settings.optim))
        return stats, norms

    def parts(
        self, rollout: Rollout, rows: Sequence[int], settings: UpdateSettings
    ) -> list[list[int]]:
        """Rows of each forward and backward pass."""
        return split_rows(rollout, rows, settings.micro_batch_size, settings.micro_batch_tokens)

    def step(self, settings: AdamWSettings) -> float:
        """One optimiser step with these settings; returns the gradient norm before clipping."""
        limit = settings.max_grad_norm if settings.max_grad_norm is not None else float("inf")
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        if not norm < float("inf"):
            raise DivergedError(self.role, "gradient", f"has norm {norm}")
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr
            group["betas"] = (settings.beta1, settings.beta2)
            group["eps"] = settings.eps
            group["weight_decay"] = settings.weight_decay
        self.optimizer.step()
        return norm

    def save(self, context: CallContext, uri: str, step: int) -> dict[str, Any]:
        """Writes weights and optimiser state; returns the entry for the manifest."""
        tensors = {f"model.{name}": p.detach().cpu() for name, p in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state.get(parameter, {})
            tensors.update({f"optim.{name}.{key}": state[key].cpu() for key in _MOMENTS if state})
        return save_part(open_store(uri), step, self.role, tensors)

    def load(self, context: CallContext, uri: str, entry: dict[str, Any]) -> None:
        """Reads weights and optimiser state back, in place."""
        tensors = load_part(open_store(uri), entry)
        copy_into(self.model, tensors, entry, self.role, "model.")
        for name, parameter in self.model.named_parameters():
            self.optimizer.state.pop(parameter, None)
            if f"optim.{name}.step" in tensors:
                self.optimizer.state[parameter] = {
                    key: tensors[f"optim.{name}.{key}"].to(
                        "cpu" if key == "step" else parameter.device
                    )
                    for key in _MOMENTS
                }

    def close(self) -> None:
        """Nothing to free."""


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
