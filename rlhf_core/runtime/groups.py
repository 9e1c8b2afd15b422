"""Seats workers in process groups: the ranks of a role, and learner with rollouts for weights by broadcast."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.config.trial import SyncConfig, TrialConfig
from rlhf_core.models.weights import GROUP
from rlhf_core.ranks import Seat
from rlhf_core.runtime.base import RoleGroup, Runtime, Worker, gather
from rlhf_core.runtime.placement import PlacementPlan
from rlhf_core.types import CallContext

Members = Sequence[tuple[Worker, str]]
CONTEXT = CallContext("runtime")


def connect_trial(runtime: Runtime, config: TrialConfig, plan: PlacementPlan) -> None:
    """Seats the ranks of every trained role and, for transport ``collective``, learner and rollouts."""
    for role in ("learner", "critic"):
        if len(plan.group(role)) > 1:
            connect(role, [(worker, role) for worker in runtime.group(role).workers], config.sync)
    if config.sync.transport == "collective" and plan.group("learner") and plan.group("rollout"):
        connect_weights(runtime, config)


def connect_weights(runtime: Runtime, config: TrialConfig) -> None:
    """Seats learner and rollouts in the group over which weights are broadcast."""
    learner = runtime.group("learner").workers[0]
    apart = [worker for worker in runtime.group("rollout").workers if worker is not learner]
    if apart:
        connect(
            GROUP, [(learner, "learner"), *((worker, "rollout") for worker in apart)], config.sync
        )


def connect(name: str, members: Members, sync: SyncConfig) -> None:
    """Seats ``(worker, role)`` in group ``name``; the first keeps the store.

    Raises:
        RankError: If they do not meet in time.
    """
    # Models are loaded before anyone waits for another.
    devices = gather([worker.call(role, "where", CONTEXT) for worker, role in members])
    apart = "cpu" not in devices and len(set(devices)) == len(devices)
    first, first_role = members[0]
    store = first.call(first_role, "listen", CONTEXT, name, first.address, sync.timeout_s).result()
    seats = [
        Seat(
            group=name,
            rank=rank,
            size=len(members),
            store=store,
            address=worker.address,
            backend="nccl" if apart else "gloo",
            timeout_s=sync.timeout_s,
            bucket_bytes=sync.bucket_bytes,
        )
        for rank, (worker, _) in enumerate(members)
    ]
    gather(
        worker.call(role, "join", CONTEXT, seat)
        for (worker, role), seat in zip(members, seats, strict=True)
    )


def broadcast_weights(learner: RoleGroup, rollouts: RoleGroup, context: CallContext) -> int:
    """Sends the learner's weights to all rollout workers over their group; returns the bytes each was sent."""
    source = learner.workers[0]
    apart = [worker for worker in rollouts.workers if worker is not source]
    calls = []
    if apart:
        calls = [
            source.call("learner", "send_weights", context),
            *(worker.call("rollout", "receive_weights", context) for worker in apart),
        ]
    if len(apart) < len(rollouts.workers):
        calls.append(source.hand_over(context))
    return int(gather(calls)[0])
