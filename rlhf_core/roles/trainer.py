"""What the learner and the critic share: a module, its AdamW state, its ranks, and saving."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.checkpoint import copy_into, load_part, save_part
from rlhf_core.errors import DivergedError
from rlhf_core.models.forward import split_rows
from rlhf_core.ppo.aggregation import Normalizer
from rlhf_core.ranks import Member, Ranks, balanced
from rlhf_core.store import open_store
from rlhf_core.types import AdamWSettings, CallContext, Experience, Rollout, UpdateSettings

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Trainer(Member):
    """A module under AdamW, a full copy on every rank.

    Ranks share the rows of a step; gradients, losses and statistics are those of one rank with all rows, and the
    weights of all ranks stay equal.

    Args:
        role: Name of the role, for messages, files and the group of its ranks.
        model: Trained in place.
        device: Where it lives.
    """

    def __init__(self, role: str, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.role, self.model, self.device = role, model, device
        # Settings are set again before every step, see step().
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)

    @property
    def group(self) -> Ranks:
        """The ranks of this role."""
        return self.ranks(self.role)

    def run(
        self,
        experience: Experience,
        settings: UpdateSettings,
        loss: Callable[[Experience, Normalizer], tuple[Tensor, tuple[Any, ...]]],
    ) -> tuple[tuple[Any, ...] | None, dict[str, float]]:
        """All optimiser steps of one update.

        Args:
            experience: The batch.
            settings: Minibatches and optimiser settings.
            loss: ``(micro-batch, counts of the optimiser step) -> (loss, statistics)``; the losses of a
                step's micro-batches add up to the loss of the step.

        Returns:
            The statistics of all micro-batches of all ranks, added up (None on a rank that had no rows; rank 0
            has some), and ``grad_norm``, ``lr`` and ``allreduce``, the seconds of the rank that spent most.

        Raises:
            DivergedError: If a loss or a gradient of any rank is not finite; the weights keep their last
                finite values.
        """
        parts: list[tuple[Any, ...]] = []
        norms = []
        self.group.take_seconds()
        for rows in settings.minibatches:
            parts += self._backward(experience, rows, settings, loss)
            norms.append(self.step(settings.optim))
        seconds = [spent for (spent,) in self.group.gather([self.group.take_seconds()])]
        lr = self.optimizer.param_groups[0]["lr"]
        numbers = {"grad_norm": mean(norms), "lr": lr, "allreduce": max(seconds)}
        return self._summed(parts), numbers

    def _backward(
        self,
        experience: Experience,
        rows: Sequence[int],
        settings: UpdateSettings,
        loss: Callable[[Experience, Normalizer], tuple[Tensor, tuple[Any, ...]]],
    ) -> list[tuple[Any, ...]]:
        """The gradient of one step, summed over ranks; returns the statistics of this rank's rows."""
        counts = Normalizer.of(experience.rollout.response_mask_BT[list(rows)])
        parameters, stats = list(self.model.parameters()), []
        self.optimizer.zero_grad(set_to_none=True)
        with self.group.shared_fate(lambda: [p.grad is not None for p in parameters]) as used:
            for part in self.parts(experience.rollout, rows, settings):
                value, stat = loss(experience.select(part).to(self.device), counts)
                value.backward()  # type: ignore[no-untyped-call]
                stats.append(stat)
        for parameter, is_used in zip(parameters, used, strict=True):
            if is_used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.group.add([p.grad for p in parameters if p.grad is not None])
        return stats

    def _summed(self, parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...] | None:
        """The statistics of all ranks as one."""
        mine = reduce(_plus, parts) if parts else None
        if self.group.size == 1:
            return mine
        rows = self.group.gather(_numbers(mine) if mine else [])
        return reduce(_plus, [_like(mine, row) for row in rows if row]) if mine else None

    @torch.no_grad()
    def tokenwise(
        self,
        rollout: Rollout,
        groups: Sequence[Sequence[int]],
        compute: Callable[[Rollout], Tensor],
    ) -> Tensor:
        """``compute`` of this rank's ``groups`` of rows, those of the other ranks filled in by them.

        Returns:
            float32 [B, T] on the CPU, 0 outside the mask.
        """
        out_BT = torch.zeros_like(rollout.logprobs_BT)
        with self.group.shared_fate():
            for rows in groups:
                part_BT = compute(rollout.select(rows).to(self.device))
                out_BT[rows, : part_BT.shape[1]] = part_BT.to(out_BT)
        self.group.add([out_BT])
        return out_BT

    def parts(
        self, rollout: Rollout, rows: Sequence[int], settings: UpdateSettings
    ) -> list[list[int]]:
        """Rows of each forward and backward pass of this rank."""
        return self.share(rollout, rows, settings.micro_batch_size, settings.micro_batch_tokens)

    def share(
        self, rollout: Rollout, rows: Sequence[int], size: int, tokens: int | None = None
    ) -> list[list[int]]:
        """This rank's part of ``rows``, in groups as ``split_rows`` makes them."""
        lengths = rollout.lengths_B[list(rows)].tolist()
        mine = [rows[i] for i in balanced(lengths, self.group.size)[self.group.rank]]
        return split_rows(rollout, mine, size, tokens) if mine else []

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
        """Leaves the ranks."""
        self.leave()


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _plus(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if a is None else add(a, b) for a, b in zip(one, other, strict=True))


def _numbers(stats: tuple[Any, ...]) -> list[float]:
    """The fields of all statistics, one after the other."""
    fields = [getattr(s, f.name) for s in stats if s is not None for f in dataclasses.fields(s)]
    numbers: list[float] = torch.stack([f.double() for f in fields if f is not None]).tolist()
    return numbers


def _like(stats: tuple[Any, ...], numbers: Sequence[float]) -> tuple[Any, ...]:
    """Statistics of the kind of ``stats``, out of what ``_numbers`` made of them."""
    rest = iter(numbers)

    def filled(one: Any) -> Any:
        values = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
        return type(one)(
            **{
                name: None if value is None else torch.tensor(next(rest), dtype=torch.float64)
                for name, value in values.items()
            }
        )

    return tuple(None if one is None else filled(one) for one in stats)
