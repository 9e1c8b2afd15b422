"""How a trial ends, and what the searcher is told about it."""

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
    PLACED = "placed"
    STARTED = "started"
    RETRIED = "retried"
    INTERRUPTED = "interrupted"
    ENDED = "ended"


# What TPE, random and QMC learn. A violated constraint makes TPE avoid the region, which a failed trial does not.
TELL = {
    Outcome.COMPLETED: "value",
    Outcome.STOPPED: "pruned",
    Outcome.DIVERGED: "pruned and constraint violated",
    Outcome.INFEASIBLE: "pruned and constraint violated",
    Outcome.FAILED: "fail",
    Outcome.LOST: "fail",
}
