"""The Optuna study of a sweep: asked for parameters, told how each trial ended, durable in ``study.log``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from search_spaces import Space
from sweeps.config import Constraint, SearchConfig
from sweeps.outcomes import Outcome
from sweeps.tuning.space import suggest, to_study

MAX_REJECTIONS = 100
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


class Study:
    """Ask and tell.

    Args:
        directory: The run directory.
        name: Name of the study.
        search: Sampler, seed, direction, points and constraints.
        space: What is searched.
        check: Problems of a configuration; one with problems is never handed out.
    """

    def __init__(
        self, directory: Path, name: str, search: SearchConfig, space: Space, check: Any
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = JournalStorage(JournalFileBackend(str(directory / "study.log")))
        self._study = optuna.create_study(
            storage=storage,
            study_name=name,
            sampler=make_sampler(search),
            direction=search.direction,
            load_if_exists=True,
        )
        self._space, self._check = space, check
        self._constraints = [Constraint.parse(text) for text in search.constraints]
        self._open: dict[int, optuna.Trial] = {}
        self._reported: dict[int, int] = {}
        self.rejected = 0
        for point in search.points:
            self._study.enqueue_trial(to_study(space, point))

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Number and parameters of a new trial.

        A configuration that breaks a rule is told as failed and another one is asked for; after 100 in a row
        the last one is handed out, to be recorded as infeasible.
        """
        for attempt in range(MAX_REJECTIONS):
            trial = self._study.ask()
            params = suggest(trial, self._space)
            if attempt == MAX_REJECTIONS - 1 or not self._check(params):
                break
            self.rejected += 1
            trial.set_user_attr("outcome", "rejected")
            self._study.tell(trial, state=TrialState.FAIL)
        self._open[trial.number] = trial
        return trial.number, params

    def report(self, number: int, iteration: int, value: float) -> None:
        """An intermediate value of a running trial."""
        # A trial that was restarted from a checkpoint repeats what it reported before.
        if math.isfinite(value) and iteration > self._reported.get(number, -1):
            self._open[number].report(value, iteration)
            self._reported[number] = iteration

    def tell(
        self, number: int, outcome: Outcome, value: float | None, finals: Mapping[str, float]
    ) -> None:
        """How the trial ended; telling twice changes nothing."""
        trial = self._open.pop(number, None)
        if trial is None:
            return
        trial.set_user_attr("outcome", str(outcome))
        for constraint in self._constraints:
            final = finals.get(constraint.metric)
            if final is not None and math.isfinite(final):
                trial.set_constraint(str(constraint.metric), constraint.violation(final))
        state, violated = TELL[outcome]
        if state is TrialState.COMPLETE and (value is None or not math.isfinite(value)):
            state = TrialState.FAIL
        if violated:
            trial.set_constraint("outcome", 1.0)
        self._study.tell(trial, value if state is TrialState.COMPLETE else None, state=state)

    def close_open(self) -> None:
        """Closes what is still running in the study, when the sweep ends before its trials."""
        for number in list(self._open):
            self.tell(number, Outcome.LOST, None, {})


def make_sampler(search: SearchConfig) -> optuna.samplers.BaseSampler:
    """The sampler of that name, seeded."""
    if search.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=search.startup_trials)
    if search.sampler == "qmc":
        return optuna.samplers.QMCSampler(seed=search.seed, scramble=True)
    return optuna.samplers.RandomSampler(seed=search.seed)
