"""Successive halving: the best part of the trials goes on at each rung, others stop or wait."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeps.decide.scheduling import Action, GoOn, Pause, Report, SavePoints, Stop


@dataclass
class Asha:
    """Asynchronous successive halving (Li et al. 2020, https://arxiv.org/abs/1810.05934).

    At the rungs ``grace * reduction^k`` a trial goes on if it is among the best ``1 / reduction`` of those that
    have reached the rung so far. Another one stops, or, with ``promote``, waits: it goes on once so many have
    reached the rung after it that it is among the best part.

    Attributes:
        points: The rungs.
        horizon: Resource of a full trial, or None; there is no rung at or after it.
        promote: Whether trials wait at a rung instead of being stopped.
    """

    points: SavePoints
    horizon: int | None
    promote: bool = False
    _rungs: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def reduction(self) -> int:
        """One in this many goes on."""
        return self.points.factor or 1

    def rung(self, amount: float) -> int | None:
        """The last rung at or before ``amount``, by its number; None before the first."""
        passed = self.points.passed(amount)
        while passed and self.horizon is not None and self.at(passed - 1) >= self.horizon:
            passed -= 1
        return passed - 1 if passed else None

    def at(self, rung: int) -> int:
        """Resource of a rung."""
        return self.points.first * self.reduction**rung

    def join(self, trial: str, params: Mapping[str, Any]) -> None:
        """Every trial is like the others."""

    def decide(self, report: Report) -> Action:
        if report.value is None or report.amount is None:
            return GoOn()
        rung = self.rung(report.amount)
        if rung is None or report.trial in self._rungs[rung]:
            return GoOn()
        reached, value = self._rungs[rung], report.value
        reached[report.trial] = value
        ranked = sorted(reached.values(), reverse=True)
        last_in = ranked[max(0, len(ranked) // self.reduction - 1)]
        enough = len(ranked) >= self.reduction
        where = f"{self.points.resource} {self.at(rung):g}"
        if enough and value >= last_in:
            return GoOn()
        if self.promote:
            return Pause(
                f"asha: {value:.4g} waits at {where} for being among the best 1/{self.reduction}"
            )
        if not enough:
            return GoOn()
        return Stop(
            f"asha: {value:.4g} at iteration {report.iteration} is below {last_in:.4g}, the best "
            f"1/{self.reduction} of {len(ranked)} trials at {where}"
        )

    def forget(self, trial: str) -> None:
        # It has reached its rungs, as the last of them.
        for reached in self._rungs.values():
            if trial in reached:
                reached[trial] = -math.inf

    def release(self, paused: Sequence[str], fresh: int, closed: bool) -> str | None:
        """The best of the highest rung whose best part has a trial that waits."""
        for rung in sorted(self._rungs, reverse=True):
            reached = self._rungs[rung]
            beyond = {t for higher, found in self._rungs.items() if higher > rung for t in found}
            count = len(reached) // self.reduction
            # With no more trials to come at least one is carried to its end.
            best = sorted(reached, key=reached.__getitem__, reverse=True)[: count or int(closed)]
            waiting = [t for t in best if t in paused and t not in beyond]
            if waiting:
                return waiting[0]
        return None

    def save_points(self, trial: str) -> SavePoints | None:
        return self.points if self.promote else None


@dataclass
class HyperBand:
    """Asynchronous HyperBand (Li et al. 2018, https://arxiv.org/abs/1603.06560): halving with several graces.

    Bracket ``b`` begins to cut at the rung ``b`` of the first one. A trial gets the bracket that is furthest
    behind its share; shares are those of HyperBand, by which every bracket has the same budget.

    Attributes:
        brackets: One for each grace, the most aggressive first.
    """

    brackets: tuple[Asha, ...]
    _bracket: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, points: SavePoints, horizon: int | None, count: int, promote: bool = False
    ) -> HyperBand:
        """``count`` brackets, the first one with the rungs of ``points``."""
        factor = points.factor or 1
        moved = [{**points.as_dict(), "first": points.first * factor**b} for b in range(count)]
        return cls(tuple(Asha(SavePoints(**values), horizon, promote) for values in moved))

    def shares(self) -> list[float]:
        """Part of the trials that each bracket gets."""
        most, factor = len(self.brackets), self.brackets[0].reduction
        sizes = [factor ** (most - 1 - b) * most / (most - b) for b in range(most)]
        return [size / sum(sizes) for size in sizes]

    def join(self, trial: str, params: Mapping[str, Any]) -> None:
        if trial in self._bracket:
            return
        had = [list(self._bracket.values()).count(b) for b in range(len(self.brackets))]
        due = [share * (sum(had) + 1) - has for share, has in zip(self.shares(), had, strict=True)]
        self._bracket[trial] = due.index(max(due))

    def of_trial(self, trial: str) -> Asha:
        return self.brackets[self._bracket[trial]]

    def decide(self, report: Report) -> Action:
        return self.of_trial(report.trial).decide(report)

    def forget(self, trial: str) -> None:
        self.of_trial(trial).forget(trial)

    def release(self, paused: Sequence[str], fresh: int, closed: bool) -> str | None:
        found = (bracket.release(paused, fresh, closed) for bracket in self.brackets)
        return next(filter(None, found), None)

    def save_points(self, trial: str) -> SavePoints | None:
        return self.of_trial(trial).save_points(trial)
