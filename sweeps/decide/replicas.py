"""Replicas of services: which were replaced, and which to give up. Decisions without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Answered:
    """Event: a replica said which process it is."""

    replica: str
    process: str


@dataclass(frozen=True)
class Died:
    """Event: Ray says that a replica is gone for good."""

    replica: str
    reason: str


@dataclass(frozen=True)
class Silent:
    """Event: a replica has been asked and has not answered yet."""

    replica: str


@dataclass(frozen=True)
class Tell:
    """Action: record that something happened to a replica.

    Attributes:
        replica: Which.
        event: started, replaced or given_up.
        count: Replacements so far.
        reason: Why, where it was given up.
    """

    replica: str
    event: str
    count: int
    reason: str = ""


@dataclass(frozen=True)
class End:
    """Action: end the replica, so that whoever waits for it fails instead."""

    replica: str


Event = Answered | Died | Silent
Action = Tell | End


@dataclass
class _Replica:
    heard: float
    process: str | None = None
    replaced: int = 0
    over: bool = False


@dataclass
class Replicas:
    """State of all replicas.

    Attributes:
        timeout_s: Longest silence.
    """

    timeout_s: float
    known: dict[str, _Replica] = field(default_factory=dict)


def decide(state: Replicas, event: Event, now: float) -> list[Action]:
    """What to do about a replica; changes ``state``.

    Args:
        state: All replicas.
        event: What was seen.
        now: Seconds on a clock that only goes forward.
    """
    replica = state.known.setdefault(event.replica, _Replica(heard=now))
    if replica.over:
        return []
    if isinstance(event, Answered):
        before, replica.process, replica.heard = replica.process, event.process, now
        if before == event.process:
            return []
        replica.replaced += before is not None
        what = "started" if before is None else "replaced"
        return [Tell(event.replica, what, replica.replaced)]
    if isinstance(event, Died):
        replica.over = True
        return [Tell(event.replica, "given_up", replica.replaced, event.reason)]
    if now - replica.heard <= state.timeout_s:
        return []
    replica.over = True
    reason = f"has not answered for {now - replica.heard:.0f} s (cluster.services.timeout_s)"
    return [Tell(event.replica, "given_up", replica.replaced, reason), End(event.replica)]
