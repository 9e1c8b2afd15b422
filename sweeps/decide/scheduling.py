"""What a scheduler sees and what it may say: decisions without I/O.

The state of a scheduler follows from what it was told, in that order: ``join`` for each trial and ``decide`` for
each report. Who tells it the recorded history again has the same scheduler.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Protocol

# What rungs and intervals count, and the metric that tells it; iterations are counted by the trial itself.
RESOURCES: dict[str, str | None] = {
    "iterations": None,
    "episodes": "cost/episodes",
    "tokens": "cost/tokens",
    "gpu_seconds": "cost/gpu_seconds",
}


@dataclass(frozen=True)
class Report:
    """What a trial reported, as far as a scheduler looks at it.

    Attributes:
        trial: Its id.
        iteration: Iterations done.
        amount: Resource used so far, in the scheduler's unit; None where the trial did not tell.
        value: The metric, signed so that larger is better; None where it was not measured.
    """

    trial: str
    iteration: int
    amount: float | None
    value: float | None


@dataclass(frozen=True)
class GoOn:
    """The trial goes on."""


@dataclass(frozen=True)
class Stop:
    """The trial is behind the others: it ends as ``stopped``."""

    reason: str


@dataclass(frozen=True)
class Pause:
    """The trial gives up its place; ``release`` says when it gets one again."""

    reason: str


@dataclass(frozen=True)
class Exploit:
    """The trial goes on from a copy of another one's checkpoint, with other parameters.

    Attributes:
        source: The trial it is copied from.
        step: Iteration of the checkpoint.
        passed: Save points passed with it.
        params: All parameters from now on.
    """

    source: str
    step: int
    passed: int
    params: Mapping[str, Any]
    reason: str


Action = GoOn | Stop | Pause | Exploit


@dataclass(frozen=True)
class SavePoints:
    """Amounts of the resource at which a trial may be paused or copied, so that it saves a checkpoint there.

    Attributes:
        resource: A key of ``RESOURCES``.
        first: The first point.
        factor: From one point to the next, times this; None: all ``first`` apart.
        metric: Metric without which nothing is decided; a point is passed with the first report that has it.
    """

    resource: str
    first: int
    factor: int | None
    metric: str

    def passed(self, amount: float) -> int:
        """How many points lie at or before ``amount``."""
        if amount < self.first:
            return 0
        if self.factor is None:
            return int(amount // self.first)
        count, point = 0, self.first
        while point <= amount:
            count, point = count + 1, point * self.factor
        return count

    def amount(self, iteration: int, metrics: Mapping[str, float]) -> float | None:
        """The resource used, out of a report."""
        name = RESOURCES[self.resource]
        return float(iteration) if name is None else metrics.get(name)

    def due(self, iteration: int, metrics: Mapping[str, float], before: int) -> int | None:
        """The points passed with this report, where it passes one beyond the ``before`` of earlier ones."""
        amount = self.amount(iteration, metrics)
        if amount is None or self.metric not in metrics:
            return None
        passed = self.passed(amount)
        return passed if passed > before else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, from which ``SavePoints(**values)`` makes it again."""
        return dict(vars(self))


class Scheduler(Protocol):
    """Decides from each report how its trial goes on."""

    def join(self, trial: str, params: Mapping[str, Any]) -> None:
        """A trial begins; told once, in the order in which trials begin."""
        ...

    def decide(self, report: Report) -> Action:
        """What happens to the trial; a report that was told before changes nothing."""
        ...

    def forget(self, trial: str) -> None:
        """The trial went wrong by itself: it is nobody's measure any more."""
        ...

    def release(self, paused: Sequence[str], fresh: int, closed: bool) -> str | None:
        """A paused trial that is to go on now.

        Args:
            paused: Those that wait, the one that came least far first.
            fresh: Trials that have not begun.
            closed: Whether nothing runs and none is left to begin, so that nothing will change by itself.
        """
        ...

    def save_points(self, trial: str) -> SavePoints | None:
        """Where the trial is to save; None where it is never paused."""
        ...


@dataclass
class NoScheduler:
    """Every trial runs to its end."""

    def join(self, trial: str, params: Mapping[str, Any]) -> None:
        return None

    def decide(self, report: Report) -> Action:
        return GoOn()

    def forget(self, trial: str) -> None:
        return None

    def release(self, paused: Sequence[str], fresh: int, closed: bool) -> str | None:
        return None

    def save_points(self, trial: str) -> SavePoints | None:
        return None


@dataclass
class Series:
    """Values of a trial by iteration; one that is reported again takes the place of the first and of all later."""

    iterations: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, iteration: int, value: float) -> None:
        while self.iterations and self.iterations[-1] >= iteration:
            self.iterations.pop()
            self.values.pop()
        self.iterations.append(iteration)
        self.values.append(value)

    def until(self, iteration: int) -> Series:
        """A copy of what it holds up to ``iteration``."""
        count = bisect_right(self.iterations, iteration)
        return Series(self.iterations[:count], self.values[:count])


@dataclass
class Smoothed:
    """A scheduler that sees the mean of a trial's last ``window`` values in the place of each.

    Attributes:
        inner: The scheduler.
        window: Reports with a value.
    """

    inner: Scheduler
    window: int
    _seen: dict[str, Series] = field(default_factory=dict)

    def join(self, trial: str, params: Mapping[str, Any]) -> None:
        self.inner.join(trial, params)

    def decide(self, report: Report) -> Action:
        if report.value is None:
            return self.inner.decide(report)
        series = self._seen.setdefault(report.trial, Series())
        series.add(report.iteration, report.value)
        mean = fmean(series.values[-self.window :])
        action = self.inner.decide(replace(report, value=mean))
        if isinstance(action, Exploit):
            # What led to the copy is its past now.
            self._seen[report.trial] = self._seen[action.source].until(action.step)
        return action

    def forget(self, trial: str) -> None:
        self.inner.forget(trial)

    def release(self, paused: Sequence[str], fresh: int, closed: bool) -> str | None:
        return self.inner.release(paused, fresh, closed)

    def save_points(self, trial: str) -> SavePoints | None:
        return self.inner.save_points(trial)
