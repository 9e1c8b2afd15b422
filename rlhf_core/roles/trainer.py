"""What the learner and the critic share: a module under an engine, its ranks, and saving."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.checkpoint import check_fit, load_part, save_part
from rlhf_core.config.trial import TrialConfig
from rlhf_core.engines.base import TrainingEngine, trained
from rlhf_core.engines.build import build_engine
from rlhf_core.engines.passes import Passes
from rlhf_core.models.forward import split_rows
from rlhf_core.ppo.aggregation import Normalizer
from rlhf_core.ranks import Member, Ranks, Seat, balanced
from rlhf_core.store import open_store
from rlhf_core.types import CallContext, Experience, Rollout, UpdateSettings

Loss = Callable[[Experience, Normalizer], tuple[Tensor, tuple[Any, ...]]]


class Trainer(Member):
    """A module under AdamW, on every rank of its role.

    Ranks share the rows of a step; gradients, losses and statistics are those of one rank with all rows, and the
    weights of all ranks stay equal.

    Args:
        role: Name of the role, for messages, files and the group of its ranks.
        model: Trained in place.
        device: Where it lives.
        config: The trial.
    """

    def __init__(
        self, role: str, model: nn.Module, device: torch.device, config: TrialConfig
    ) -> None:
        super().__init__()
        self.role, self.model, self.device, self._config = role, model, device, config
        self.shapes = {name: p.shape for name, p in trained(model).items()}
        self.passes = Passes(config, model, device)
        self._engine: TrainingEngine | None = None
        # Seed, version and number of the optimiser step; the rows of its pass under way.
        self._step = (0, 0, 0)
        self._rows: Sequence[int] = ()

    @property
    def group(self) -> Ranks:
        """The ranks of this role."""
        return self.ranks(self.role)

    @property
    def engine(self) -> TrainingEngine:
        """What trains the model; ranks that sit in a group have made it together."""
        if self._engine is None:
            self._engine = build_engine(self._config, self.role, self.model, lambda: self.group)
        return self._engine

    def join(self, context: CallContext, seat: Seat) -> None:
        """Takes the seat; returns when all ranks have, and can train."""
        super().join(context, seat)
        if seat.group == self.role:
            self._end_engine()
            assert self.engine is not None

    def run(
        self, context: CallContext, experience: Experience, settings: UpdateSettings, loss: Loss
    ) -> tuple[tuple[Any, ...] | None, dict[str, float]]:
        """All optimiser steps of one update.

        Args:
            context: Whose seed and version say what adapters leave out.
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
        with self.passes.learning():
            for index, rows in enumerate(settings.minibatches):
                self._step = (context.seed, context.version or 0, index)
                parts += self._backward(experience, rows, settings, loss)
                norms.append(self.engine.step(settings.optim))
        seconds = [spent for (spent,) in self.group.gather([self.group.take_seconds()])]
        lr = self.engine.optimizer.param_groups[0]["lr"]
        numbers = {"grad_norm": mean(norms), "lr": lr, "allreduce": max(seconds)}
        return self._summed(parts), numbers

    def _backward(
        self, experience: Experience, rows: Sequence[int], settings: UpdateSettings, loss: Loss
    ) -> list[tuple[Any, ...]]:
        """The gradient of one step, summed over ranks; returns the statistics of this rank's rows."""
        counts = Normalizer.of(experience.rollout.response_mask_BT[list(rows)])
        groups, stats = self.parts(experience.rollout, rows, settings), []

        def compute(part: Sequence[int]) -> Tensor:
            self._rows = part or rows[:1]
            batch = experience.select(self._rows).to(self.device)
            with self.passes.typed():
                value, stat = loss(batch, counts)
            if part:
                stats.append(stat)
            return value if part else value * 0

        self.engine.begin()
        with self.group.shared_fate(self.engine.used) as used:
            for index, part in enumerate(groups):
                self.passes.seed(*self._step, self.role, self.group.rank, index)
                self.engine.backward(partial(compute, part), last=index + 1 == len(groups))
        self.engine.reduce(used)
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
        with self.group.shared_fate(), self.passes.typed():
            for rows in groups:
                part = rollout.select(rows or [0]).to(self.device)
                part_BT = self.engine.forward(partial(compute, part))
                if rows:
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
        """This rank's part of ``rows``, in groups as ``split_rows`` makes them.

        Where ranks meet within a pass, all make as many: an empty group is a pass that counts nothing.
        """
        lengths = rollout.lengths_B[list(rows)].tolist()
        shares = [[rows[i] for i in share] for share in balanced(lengths, self.group.size)]
        asked = range(self.group.size) if self.engine.aligned else [self.group.rank]
        groups = {
            r: split_rows(rollout, shares[r], size, tokens) if shares[r] else [] for r in asked
        }
        mine = groups[self.group.rank]
        return mine + [[]] * (max(map(len, groups.values())) - len(mine))

    def save(self, context: CallContext, uri: str, step: int) -> dict[str, Any]:
        """Writes trained weights and optimiser state; returns the entry for the manifest."""
        tensors = self.engine.state()
        if self.group.rank:
            return {}
        return save_part(open_store(uri), step, self.role, tensors)

    def load(self, context: CallContext, uri: str, entry: dict[str, Any]) -> None:
        """Reads them back, in place."""
        tensors = load_part(open_store(uri), entry)
        check_fit(self.shapes, tensors, entry, self.role, "model.")
        self.engine.load_state(tensors)

    def close(self) -> None:
        """Leaves the ranks."""
        self._end_engine()
        self.leave()

    def _end_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None


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
