"""The Optuna study of a sweep: asked for parameters, told how each trial ended, durable in ``study.log``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from search_spaces import Space
from sweeps.config import Constraint, SearchConfig
from sweeps.outcomes import Outcome
from sweeps.tuning.space import suggest

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
            sampler=_ByNumber(search),
            direction=search.direction,
            load_if_exists=True,
        )
        self._space, self._check = space, check
        self._constraints = [Constraint.parse(text) for text in search.constraints]
        self._open: dict[int, optuna.Trial] = {}
        self._reported: dict[int, int] = {}
        self._adopted: list[int] = []
        self.rejected = 0
        self.add_points(search.points, "search.points")

    def add_points(self, points: Sequence[Mapping[str, Any]], source: str) -> None:
        """Has these parameters tried next; those that were added under the same name before are not repeated."""
        known = {t.user_attrs.get("point") for t in self._study.get_trials(deepcopy=False)}
        for place, point in enumerate(points):
            name = f"{source}[{place}]"
            if name not in known:
                self._study.enqueue_trial(dict(point), user_attrs={"point": name})

    def open_numbers(self) -> list[int]:
        """Trials that were asked for and not told, those of former processes among them."""
        return [trial.number for trial in self._running() if "again" not in trial.user_attrs]

    def _running(self) -> list[optuna.trial.FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def adopt(self, number: int) -> None:
        """Takes over a trial that a former process asked for and never began; ``ask`` hands it out next."""
        self._adopted.append(number)

    def reopen(self, number: int) -> None:
        """Takes over a trial that a former process began; it is reported and told as before."""
        stored = self._stored(number)
        if not stored.state.is_finished():
            self._open[number] = self._trial(number)
            self._reported[number] = max(stored.intermediate_values, default=-1)

    def again(self, number: int) -> int:
        """Opens a new trial with the parameters of one that was told; returns its number.

        Asked for again before that was told, it is the same one.
        """
        before = self._stored(number)
        if not self._following(number):
            self._study.add_trial(
                optuna.trial.create_trial(
                    state=TrialState.RUNNING,
                    params=before.params,
                    distributions=before.distributions,
                    user_attrs={"again": number},
                )
            )
        new = self._following(number)[0]
        self.reopen(new)
        return new

    def _following(self, number: int) -> list[int]:
        return [t.number for t in self._running() if t.user_attrs.get("again") == number]

    def _stored(self, number: int) -> optuna.trial.FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _trial(self, number: int) -> optuna.Trial:
        # What was sampled already keeps its value, the rest follows from the trial's number.
        return optuna.Trial(self._study, self._stored(number)._trial_id)

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Number and parameters of a new trial, an adopted one first.

        A configuration that breaks a rule is told as failed and another one is asked for; after 100 in a row
        the last one is handed out, to be recorded as infeasible.
        """
        for attempt in range(MAX_REJECTIONS):
            adopted = self._adopted.pop(0) if self._adopted else None
            trial = self._study.ask() if adopted is None else self._trial(adopted)
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
        known = number in self._open and math.isfinite(value)
        if known and iteration > self._reported.get(number, -1):
            self._open[number].report(value, iteration)
            self._reported[number] = iteration

    def tell(
        self, number: int, outcome: Outcome, value: float | None, finals: Mapping[str, float]
    ) -> None:
        """How the trial ended; telling twice changes nothing."""
        trial = self._open.pop(number, None)
        if trial is None or self._stored(number).state.is_finished():
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


class _ByNumber(optuna.samplers.BaseSampler):
    """The sampler of a search, seeded anew for each trial by its number: a study that is opened again goes on."""

    def __init__(self, search: SearchConfig) -> None:
        self._search, self._number = search, -1
        self._inner: optuna.samplers.BaseSampler = make_sampler(search)

    def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
        if trial.number != self._number and self._search.sampler != "qmc":
            self._number = trial.number
            seed = (self._search.seed + 7919 * trial.number) % 2**32
            self._inner = make_sampler(self._search.model_copy(update={"seed": seed}))
        return self._inner.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
        return self._inner.sample_relative(study, trial, search_space)

    def sample_independent(self, study: Any, trial: Any, name: Any, distribution: Any) -> Any:
        return self._inner.sample_independent(study, trial, name, distribution)

    def before_trial(self, study: Any, trial: Any) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        self._inner.after_trial(study, trial, state, values)


def make_sampler(search: SearchConfig) -> optuna.samplers.BaseSampler:
    """The sampler of that name, seeded."""
    if search.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=search.startup_trials)
    if search.sampler == "qmc":
        return optuna.samplers.QMCSampler(seed=search.seed, scramble=True)
    return optuna.samplers.RandomSampler(seed=search.seed)
