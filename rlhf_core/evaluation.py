"""Sampling and scoring a set of prompts with the current weights, for evaluation and the last judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_core.config.trial import TrialConfig
from rlhf_core.diversity import distinct_share
from rlhf_core.experience import batch_metrics, standard_error
from rlhf_core.runtime.base import RoleGroup, gather
from rlhf_core.timing import Watch
from rlhf_core.types import CallContext, Chunk, Prompt, Rollout, Scores, concat_rollouts

Groups = Mapping[str, RoleGroup]


@dataclass(frozen=True)
class Pending:
    """Scores and reference log-probabilities on their way, one future for each chunk."""

    scores: list[Future[Scores]]
    reference: list[Future[Tensor]] | None

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


@dataclass(frozen=True)
class Sample:
    """Chunks and their rollouts.

    Attributes:
        chunks: Each with its prompts.
        parts: The responses to each chunk.
        positions: Where the prompts stand in the stream of training prompts; empty where they do not come from it,
            or the number of the batch says it.
    """

    chunks: Sequence[Chunk]
    parts: Sequence[Rollout]
    positions: Sequence[int] = ()

    @property
    def prompts(self) -> list[Prompt]:
        """The prompt of every row."""
        return [prompt for chunk in self.chunks for prompt in chunk.prompts]

    def rollout(self, pad_id: int) -> Rollout:
        """All rows as one batch."""
        return concat_rollouts(self.parts, pad_id)

    def score(
        self, groups: Groups, context: CallContext, config: TrialConfig, watch: Watch
    ) -> Pending:
        """Asks the frozen roles about every chunk, without waiting."""
        temperature = config.rollout.temperature
        reference = [(context, (part, temperature)) for part in self.parts]
        reward = [
            (context, (part, chunk.prompts))
            for chunk, part in zip(self.chunks, self.parts, strict=True)
        ]
        asked = None
        if "reference" in groups:
            asked = watch("reference", groups["reference"].scatter("logprobs", reference))
        return Pending(
            reference=asked,
            scores=watch("score", groups["reward"].scatter("scores", reward)),
        )


@dataclass(frozen=True)
class Scored:
    """Responses with their scores."""

    prompts: Sequence[Prompt]
    rollout: Rollout
    scores: Scores
    ref_logprobs_BT: Tensor | None


def sample_and_score(
    groups: Groups,
    chunks: Sequence[Chunk],
    context: CallContext,
    config: TrialConfig,
    pad_id: int,
) -> Scored:
    """Responses of the learner's current weights, scored."""
    calls = [(context, (chunk,)) for chunk in chunks]
    sample = Sample(chunks, groups["learner"].map("generate", calls))
    whole = sample.rollout(pad_id)
    scores, ref_BT = sample.score(groups, context, config, lambda _name, futures: futures).result(
        whole
    )
    return Scored(sample.prompts, whole, scores, ref_BT)


def summarise(config: TrialConfig, scored: Scored) -> dict[str, float]:
    """Means, and ``distinct_N`` of all responses.

    Returns:
        ``proxy, weighted, length, distinct_1, distinct_2``, and where measured ``kl_response, heldout,
        heldout_stderr, component/NAME``.
    """
    batch = batch_metrics(config, scored.rollout, scored.scores, scored.ref_logprobs_BT)
    summary = {
        "proxy": batch["reward/proxy"],
        "weighted": batch["reward/weighted"],
        "length": batch["rollout/length"],
        "distinct_1": distinct_share(scored.rollout, 1),
        "distinct_2": distinct_share(scored.rollout, 2),
    }
    if "kl/response" in batch:
        summary["kl_response"] = batch["kl/response"]
    if scored.scores.heldout_B is not None:
        summary["heldout"] = batch["reward/heldout"]
        summary["heldout_stderr"] = standard_error(scored.scores.heldout_B)
    for name in scored.scores.extra:
        summary[f"component/{name}"] = batch[f"reward/component/{name}"]
    return summary
