"""How a trial ends, and what the searcher is told about it."""

from __future__ import annotations

from enum import StrEnum

from optuna.trial import TrialState


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


# Optuna state and whether a constraint counts as violated, for TPE, random and QMC. They avoid a violated region,
# which a failed trial does not mark.
TELL: dict[Outcome, tuple[TrialState, bool]] = {
    Outcome.COMPLETED: (TrialState.COMPLETE, False),
    Outcome.STOPPED: (TrialState.PRUNED, False),
    Outcome.DIVERGED: (TrialState.PRUNED, True),
    Outcome.INFEASIBLE: (TrialState.PRUNED, True),
    Outcome.FAILED: (TrialState.FAIL, False),
    Outcome.LOST: (TrialState.FAIL, False),
}
