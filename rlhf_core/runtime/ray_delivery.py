"""Weights through Ray's object store: one copy in, one out for each rollout worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_core.runtime.ray_actor import get
from rlhf_core.types import CallContext


def deliver(context: CallContext, learner: Any, rollouts: Sequence[Any]) -> dict[str, float]:
    """Brings the weights of the ``learner`` actor to the ``rollouts`` actors."""
    header, refs, size = get(learner.publish.remote(context))
    # References travel inside a list: Ray would resolve bare ones on the way.
    get([actor.receive.remote(context, header, refs) for actor in rollouts])
    return {"bytes": size}
