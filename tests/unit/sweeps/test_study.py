from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from search_spaces import Choice, Constant, Float, Int, Parameter, Space, When
from sweeps.config import SearchConfig
from sweeps.outcomes import Outcome
from sweeps.tuning.space import suggest, to_distribution
from sweeps.tuning.study import Study

SPACE = Space({"x": Parameter(Float(0.0, 1.0)), "n": Parameter(Int(1, 3))})


def make(tmp_path: Path, check: Any = lambda params: [], **search: Any) -> Study:
    return Study(tmp_path, "s", SearchConfig(**search), SPACE, check)


def stored(study: Study) -> list[optuna.trial.FrozenTrial]:
    return study._study.trials


def test_equal_seeds_ask_for_equal_parameters(tmp_path: Path) -> None:
    asked = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        study = make(folder, seed=7)
        asked.append([study.ask()[1] for _ in range(4)])
    assert asked[0] == asked[1]


def test_points_come_first(tmp_path: Path) -> None:
    study = make(tmp_path, points=({"x": 0.25, "n": 2},))
    assert study.ask() == (0, {"x": 0.25, "n": 2})


@pytest.mark.parametrize(
    ("outcome", "state", "violated"),
    [
        (Outcome.COMPLETED, TrialState.COMPLETE, False),
        (Outcome.STOPPED, TrialState.PRUNED, False),
        (Outcome.DIVERGED, TrialState.PRUNED, True),
        (Outcome.INFEASIBLE, TrialState.PRUNED, True),
        (Outcome.FAILED, TrialState.FAIL, False),
        (Outcome.LOST, TrialState.FAIL, False),
    ],
)
def test_each_outcome_is_told_as_the_table_says(
    tmp_path: Path, outcome: Outcome, state: TrialState, violated: bool
) -> None:
    study = make(tmp_path)
    number, _ = study.ask()
    study.report(number, 1, 0.5)
    study.tell(number, outcome, 0.5, {})
    trial = stored(study)[number]
    assert trial.state is state
    assert any(v > 0 for v in trial.constraints.values()) is violated
    assert trial.user_attrs["outcome"] == str(outcome)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_value_that_is_no_number_never_becomes_the_best(
    tmp_path: Path, value: float | None
) -> None:
    study = make(tmp_path)
    number, _ = study.ask()
    study.tell(number, Outcome.COMPLETED, value, {})
    assert stored(study)[number].state is TrialState.FAIL


def test_telling_twice_changes_nothing(tmp_path: Path) -> None:
    study = make(tmp_path)
    number, _ = study.ask()
    study.tell(number, Outcome.COMPLETED, 1.0, {})
    study.tell(number, Outcome.FAILED, None, {})
    assert stored(study)[number].value == 1.0


def test_constraints_are_told_as_violations(tmp_path: Path) -> None:
    study = make(tmp_path, constraints=("kl/response <= 10", "reward/proxy >= 1"))
    number, _ = study.ask()
    study.tell(number, Outcome.COMPLETED, 1.0, {"kl/response": 12.5, "reward/proxy": 3.0})
    assert stored(study)[number].constraints == {"kl/response": 2.5, "reward/proxy": -2.0}


def test_a_configuration_that_breaks_a_rule_is_not_handed_out(tmp_path: Path) -> None:
    study = make(tmp_path, check=lambda params: ["too large"] if params["x"] > 0.5 else [])
    handed = [study.ask()[1]["x"] for _ in range(8)]
    assert max(handed) <= 0.5
    assert study.rejected > 0
    rejected = [t for t in stored(study) if t.user_attrs.get("outcome") == "rejected"]
    assert len(rejected) == study.rejected


def test_a_space_without_a_valid_point_does_not_loop_for_ever(tmp_path: Path) -> None:
    study = make(tmp_path, check=lambda params: ["never"])
    study.ask()
    assert study.rejected == 99


def test_conditions_are_asked_parents_first() -> None:
    space = Space(
        {
            "target": Parameter(Float(1.0, 9.0), when=When("kind", ("adaptive",))),
            "kind": Parameter(Choice(("fixed", "adaptive"))),
            "c": Parameter(Constant(3)),
        }
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = [suggest(study.ask(), space) for _ in range(20)]
    assert {("target" in params) == (params["kind"] == "adaptive") for params in seen} == {True}
    assert {params["c"] for params in seen} == {3}
    assert {params["kind"] for params in seen} == {"fixed", "adaptive"}


def test_distributions_keep_bounds_steps_and_logs() -> None:
    assert to_distribution(Float(1e-5, 1e-2, log=True)) == FloatDistribution(1e-5, 1e-2, log=True)
    assert to_distribution(Float(0.0, 1.0, step=0.25)) == FloatDistribution(0.0, 1.0, step=0.25)
    integers = to_distribution(Int(1, 9, step=2))
    assert (integers.low, integers.high, integers.step) == (1, 9, 2)
    assert to_distribution(Choice((1, "a", None))).choices == (1, "a", None)
    assert to_distribution(Constant(2)).choices == (2,)


def test_a_restarted_trial_reports_each_iteration_once(tmp_path: Path) -> None:
    study = make(tmp_path)
    number, _ = study.ask()
    for iteration in (1, 2, 2, 3):
        study.report(number, iteration, float(iteration))
    assert stored(study)[number].intermediate_values == {1: 1.0, 2: 2.0, 3: 3.0}
