"""What a study holds of a trial after each outcome, by sampler."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from search_spaces import Float, Parameter, Space
from sweeps.config import SAMPLERS, SearchConfig
from sweeps.outcomes import Outcome
from sweeps.tuning.lessons import LESSONS, Lesson, table_of
from sweeps.tuning.study import CURVE_POINTS, Study

SPACE = Space({"x": Parameter(Float(0.0, 1.0)), "y": Parameter(Float(0.0, 1.0))})
BY_VALUE = ("gp", "cmaes", "nsga2", "nsga3")
BY_STATE = ("tpe", "random", "qmc", "grid")
COMPLETE, PRUNED, FAIL = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL


def make(**search: Any) -> Study:
    return Study(None, "s", SearchConfig(**search), SPACE, lambda params: [])


def tell(study: Study, outcome: Outcome, value: float | None, **finals: float) -> Any:
    """Asks for a trial, ends it, and returns what the study holds of it."""
    asked = study.ask()
    assert asked is not None
    if value is not None:
        study.report(asked[0], 1, value)
    study.tell(asked[0], outcome, value, finals)
    return study._study.trials[asked[0]]


def violated(trial: optuna.trial.FrozenTrial) -> bool:
    return any(value > 0 for value in trial.constraints.values())


def test_every_sampler_has_a_lesson_for_every_outcome() -> None:
    assert LESSONS.keys() == set(SAMPLERS)
    assert all(table.keys() == set(Outcome) for table in LESSONS.values())
    # One that is not known is told what every sampler reads.
    assert table_of("a:b", optuna.samplers.GPSampler()) is LESSONS["gp"]
    assert table_of("a:b", optuna.samplers.TPESampler()) is LESSONS["tpe"]


@pytest.mark.parametrize("sampler", BY_STATE)
@pytest.mark.parametrize(
    ("outcome", "state", "broken"),
    [
        (Outcome.COMPLETED, COMPLETE, False),
        (Outcome.STOPPED, PRUNED, False),
        (Outcome.DIVERGED, PRUNED, True),
        (Outcome.INFEASIBLE, PRUNED, True),
        (Outcome.FAILED, FAIL, False),
        (Outcome.LOST, FAIL, False),
    ],
)
def test_samplers_that_read_states_are_told_states(
    sampler: str, outcome: Outcome, state: TrialState, broken: bool
) -> None:
    trial = tell(make(sampler=sampler), outcome, 0.5)
    assert trial.state is state
    assert violated(trial) is broken
    assert trial.user_attrs["outcome"] == str(outcome)


@pytest.mark.parametrize("sampler", BY_VALUE)
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_samplers_that_read_values_are_told_values(sampler: str, direction: str) -> None:
    sign = 1.0 if direction == "maximize" else -1.0
    study = make(sampler=sampler, direction=direction)
    for value in (0.6, 0.4):
        tell(study, Outcome.COMPLETED, sign * value)
    # Far behind: its own value. It looked better than a completed one when it was stopped: just below that.
    behind = tell(study, Outcome.STOPPED, sign * 0.1)
    early = tell(study, Outcome.STOPPED, sign * 0.9)
    assert behind.state is early.state is COMPLETE
    assert sign * behind.value == 0.1
    assert sign * early.value == math.nextafter(0.4, -math.inf)
    assert "imputed" not in behind.user_attrs
    assert early.user_attrs["imputed"] is True
    assert early.user_attrs["value"] == sign * 0.9
    for outcome in (Outcome.DIVERGED, Outcome.INFEASIBLE):
        trial = tell(study, outcome, sign * 5.0)
        assert trial.state is COMPLETE
        assert sign * trial.value < 0.1
        assert sign * trial.value == pytest.approx(0.1)
    for outcome in (Outcome.FAILED, Outcome.LOST):
        assert tell(study, outcome, sign * 5.0).state is FAIL
    assert sign * study._study.best_value == 0.6


@pytest.mark.parametrize("sampler", BY_VALUE)
def test_without_anything_to_compare_with_a_broken_trial_is_a_failed_one(sampler: str) -> None:
    study = make(sampler=sampler)
    assert tell(study, Outcome.DIVERGED, 7.0).state is FAIL
    assert tell(study, Outcome.STOPPED, 0.3).value == 0.3
    assert tell(study, Outcome.STOPPED, None).state is FAIL


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_never_becomes_the_best(sampler: str, value: float | None) -> None:
    study = make(sampler=sampler)
    assert tell(study, Outcome.COMPLETED, 0.5).value == 0.5
    assert tell(study, Outcome.COMPLETED, value).state is FAIL
    assert tell(study, Outcome.STOPPED, value).state is not TrialState.RUNNING
    assert tell(study, Outcome.DIVERGED, value).state is not TrialState.RUNNING
    assert study._study.best_value == 0.5


RULES = ("kl/response <= 10", "reward/proxy >= 1")


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2"])
def test_every_trial_has_every_constraint(sampler: str) -> None:
    study = make(sampler=sampler, constraints=RULES)
    finals = {"kl/response": 12.5, "reward/proxy": 3.0}
    known = tell(study, Outcome.COMPLETED, 1.0, **finals)
    assert known.constraints == {"kl/response": 2.5, "reward/proxy": -2.0}
    # Not measured: a completed trial cannot have kept it, a stopped one may have.
    missing = tell(study, Outcome.COMPLETED, 2.0, **{"reward/proxy": math.nan})
    assert missing.constraints == {"kl/response": 1.0, "reward/proxy": 1.0}
    stopped = tell(study, Outcome.STOPPED, 0.5, **{"kl/response": 4.0})
    assert stopped.constraints == {"kl/response": -6.0, "reward/proxy": 0.0}
    assert [violated(trial) for trial in study._study.trials] == [True, True, False]


def test_cmaes_learns_of_a_broken_constraint_by_a_value() -> None:
    study = make(sampler="cmaes", constraints=RULES)
    good = {"kl/response": 5.0, "reward/proxy": 3.0}
    assert tell(study, Outcome.COMPLETED, 0.5, **good).value == 0.5
    trial = tell(study, Outcome.COMPLETED, 9.0, **{**good, "kl/response": 20.0})
    assert trial.value == math.nextafter(0.5, -math.inf)
    assert trial.constraints == {}
    assert trial.user_attrs["value"] == 9.0


GOALS = {"eval/heldout": "maximize", "cost/gpu_seconds": "minimize"}


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_several_objectives_are_told_together(sampler: str) -> None:
    study = make(sampler=sampler, objectives=GOALS)
    complete = tell(study, Outcome.COMPLETED, 0.5, **{"cost/gpu_seconds": 30.0})
    assert complete.values == [0.5, 30.0]
    assert study._study.metric_names == list(GOALS)
    # Optuna takes no intermediate values here; the curve is beside the trial.
    assert complete.intermediate_values == {}
    assert complete.user_attrs["curve"] == [(1, 0.5)]
    assert tell(study, Outcome.COMPLETED, 0.7).state is FAIL
    stopped = tell(study, Outcome.STOPPED, 0.9, **{"cost/gpu_seconds": 50.0})
    diverged = tell(study, Outcome.DIVERGED, 0.9, **{"cost/gpu_seconds": 1.0})
    if sampler == "nsga2":
        assert stopped.values == [math.nextafter(0.5, -math.inf), 50.0]
        assert diverged.values[0] < stopped.values[0]
        assert diverged.values[1] > 50.0
    else:
        assert stopped.state is diverged.state is PRUNED
    assert study._study.best_trials == [study._study.trials[0]]


def test_a_curve_is_kept_in_bounded_size() -> None:
    study = make()
    asked = study.ask()
    assert asked is not None
    for iteration in range(1, 1001):
        study.report(asked[0], iteration, float(iteration))
    study.tell(asked[0], Outcome.STOPPED, 1000.0, {})
    curve = study._study.trials[0].user_attrs["curve"]
    assert len(curve) == CURVE_POINTS
    assert curve[0] == (1, 1.0)
    assert curve[-1] == (1000, 1000.0)
    assert curve == sorted(set(curve))


def test_a_lesson_that_completes_needs_numbers() -> None:
    completing = {Lesson.VALUE, Lesson.BEHIND, Lesson.WORST}
    told = {outcome for outcome, lesson in LESSONS["gp"].items() if lesson in completing}
    assert told == {Outcome.COMPLETED, Outcome.STOPPED, Outcome.DIVERGED, Outcome.INFEASIBLE}
