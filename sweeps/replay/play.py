"""Trials of a table on virtual workers: an event queue in place of a cluster.

Whoever proposes and stops trials is a ``Player``; a sweep's own driver is one (``DriverPlayer``).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rlhf_core.runtime.placement import Node
from sweeps.driver import SweepDriver
from sweeps.load import Loaded
from sweeps.outcomes import Outcome
from sweeps.programs.base import TrialContext
from sweeps.replay.memory import MemoryDirectory, MemoryStore
from sweeps.replay.program import RecordedTrial
from sweeps.tuning.study import Study


@dataclass
class Clock:
    """Virtual time.

    Attributes:
        now: Seconds since the beginning.
    """

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Player(Protocol):
    """Proposes trials, hears what they report, and may stop them."""

    def next(self) -> tuple[str, RecordedTrial] | None:
        """Id and run of a trial that starts now, or None: none before something ends."""
        ...

    def heard(self, trial: str, result: Mapping[str, Any]) -> bool:
        """A result; whether the trial goes on. The last one has ``done``."""
        ...

    def ended(self, trial: str) -> None:
        """The trial is over: it was stopped, or its last result had ``done``."""
        ...


class Step(NamedTuple):
    """One result of a replay.

    Attributes:
        time: Virtual seconds since the beginning.
        took: Seconds that were recorded for it.
        spent: Iterations that all trials together have run, this one included.
        trial: Id of the trial.
        iteration: Its iteration.
        metrics: What it reported.
    """

    time: float
    took: float
    spent: int
    trial: str
    iteration: int
    metrics: Mapping[str, float]


def play(player: Player, clock: Clock, workers: int) -> Iterator[Step]:
    """Plays to the end, one result after the other in the order of their virtual time.

    Args:
        player: Who decides.
        clock: Is set forward.
        workers: Trials that run at the same time.
    """
    order, spent = itertools.count(), 0
    queue: list[tuple[float, int, str, RecordedTrial, Iterator[Any]]] = []
    while True:
        while len(queue) < workers and (begun := player.next()) is not None:
            trial, run = begun
            heapq.heappush(queue, (clock.now + run.seconds, next(order), trial, run, iter(run)))
        if not queue:
            return
        clock.now, _, trial, run, steps = heapq.heappop(queue)
        took, found = run.seconds, next(steps)
        spent += found.iteration > 0
        goes_on = player.heard(trial, _result(run, found))
        yield Step(clock.now, took, spent, trial, found.iteration, found.values)
        if run.is_last or not goes_on:
            player.ended(trial)
        else:
            heapq.heappush(queue, (clock.now + run.seconds, next(order), trial, run, steps))


def _result(run: RecordedTrial, found: Any) -> dict[str, Any]:
    result = {"iteration": found.iteration, **found.values}
    if run.is_last:
        outcome = Outcome.COMPLETED if run.diverged is None else Outcome.DIVERGED
        result |= {"done": True, "outcome": str(outcome), "reason": run.diverged or ""}
    return result


class DriverPlayer:
    """A sweep's driver, called in the order in which Tune's controller calls it."""

    def __init__(self, loaded: Loaded, clock: Clock, workers: int) -> None:
        study = Study(None, loaded.config.name, loaded.config.search, loaded.space, self._check)
        self.loaded = loaded
        nodes = [Node("virtual", float(workers), 0.0, 1.0)]
        self.driver = SweepDriver(loaded, MemoryDirectory(), study, nodes, workers, clock=clock)
        # Trials that the scheduler lets wait go on from where they were.
        self._runs: dict[str, RecordedTrial] = {}

    def _check(self, params: Mapping[str, Any]) -> list[str]:
        return self.loaded.program.check(self.loaded.base, params)

    def next(self) -> tuple[str, RecordedTrial] | None:
        record = self.driver.next_trial()
        if record is None:
            return None
        self.driver.placed(record.trial)
        if record.trial not in self._runs:
            context = TrialContext(record.trial, self.loaded.base, record.params, MemoryStore())
            run = self.loaded.program.start(context)
            assert isinstance(run, RecordedTrial)
            self._runs[record.trial] = run
        return record.trial, self._runs[record.trial]

    def heard(self, trial: str, result: Mapping[str, Any]) -> bool:
        goes_on = self.driver.decide(trial, result)
        self.driver.result(trial, result)
        return goes_on

    def ended(self, trial: str) -> None:
        self.driver.end(trial, Outcome.COMPLETED)
        if trial not in self.driver.paused:
            del self._runs[trial]
