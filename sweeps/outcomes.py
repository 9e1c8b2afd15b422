"""How a trial ends, and the states it goes through."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """How a trial ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    DIVERGED = "diverged"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    LOST = "lost"


class State(StrEnum):
    """States of a trial in the ledger."""

    QUEUED = "queued"
    WAITING = "waiting"
    PLACED = "placed"
    STARTED = "started"
    RETRIED = "retried"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    ENDED = "ended"
