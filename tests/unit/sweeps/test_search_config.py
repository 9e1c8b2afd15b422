"""Options of the search: which sampler, which objectives, how many GPUs at once."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.runtime.placement import Node
from sweeps.load import load_sweep
from sweeps.plan import plan_sweep

SCRIPT = {"program": "sweep_helpers:GpuScriptProgram", "space": {"x": {"float": [0.0, 6.0]}}}
GOALS = {"script/loss": "minimize", "cost/gpu_seconds": "minimize"}


def load(search: dict[str, Any], **values: Any) -> Any:
    return load_sweep({**SCRIPT, "search": {"objective": "script/loss", **search}, **values})


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"sampler": "tpee"}, "but is 'tpee'; did you mean 'tpe'?"),
        ({"sampler": "annealing"}, "search.sampler is one of tpe, gp, cmaes"),
        ({"grid_points": 7}, "search.grid_points 7 has no effect: it belongs to search.sampler"),
        ({"sampler": "cmaes"}, "cmaes needs two float or int parameters"),
        ({"sampler": "no_such:thing"}, "'no_such:thing' cannot be imported"),
        ({"options": {"n_startup": 3}}, "unexpected keyword argument 'n_startup'"),
        ({"objectives": {"a/b": "upwards"}}, "search.objectives.a/b must be 'maximize'"),
        ({"objectives": {"a/b": "minimize"}}, "search.objective is 'script/loss', but the first"),
        ({"points": ["openrlfh"]}, "did you mean 'openrlhf'?"),
    ],
)
def test_a_wrong_option_is_refused_in_a_line(search: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as info:
        load(search)
    (line,) = info.value.problems
    assert said in line


def test_the_first_objective_is_the_one_that_ranks() -> None:
    search = load_sweep({**SCRIPT, "search": {"objectives": GOALS}}).config.search
    assert (search.objective, search.direction) == ("script/loss", "minimize")
    assert list(search.goals) == list(GOALS)
    # What is recorded is read again by a sweep that goes on.
    assert load_sweep({**SCRIPT, "search": search.model_dump()}).config.search == search
    assert load({"direction": "minimize"}).config.search.goals == {"script/loss": "minimize"}


def test_an_objective_that_no_trial_reports_is_named() -> None:
    goals = {"eval/heldout": "maximize", "kl/respons": "minimize"}
    with pytest.raises(
        ConfigError, match=r"search.objectives.kl/respons: no metric 'kl/respons'; did"
    ):
        load_sweep("quickstart", {"search.objectives": goals})


NODES = [Node("a", 64.0, 8.0, 64.0)]


@pytest.mark.parametrize(
    ("budget", "at_once", "reason"),
    [
        ({}, 4, "the nodes hold no more"),
        ({"gpus": 5}, 2, "budget.gpus is 5, and a trial has 2"),
        ({"gpus": 2}, 1, "budget.gpus is 2"),
        ({"gpus": 80}, 4, "the nodes hold no more"),
    ],
)
def test_trials_at_once_stay_within_the_budget_of_gpus(
    budget: dict[str, Any], at_once: int, reason: str
) -> None:
    plan = plan_sweep(load({}, base={"gpus": 2}, budget=budget), NODES)
    assert (plan.max_concurrent, plan.problems) == (at_once, [])
    assert reason in plan.limit


def test_the_widest_shape_of_the_space_counts_against_the_budget() -> None:
    space = {"x": {"float": [0.0, 6.0]}, "gpus": {"choice": [1, 3]}}
    loaded = load({}, space=space, budget={"gpus": 4})
    assert plan_sweep(loaded, NODES).max_concurrent == 1
    (problem,) = plan_sweep(load({}, space=space, budget={"gpus": 2}), NODES).problems
    assert problem == "budget.gpus: a trial takes 3 GPUs, but 2 may be in use at once; raise it"


def test_trials_without_gpus_have_no_budget_of_them() -> None:
    assert plan_sweep(load({"trials": 9}, budget={"gpus": 1}), NODES).max_concurrent == 9
