"""Population based training: the worst go on from copies of the best, with other parameters. Without I/O.

Jaderberg et al. 2017 (https://arxiv.org/abs/1711.09846). Scores are compared at the same save point, so that a
trial that started later is not taken for a bad one, nor one that is always the first to get there for a good one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlhf_core.seeding import derive
from search_spaces import Choice, Int
from sweeps.decide.scheduling import Action, Exploit, GoOn, Pause, Report, SavePoints

# Draws until a configuration keeps every rule, and the part of the trials that a comparison needs.
DRAWS, MOST = 32, 0.75


@dataclass
class Member:
    """What is known of a trial.

    Attributes:
        params: Its parameters now.
        passed: Save points it has passed.
        step: Iteration of its last save point; 0 before the first.
        amount: Resource used there.
        scores: ``{save points passed: value}``, those of its source before it was copied.
        judged: The last save point at which it was compared with others.
        alive: Whether it may be copied.
    """

    params: dict[str, Any]
    passed: int = 0
    step: int = 0
    amount: float = 0.0
    scores: dict[int, float] = field(default_factory=dict)
    judged: int = 0
    alive: bool = True


class Explorer(Protocol):
    """Proposes parameters for a trial that goes on from a copy."""

    def learn(self, trial: str, member: Member) -> None:
        """The member has passed a save point."""
        ...

    def propose(self, trial: str, source: Member, draw: random.Random) -> dict[str, Any]:
        """Values of the parameters that change, close to or better than those of ``source``."""
        ...


@dataclass
class Perturb:
    """Each parameter is drawn anew with probability ``resample``, or moved up or down.

    Attributes:
        domains: ``{dotted key: domain}`` of what changes.
        factor: A number becomes ``1 + factor`` or ``1 - factor`` times itself; a listed one its neighbour.
        resample: Probability of a new draw from the domain.
    """

    domains: Mapping[str, Any]
    factor: float
    resample: float

    def learn(self, trial: str, member: Member) -> None:
        """Moves do not depend on the past."""

    def propose(self, trial: str, source: Member, draw: random.Random) -> dict[str, Any]:
        return {
            key: sample(domain, draw)
            if draw.random() < self.resample
            else self._moved(domain, source.params[key], draw)
            for key, domain in self.domains.items()
            if key in source.params
        }

    def _moved(self, domain: Any, value: Any, draw: random.Random) -> Any:
        up = draw.random() < 0.5
        if isinstance(domain, Choice):
            place = domain.values.index(value) + (1 if up else -1)
            return domain.values[min(max(place, 0), len(domain.values) - 1)]
        moved = value * (1 + self.factor if up else 1 - self.factor)
        if isinstance(domain, Int) and round(moved) == value:
            moved = value + (domain.step if up else -domain.step)
        return fitted(domain, moved)


def sample(domain: Any, draw: random.Random) -> Any:
    """A value of a domain, evenly in its own scale."""
    if isinstance(domain, Choice):
        return draw.choice(domain.values)
    return fitted(domain, value_at(domain, draw.random()))


def value_at(domain: Any, part: float) -> float:
    """The number that lies at ``part`` of the way from the low end of the domain to the high one, in its scale."""
    if domain.log:
        low, high = math.log(domain.low), math.log(domain.high)
        return math.exp(low + part * (high - low))
    return float(domain.low + part * (domain.high - domain.low))


def part_of(domain: Any, value: float) -> float:
    """Where a number lies in its domain: 0 at the low end, 1 at the high one."""
    if domain.log:
        return math.log(value / domain.low) / math.log(domain.high / domain.low)
    return float((value - domain.low) / (domain.high - domain.low))


def fitted(domain: Any, value: float) -> float | int:
    """The nearest number of the domain."""
    inside = min(max(value, domain.low), domain.high)
    step = domain.step
    if step is not None:
        inside = min(domain.low + round((inside - domain.low) / step) * step, domain.high)
    return round(inside) if isinstance(domain, Int) else float(inside)


@dataclass
class Population:
    """PBT, and with another explorer PB2.

    Attributes:
        points: Where trials are compared and copied.
        explorer: Proposes the parameters of a copy.
        quantile: Part of the trials that is bad, and part that is copied; at most 0.5.
        seed: Of all draws; each follows from it, the trial and the save point.
        horizon: Iterations of a full trial, or None.
        size: Trials of the population.
        taking_turns: Whether there are more trials than places, so that each gives up its own at a save point.
        valid: Whether a configuration keeps every rule.
    """

    points: SavePoints
    explorer: Explorer
    quantile: float
    seed: int
    horizon: int | None
    size: int
    taking_turns: bool
    valid: Callable[[Mapping[str, Any]], bool] = field(compare=False)
    name: str = "pbt"
    _members: dict[str, Member] = field(default_factory=dict)
    # What trials themselves had at a save point: a copy does not change how the others compare there.
    _measured: dict[int, dict[str, float]] = field(default_factory=dict)

    def join(self, trial: str, params: Mapping[str, Any]) -> None:
        self._members.setdefault(trial, Member(dict(params)))

    def decide(self, report: Report) -> Action:
        member = self._members[report.trial]
        over = self.horizon is not None and report.iteration >= self.horizon
        if report.value is None or report.amount is None or over:
            return GoOn()
        passed = self.points.passed(report.amount)
        if passed <= member.passed:
            return GoOn()
        member.passed, member.step, member.amount = passed, report.iteration, report.amount
        member.scores[passed] = report.value
        self._measured.setdefault(passed, {})[report.trial] = report.value
        self.explorer.learn(report.trial, member)
        source = self._source(report.trial)
        if source is not None:
            return self._exploit(report.trial, source)
        if self.taking_turns:
            return Pause(f"{self.name}: gives way at {self.points.resource} {report.amount:g}")
        return GoOn()

    def _source(self, trial: str) -> str | None:
        """Whose checkpoint the trial is to take, or None where it is not among the worst."""
        member = self._members[trial]
        point = self._comparable(member.passed)
        if point <= member.judged:
            return None
        member.judged = point
        scores = self._measured[point]
        ranked = sorted(scores, key=scores.__getitem__)
        count = min(max(1, int(len(ranked) * self.quantile)), len(ranked) // 2)
        if trial not in ranked[:count]:
            return None
        best = [t for t in ranked[-count:] if self._can_be_copied(t)]
        return self._draw(trial).choice(best) if best else None

    def _comparable(self, passed: int) -> int:
        """The last save point up to ``passed`` that most trials have passed; 0 where there is none."""
        known = sum(member.alive and bool(member.scores) for member in self._members.values())
        # Of two or three nobody knows yet whether they are good or bad.
        least = min(self.size, math.ceil(1 / self.quantile))
        enough = max(least, math.ceil(MOST * known))
        there = (p for p in range(passed, 0, -1) if len(self._measured.get(p, {})) >= enough)
        return next(there, 0)

    def _can_be_copied(self, trial: str) -> bool:
        member = self._members[trial]
        return member.alive and (self.horizon is None or member.step < self.horizon)

    def _draw(self, trial: str, *position: int | str) -> random.Random:
        member = self._members[trial]
        return random.Random(derive(self.seed, self.name, trial, member.passed, *position))

    def _exploit(self, trial: str, source: str) -> Exploit:
        member, other = self._members[trial], self._members[source]
        params = self._explored(trial, other)
        reason = (
            f"{self.name}: among the worst at {self.points.resource} {member.amount:g} with "
            f"{member.scores[member.passed]:.4g}; goes on from {source}, at iteration {other.step} with "
            f"{other.scores[other.passed]:.4g}"
        )
        self._members[trial] = Member(
            params, other.passed, other.step, other.amount, dict(other.scores), member.judged
        )
        return Exploit(source, other.step, other.passed, params, reason)

    def _explored(self, trial: str, source: Member) -> dict[str, Any]:
        for attempt in range(DRAWS):
            moved = self.explorer.propose(trial, source, self._draw(trial, "move", attempt))
            params = {**source.params, **moved}
            if self.valid(params):
                return params
        return dict(source.params)

    def forget(self, trial: str) -> None:
        self._members[trial].alive = False

    def release(self, paused: Sequence[str], fresh: int, closed: bool) -> str | None:
        # All begin before any goes on.
        return paused[0] if paused and not fresh else None

    def save_points(self, trial: str) -> SavePoints | None:
        return self.points
