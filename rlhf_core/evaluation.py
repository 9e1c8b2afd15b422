"""Sampling and scoring a set of prompts with the current weights, for evaluation and the last judgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rlhf_core.config.trial import TrialConfig
from rlhf_core.diversity import distinct_share
from rlhf_core.experience import batch_metrics, standard_error
from rlhf_core.runtime.base import RoleGroup
from rlhf_core.scoring import Scoring
from rlhf_core.types import CallContext, Chunk, Prompt, Rollout, Scores, concat_rollouts


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


@dataclass(frozen=True)
class Scored:
    """Responses with their scores."""

    prompts: Sequence[Prompt]
    rollout: Rollout
    scores: Scores
    ref_logprobs_BT: Tensor | None


def sample_and_score(
    learner: RoleGroup, chunks: Sequence[Chunk], context: CallContext, scoring: Scoring, pad_id: int
) -> Scored:
    """Responses of the learner's current weights, scored."""

    def sampled(index: int, part: Rollout) -> None:
        scoring.sampled(index, chunks[index], part)

    calls = [(context, (chunk,)) for chunk in chunks]
    sample = Sample(chunks, learner.map("generate", calls, finished=sampled))
    whole = sample.rollout(pad_id)
    asked = scoring.finish(chunks, sample.parts, lambda _name, futures: futures)
    scores, ref_BT = asked.result(whole)
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
