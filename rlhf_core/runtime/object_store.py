"""What a trial keeps in Ray's object store: weights on the way to the rollouts, and the batch. Pure; no Ray."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhf_core.config.trial import TrialConfig
from rlhf_core.models.policy import policy_source
from rlhf_core.models.size import ITEM_BYTES, parameters_of

# A version is read while the next one is written.
VERSIONS = 2
# Tokens, mask, versions, log-probabilities of three models, values, advantages, returns.
BYTES_PER_TOKEN = 48
# A batch lies there as it was sampled, as it is scored and as it is trained on.
STAGES = 3
MARGIN = 1.3


@dataclass(frozen=True)
class StoreNeed:
    """Bytes that one trial keeps in the object store of a node.

    Attributes:
        weights: Of one weight version.
        batch: Of one rollout batch on its way through the roles.
        versions: Weight versions at the same time.
        ahead: Of the batches that are sampled ahead and wait for the learner.
    """

    weights: int
    batch: int
    versions: int = VERSIONS
    ahead: int = 0

    @property
    def total(self) -> float:
        """With all versions and batches, and a margin."""
        return MARGIN * (self.versions * self.weights + self.batch + self.ahead)


def store_need(config: TrialConfig) -> StoreNeed | None:
    """What the trial needs, or None where the size of its policy is not known yet."""
    if config.resources.layout == "fused":
        return StoreNeed(0, 0)
    policy = policy_source(config)
    count = parameters_of(policy) if policy is not None else None
    if count is None:
        return None
    length = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    batch = config.episodes_per_iteration * length * BYTES_PER_TOKEN
    return StoreNeed(
        count * ITEM_BYTES[config.model.dtype],
        STAGES * batch,
        _versions(config),
        config.batches_ahead * batch,
    )


def _versions(config: TrialConfig) -> int:
    """A batch that waits to be sampled holds its version, and the learner has published one more."""
    return max(VERSIONS, 1 + math.ceil(config.batches_ahead / config.sync_interval))
