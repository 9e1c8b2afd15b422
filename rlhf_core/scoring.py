"""What the frozen roles say of a batch, asked chunk by chunk, as soon as a chunk is sampled where they are idle.

A chunk is scored by itself, so its numbers do not depend on when it was asked about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlhf_core.config.trial import TrialConfig
from rlhf_core.runtime.base import RoleGroup, gather
from rlhf_core.timing import Watch
from rlhf_core.types import CallContext, Chunk, Rollout, Scores

# Frozen roles with their method and the phase of an iteration.
METHODS = {"reference": ("logprobs", "reference"), "reward": ("scores", "score")}
FROZEN = tuple(METHODS)


@dataclass(frozen=True)
class Pending:
    """Scores and reference log-probabilities on their way, one future for each chunk."""

    scores: Sequence[Future[Scores]]
    reference: Sequence[Future[Tensor]] | None

    def result(self, whole: Rollout) -> tuple[Scores, Tensor | None]:
        """Both for the whole batch; no log-probabilities where there is no reference."""
        parts: list[Scores] = gather(self.scores)
        scores = Scores(
            torch.cat([part.proxy_B for part in parts]),
            _joined([part.heldout_B for part in parts]),
            {name: torch.cat([part.extra[name] for part in parts]) for name in parts[0].extra},
        )
        if self.reference is None:
            return scores, None
        ref_BT = torch.zeros_like(whole.logprobs_BT)
        row = 0
        for part_BT in gather(self.reference):
            size, depth = part_BT.shape
            ref_BT[row : row + size, :depth] = part_BT
            row += size
        return scores, ref_BT


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


class Scoring:
    """Asks the frozen roles about the chunks of one batch.

    Args:
        groups: Role groups of the trial.
        context: Of the calls.
        config: The trial.
        early: Frozen roles that are asked about a chunk when it is sampled; the others once all are.
    """

    def __init__(
        self,
        groups: Mapping[str, RoleGroup],
        context: CallContext,
        config: TrialConfig,
        early: Sequence[str] = (),
    ) -> None:
        self._groups = {role: groups[role] for role in METHODS if role in groups}
        self._context, self._temperature = context, config.rollout.temperature
        self._early = [role for role in self._groups if role in early]
        self._asked: dict[str, dict[int, Future[Any]]] = {role: {} for role in self._groups}
        self._chunks = -(-config.rollout.prompts_per_iteration // config.rollout.chunk_size)

    def sampled(self, index: int, chunk: Chunk, part: Rollout) -> None:
        """Chunk number ``index`` of the batch is sampled: ``part`` is its rollout."""
        for role in self._early:
            self._ask(role, index, chunk, part)

    def finish(self, chunks: Sequence[Chunk], parts: Sequence[Rollout], watch: Watch) -> Pending:
        """Asks what was not asked yet, without waiting; all chunks of the batch are sampled.

        Args:
            chunks: The chunks.
            parts: Their rollouts.
            watch: Times what is still to be answered.
        """
        for role in self._groups:
            for index, (chunk, part) in enumerate(zip(chunks, parts, strict=True)):
                if index not in self._asked[role]:
                    self._ask(role, index, chunk, part)
            watch(METHODS[role][1], self._answers(role, len(chunks)))
        reference = self._answers("reference", len(chunks)) if "reference" in self._groups else None
        return Pending(self._answers("reward", len(chunks)), reference)

    def _ask(self, role: str, index: int, chunk: Chunk, part: Rollout) -> None:
        more = self._temperature if role == "reference" else chunk.prompts
        asked = self._asked[role]
        context = replace(self._context, left=max(0, self._chunks - 1 - len(asked)))
        asked[index] = self._groups[role].turn(index, METHODS[role][0], context, part, more)

    def _answers(self, role: str, count: int) -> list[Future[Any]]:
        return [self._asked[role][index] for index in range(count)]
