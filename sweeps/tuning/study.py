"""The Optuna study of a sweep: asked for parameters, told how each trial ended, durable (``storage``)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from search_spaces import Space
from sweeps.config import Constraint, SearchConfig
from sweeps.outcomes import Outcome
from sweeps.tuning.designs import AGAIN, REJECTED, GridSampler
from sweeps.tuning.lessons import Teacher, reads_constraints, table_of
from sweeps.tuning.samplers import make_sampler, underneath
from sweeps.tuning.space import suggest, to_study
from sweeps.tuning.storage import open_study

MAX_REJECTIONS = 100
# A curve is kept beside the trial in this many points at most: the storages bound an attribute's size.
CURVE_POINTS = 64

Check = Callable[[dict[str, Any]], Sequence[str]]


class Study:
    """Ask and tell.

    A study that is opened again goes on where it was: the same seed and history give the same suggestions.
    Trials that were asked for and have not ended are still open in it (``open_numbers``): those that began are
    reported and told by their numbers as before, the others are adopted.

    Args:
        directory: The run directory; None: the study is kept in memory.
        name: Name of the study.
        search: Sampler, seed, objectives, points and constraints.
        space: What is searched.
        check: Problems of a configuration; one with problems is never handed out.
        storage: Optuna storage URL; None: ``study.log`` in the directory.

    Raises:
        ConfigError: The storage cannot be reached or is another sweep's, or the sampler cannot be made.
    """

    def __init__(
        self,
        directory: Path | None,
        name: str,
        search: SearchConfig,
        space: Space,
        check: Check,
        storage: str | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = make_sampler(search, space)
        self._study, self._together = open_study(directory, name, search, sampler, storage)
        self._grid = sampler if isinstance(sampler, GridSampler) else None
        self._space, self._check, self._goals = space, check, search.goals
        drawing = underneath(sampler)
        self._teacher = Teacher(
            table_of(search.sampler, drawing),
            search.goals,
            [Constraint.parse(text) for text in search.constraints],
            reads_constraints(drawing),
        )
        self._open: dict[int, optuna.Trial] = {}
        self._curves: defaultdict[int, dict[int, float]] = defaultdict(dict)
        self._adopted: list[int] = []
        self.rejected = sum(t.user_attrs.get("outcome") == REJECTED for t in self._trials())
        self.add_points(search.points, "search.points")

    # Asking

    def ask(self) -> tuple[int, dict[str, Any]] | None:
        """Number and parameters of a new trial, or None where nothing is left to propose (``spent``).

        Adopted trials come first, then points, then suggestions. A configuration that breaks a rule is told as
        failed and another one is asked for; after 100 in a row the last one is handed out, to be recorded as
        infeasible.
        """
        attempts = 0
        while True:
            attempts += 1
            with self._together(True):
                trial = self._next()
                if trial is None:
                    return None
                params = suggest(trial, self._space)
                problems = self._check(params)
                if attempts == MAX_REJECTIONS or not problems:
                    self._open[trial.number] = trial
                    return trial.number, params
                self._reject(trial, problems[0])

    def _reject(self, trial: optuna.Trial, problem: str) -> None:
        self.rejected += 1
        trial.set_user_attr("outcome", REJECTED)
        trial.set_user_attr("reason", problem)
        self._study.tell(trial, state=TrialState.FAIL)

    @property
    def spent(self) -> bool:
        """Whether every cell of the grid was handed out; a sampler that draws is never spent."""
        if self._grid is None or self._adopted:
            return False
        trials = self._trials()
        waiting = any(trial.state is TrialState.WAITING for trial in trials)
        return not waiting and self._grid.left(trials) <= 0

    def add_points(self, points: Iterable[Any], source: str) -> None:
        """Puts points in line, before suggestions; what they leave out is sampled.

        Args:
            points: Each ``{dotted key: value}``.
            source: Where they come from; what was added from there before is not added again.
        """
        there = {trial.user_attrs.get("point") for trial in self._trials()}
        for place, point in enumerate(points):
            name = f"{source}[{place}]"
            if name not in there:
                stored = to_study(self._space, point)
                self._study.enqueue_trial(stored, user_attrs={"point": name})

    # Taking up what another driver left

    def open_numbers(self) -> list[int]:
        """Trials that were asked for and have not ended, whoever asked for them."""
        return [t.number for t in self._trials(TrialState.RUNNING) if AGAIN not in t.user_attrs]

    def adopt(self, number: int) -> dict[str, Any]:
        """Takes over an open trial that never began: ``ask`` hands it out next. Returns its parameters.

        Raises:
            KeyError: The study has no such trial, or it has ended.
        """
        trial = self._running(number)
        if trial is None:
            raise KeyError(f"the study has no open trial {number}")
        if number not in self._adopted:
            self._adopted.append(number)
        return suggest(trial, self._space)

    def reopen(self, number: int) -> None:
        """Takes over a trial that began under another driver; one that has ended stays as it is."""
        self._running(number)

    def again(self, number: int) -> int:
        """Opens a trial with the parameters of one that has ended; returns its number.

        Asked for again before that one was told, it is the same.
        """
        for trial in self._trials(TrialState.RUNNING):
            if trial.user_attrs.get(AGAIN) == number:
                return trial.number
        before = self._trials()[number]
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=before.params,
                distributions=before.distributions,
                user_attrs={AGAIN: number},
            )
        )
        return self.again(number)

    # Telling

    def report(self, number: int, iteration: int, value: float) -> None:
        """An intermediate value of a running trial; what is reported again or too late changes nothing."""
        trial = self._running(number)
        if trial is None or not math.isfinite(value):
            return
        curve = self._curves[number]
        # A trial that was restarted from a checkpoint repeats what it reported before.
        if iteration <= max(curve, default=-1):
            return
        curve[iteration] = value
        # With several objectives Optuna takes none: the curve goes into the attributes alone.
        if len(self._goals) == 1:
            trial.report(value, iteration)

    def tell(
        self, number: int, outcome: Outcome, value: float | None, finals: Mapping[str, float]
    ) -> None:
        """How the trial ended; telling twice, or a trial that is not the study's, changes nothing.

        Args:
            number: Its number.
            outcome: How it ended.
            value: Last value of the objective that ranks.
            finals: Last value of each metric.
        """
        trial = self._running(number)
        if trial is None:
            return
        known = {**finals, next(iter(self._goals)): math.nan if value is None else value}
        told = self._teacher.tell(outcome, known, partial(self._trials, TrialState.COMPLETE))
        with self._together(False):
            for name, attribute in self._attributes(number, outcome, value, told.imputed).items():
                trial.set_user_attr(name, attribute)
            for name, violation in told.constraints.items():
                trial.set_constraint(name, violation)
            self._study.tell(trial, told.values, state=told.state, skip_if_finished=True)
        del self._open[number]
        self._curves.pop(number, None)

    def _attributes(
        self, number: int, outcome: Outcome, value: float | None, imputed: bool
    ) -> dict[str, Any]:
        """What stands beside a trial, for people and for `optuna-dashboard`."""
        found: dict[str, Any] = {"outcome": str(outcome)}
        if value is not None and math.isfinite(value):
            found["value"] = value
        if imputed:
            found["imputed"] = True
        curve = sorted(self._curves.get(number, {}).items())
        if curve:
            found["curve"] = _thinned(curve, CURVE_POINTS)
        return found

    # The storage

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states or None)

    def _next(self) -> optuna.Trial | None:
        while self._adopted:
            trial = self._running(self._adopted.pop(0))
            if trial is not None:
                return trial
        return None if self.spent else self._study.ask()

    def _running(self, number: int) -> optuna.Trial | None:
        """The trial of that number while it runs in the storage, taken up where it is not yet."""
        if number not in self._open:
            trials = self._trials()
            if number >= len(trials) or trials[number].state is not TrialState.RUNNING:
                return None
            self._open[number] = optuna.Trial(self._study, trials[number]._trial_id)
            self._curves[number] = dict(trials[number].intermediate_values)
        return self._open[number]


def _thinned(curve: Sequence[tuple[int, float]], count: int) -> list[tuple[int, float]]:
    """At most ``count`` points of a curve, evenly, the first and the last among them."""
    if len(curve) <= count:
        return list(curve)
    step = (len(curve) - 1) / (count - 1)
    return [curve[round(i * step)] for i in range(count)]
