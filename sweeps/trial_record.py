"""What the driver of a sweep knows of a trial."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from sweeps.decide.scheduling import Exploit, Pause
from sweeps.outcomes import Outcome, State


@dataclass(frozen=True)
class Wish:
    """What a user asked of a trial that runs: ``stop`` or ``pause``, by the command of this id."""

    action: str
    command: str


@dataclass
class TrialRecord:
    """What the driver knows of a trial.

    ``of`` names the finalist whose parameters it tests on another seed; such a trial has no number in the study.
    """

    trial: str
    number: int | None
    params: dict[str, Any]
    of: str | None = None
    state: State = State.QUEUED
    outcome: Outcome | None = None
    reason: str = ""
    iteration: int = 0
    value: float | None = None
    finals: dict[str, float] = field(default_factory=dict)
    retries: int = 0
    times: dict[str, float] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)
    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Seconds of each phase in former stays; the last iterations that were recorded and judged; what a user asked.
    spent: dict[str, float] = field(default_factory=dict)
    reported: int = -1
    judged: int = -1
    wish: Wish | None = None
    # Why the scheduler took it from its place, as long as it has none; whose copy it is, for forks.install.
    held: Pause | Exploit | None = None
    # How often the scheduler wanted that.
    holds: int = 0
    # Save points that its reports told of.
    passed: int = 0
    fork: dict[str, Any] | None = None

    @property
    def began(self) -> float | None:
        """When its processes were placed, in seconds since the epoch."""
        return self.times.get("placed")

    @property
    def purpose(self) -> str:
        """``search``, or ``test`` of a finalist on a fresh seed."""
        return "search" if self.of is None else "test"

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs or waits for a place; a paused one goes on later."""
        return self.state in (State.ENDED, State.INTERRUPTED, State.PAUSED)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of each phase, those of former stays included."""
        times, steps = self.times, ("queued", "placed", "started", "ended")
        names = dict(zip(steps[1:], ("queue", "start", "run"), strict=True))
        spans = {
            names[later]: times[later] - times[earlier]
            for earlier, later in itertools.pairwise(steps)
            if earlier in times and later in times
        }
        own = {**spans, **self.durations}
        return {name: self.spent.get(name, 0.0) + own.get(name, 0.0) for name in self.spent | own}

    def requeue(self, now: float) -> None:
        """Another stay begins; what the last one took is kept."""
        self.spent, self.durations, self.times = self.phases, {}, {"queued": now}
