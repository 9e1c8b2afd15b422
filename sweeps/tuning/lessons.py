"""What a study is told of each outcome, by sampler (docs/search.md has the reasons)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from sweeps.config import Constraint, Direction
from sweeps.outcomes import Outcome
from sweeps.tuning.designs import GridSampler, SobolSampler

# Constraint that a trial breaks by how it ended.
OUTCOME = "outcome"


class Lesson(Enum):
    """One way to tell an outcome."""

    VALUE = auto()
    """Complete, with its values."""
    PRUNED = auto()
    """Pruned, with its curve."""
    BROKEN = auto()
    """Pruned, and its constraint ``outcome`` violated."""
    BEHIND = auto()
    """Complete, with its last values where they are worse than those of all completed trials, else just below."""
    WORST = auto()
    """Complete, with values just below all that the study was told."""
    NOTHING = auto()
    """Failed: no sampler looks at it."""


Table = Mapping[Outcome, Lesson]

# TPE puts completed trials before pruned ones, orders those by how far they came, and puts violated ones last.
# Random, Sobol and grid learn nothing; their studies read best this way.
BY_STATE: Table = {
    Outcome.COMPLETED: Lesson.VALUE,
    Outcome.STOPPED: Lesson.PRUNED,
    Outcome.DIVERGED: Lesson.BROKEN,
    Outcome.INFEASIBLE: Lesson.BROKEN,
    Outcome.FAILED: Lesson.NOTHING,
    Outcome.LOST: Lesson.NOTHING,
}
# GP, CMA-ES and NSGA pass over pruned trials: whatever is to teach them has to be complete and have values.
BY_VALUE: Table = {
    **BY_STATE,
    Outcome.STOPPED: Lesson.BEHIND,
    Outcome.DIVERGED: Lesson.WORST,
    Outcome.INFEASIBLE: Lesson.WORST,
}
LESSONS: dict[str, Table] = {
    "tpe": BY_STATE,
    "random": BY_STATE,
    "qmc": BY_STATE,
    "grid": BY_STATE,
    "gp": BY_VALUE,
    "cmaes": BY_VALUE,
    "nsga2": BY_VALUE,
    "nsga3": BY_VALUE,
}
_BY_STATE = (
    optuna.samplers.TPESampler,
    optuna.samplers.RandomSampler,
    optuna.samplers.QMCSampler,
    SobolSampler,
    GridSampler,
)


def table_of(name: str, sampler: BaseSampler) -> Table:
    """The table of a sampler; one that is not known is told values, which every sampler reads.

    Args:
        name: Its name or import path.
        sampler: The sampler itself.
    """
    return LESSONS.get(name, BY_STATE if isinstance(sampler, _BY_STATE) else BY_VALUE)


def reads_constraints(sampler: BaseSampler) -> bool:
    """Whether a constraint that a trial breaks teaches the sampler anything."""
    return not isinstance(sampler, optuna.samplers.CmaEsSampler)


class Told(NamedTuple):
    """What the study gets of a trial that ended.

    Attributes:
        state: Its state.
        values: One for each objective where the state is complete, else None.
        constraints: How far each is broken; at most 0 where it is kept.
        imputed: Whether the values are not what the trial measured.
    """

    state: TrialState
    values: list[float] | None
    constraints: dict[str, float]
    imputed: bool = False


@dataclass(frozen=True)
class Teacher:
    """Turns outcomes into what a study is told.

    Attributes:
        table: A lesson for each outcome.
        goals: Objectives with their directions.
        constraints: Rules on last values.
        constrained: Whether the sampler reads constraints; one that does not is told of a broken one by values.
    """

    table: Table
    goals: Mapping[str, Direction]
    constraints: Sequence[Constraint]
    constrained: bool

    def tell(
        self,
        outcome: Outcome,
        finals: Mapping[str, float],
        told: Callable[[], Sequence[FrozenTrial]],
    ) -> Told:
        """What the study gets.

        Args:
            outcome: How the trial ended.
            finals: Last value of each metric.
            told: Gives the complete trials of the study, so that what is told follows from it and the trial alone;
                most lessons need none of them.
        """
        values = [finals.get(metric, math.nan) for metric in self.goals]
        broken = self._violations(outcome, finals)
        lesson = self.table[outcome]
        if lesson is Lesson.VALUE and not all(map(math.isfinite, values)):
            lesson = Lesson.NOTHING
        if lesson is Lesson.VALUE and not self.constrained and any(v > 0 for v in broken.values()):
            lesson = Lesson.WORST
        shown = broken if self.constrained else {}
        if lesson is Lesson.VALUE:
            return Told(TrialState.COMPLETE, values, shown)
        if lesson in (Lesson.PRUNED, Lesson.BROKEN):
            mark = {OUTCOME: 1.0} if lesson is Lesson.BROKEN else {}
            return Told(TrialState.PRUNED, None, {**shown, **mark})
        if lesson is Lesson.BEHIND:
            completed = [t for t in told() if t.user_attrs.get("outcome") == Outcome.COMPLETED]
            imputed: list[float] | None = [
                self._worse(value, bound, goal)
                for value, bound, goal in zip(
                    values, self._below(completed), self.goals.values(), strict=True
                )
            ]
        else:
            imputed = self._below(told()) if lesson is Lesson.WORST else None
        if imputed is None or not all(map(math.isfinite, imputed)):
            return Told(TrialState.FAIL, None, shown)
        return Told(TrialState.COMPLETE, imputed, shown, imputed != values)

    def _violations(self, outcome: Outcome, finals: Mapping[str, float]) -> dict[str, float]:
        """Every trial has every constraint, as the GP asks for.

        One whose metric is not a number is broken by a completed trial; of one that ended early it is not known.
        """
        found = {}
        for rule in self.constraints:
            value = finals.get(rule.metric, math.nan)
            unknown = 1.0 if outcome is Outcome.COMPLETED else 0.0
            found[str(rule.metric)] = rule.violation(value) if math.isfinite(value) else unknown
        return found

    def _below(self, told: Sequence[FrozenTrial]) -> list[float]:
        """For each objective the next number that is worse than all told ones; NaN where there are none."""
        columns = [list(column) for column in zip(*(t.values for t in told), strict=True)]
        return [
            math.nan
            if not columns
            else math.nextafter(min(columns[i]), -math.inf)
            if goal == "maximize"
            else math.nextafter(max(columns[i]), math.inf)
            for i, goal in enumerate(self.goals.values())
        ]

    @staticmethod
    def _worse(value: float, bound: float, goal: Direction) -> float:
        known = [number for number in (value, bound) if math.isfinite(number)]
        if not known:
            return math.nan
        return min(known) if goal == "maximize" else max(known)
