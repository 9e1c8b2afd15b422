"""Where a search begins: after the points at the centres, then a share of the startup trials around them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from rlhf_core.errors import ConfigError
from search_spaces import Choice, Constant, Float, Int, Logit, Parameter, Pow2, Space, When, presets
from sweeps.config import SAMPLERS, SearchConfig
from sweeps.history import read_config
from sweeps.load import load_sweep
from sweeps.outcomes import Outcome
from sweeps.record import RunDirectory
from sweeps.sweep import Sweep
from sweeps.tuning.designs import at, levels, place
from sweeps.tuning.prior import SPREAD, near
from sweeps.tuning.space import from_study, suggest, to_distribution, to_study
from sweeps.tuning.study import Study

CENTRES = {"lr": 1e-4, "gamma": 0.99, "batch": 64, "epochs": 2, "kind": "adaptive", "target": 6.0}
SPACE = Space(
    {
        "lr": Parameter(Float(1e-5, 1e-2, log=True), centre=1e-4),
        "gamma": Parameter(Logit(0.9, 0.999), centre=0.99),
        "batch": Parameter(Pow2(8, 1024), centre=64),
        "epochs": Parameter(Int(1, 8), centre=2),
        "kind": Parameter(Choice(("fixed", "adaptive", "off")), centre="adaptive"),
        "target": Parameter(
            Float(1.0, 9.0, step=0.5), when=When("kind", ("adaptive",)), centre=6.0
        ),
        "coef": Parameter(Float(0.0, 1.0)),
        "horizon": Parameter(Constant(7)),
    }
)
BARE = Space({key: Parameter(p.domain, p.when) for key, p in SPACE.items()})


def study_of(space: Space = SPACE, folder: Path | None = None, **search: Any) -> Study:
    return Study(folder, "s", SearchConfig(**search), space, lambda params: [])


def ask(study: Study) -> dict[str, Any]:
    asked = study.ask()
    assert asked is not None
    return asked[1]


def play(study: Study, count: int, told: bool = True) -> list[dict[str, Any]]:
    """Asks ``count`` times; each trial ends before the next one is asked for, where ``told``."""
    found = []
    for _ in range(count):
        asked = study.ask()
        assert asked is not None
        found.append(asked[1])
        if told:
            study.tell(asked[0], Outcome.COMPLETED, asked[1]["coef"], {})
    return found


# The draw


RANGES: list[tuple[Any, Any]] = [
    (Float(-2.0, 6.0), 1.0),
    (Float(1e-6, 1e-2, log=True), 1e-5),
    (Float(0.1, 0.5), 0.5),
    (Float(0.0, 10.0, step=0.1), 3.0),
    (Logit(0.9, 0.9999), 0.99),
    (Int(0, 200), 40),
    (Int(100, 1_000_000, log=True), 3000),
    (Pow2(1, 2**20), 2**5),
]


def in_its_scale(domain: Any, value: float) -> float:
    """Where a value lies between the bounds, written down once more for each kind of domain."""
    if isinstance(domain, Pow2) or getattr(domain, "log", False):
        scale = math.log
    else:
        scale = (lambda v: math.log(v / (1 - v))) if isinstance(domain, Logit) else float
    low, high = scale(domain.low), scale(domain.high)
    return (scale(value) - low) / (high - low)


@pytest.mark.parametrize(("domain", "centre"), RANGES, ids=str)
def test_values_are_normal_around_the_centre_in_the_parameters_scale(
    domain: Any, centre: Any
) -> None:
    space, rng = Space({"x": Parameter(domain)}), np.random.default_rng(0)
    stored = to_study(space, {"x": centre})
    (name,) = stored
    drawn = [near(to_distribution(domain), stored[name], rng) for _ in range(4000)]
    values = [from_study(space, {name: value})["x"] for value in drawn]
    assert all(domain.contains(value) for value in values)
    # What is cut at the bounds has the quantiles of the normal between them.
    middle = in_its_scale(domain, centre)
    normal = np.random.default_rng(1).normal(middle, SPREAD, 40_000)
    kept = normal[(normal >= 0) & (normal <= 1)]
    places = [in_its_scale(domain, value) for value in values]
    parts = [0.05, 0.25, 0.5, 0.75, 0.95]
    tolerance = 0.05 if isinstance(domain, Pow2) else 0.025
    assert np.quantile(places, parts) == pytest.approx(np.quantile(kept, parts), abs=tolerance)


def test_a_choice_keeps_its_centre_half_of_the_time_and_else_spares_none() -> None:
    distribution, rng = CategoricalDistribution((None, True, 1, "a", 2.5)), np.random.default_rng(0)
    drawn = [near(distribution, 1, rng) for _ in range(4000)]
    shares = [sum(v is choice for v in drawn) / 4000 for choice in distribution.choices]
    assert shares == pytest.approx([0.125, 0.125, 0.5, 0.125, 0.125], abs=0.025)
    assert near(CategoricalDistribution(("only",)), "only", rng) == "only"


@pytest.mark.parametrize(
    "distribution",
    [
        FloatDistribution(-1.0, 3.0),
        FloatDistribution(0.0, 0.3, step=0.1),
        FloatDistribution(1e-5, 1e-2, log=True),
        IntDistribution(2, 8, step=3),
        IntDistribution(1, 64, log=True),
    ],
)
def test_the_place_of_a_value_is_where_it_is_found(distribution: Any) -> None:
    for value in levels(distribution, 9)[:-1]:
        assert at(distribution, place(distribution, value)) == pytest.approx(value)
    assert 0 <= place(distribution, distribution.low) < place(distribution, distribution.high) <= 1


# The beginning of a study


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_the_centres_are_first_and_what_has_none_is_sampled(sampler: str) -> None:
    firsts = [ask(study_of(sampler=sampler, seed=seed)) for seed in (1, 2)]
    for first in firsts:
        assert {key: first[key] for key in CENTRES} == pytest.approx(CENTRES)
        assert first["horizon"] == 7
    assert firsts[0]["coef"] != firsts[1]["coef"]


def test_points_come_before_the_centres() -> None:
    points = ({"lr": 5e-3, "kind": "fixed"}, {"epochs": 8, "kind": "off"})
    first, second, third, fourth = play(study_of(points=points), 4)
    assert (first["lr"], first["kind"]) == (5e-3, "fixed")
    assert second["epochs"] == 8
    # What a point leaves open is sampled.
    assert CENTRES["gamma"] not in (first["gamma"], second["gamma"])
    assert {key: third[key] for key in CENTRES} == pytest.approx(CENTRES)
    assert fourth["lr"] != CENTRES["lr"]


def test_points_that_are_added_later_do_not_bring_the_centres_again() -> None:
    study = study_of(prior=1.0)
    assert ask(study)["lr"] == CENTRES["lr"]
    study.add_points([{"lr": 5e-3}], "a command")
    assert ask(study)["lr"] == 5e-3
    assert ask(study)["lr"] not in (5e-3, CENTRES["lr"])


def test_the_share_of_the_startup_trials_is_drawn_around_the_centres() -> None:
    blind = play(study_of(BARE, startup_trials=40, seed=3), 40, told=False)
    for share, count in ((0.25, 10), (0.5, 20), (1.0, 40)):
        asked = play(study_of(startup_trials=40, seed=3, prior=share), 40, told=False)
        moved = [a["lr"] != b["lr"] for a, b in zip(asked, blind, strict=True)]
        # The first has the centres, whether or not the share would fall on it.
        assert sum(moved[1:]) == count - (share == 1.0)
        assert moved[0]
        distances = [
            abs(math.log10(a["lr"] / 1e-4)) for a, new in zip(asked, moved, strict=True) if new
        ]
        assert np.mean(distances) < 0.75


@pytest.mark.parametrize("options", [{}, {"multivariate": False}], ids=str)
def test_after_the_startup_trials_the_sampler_decides_alone(options: dict[str, Any]) -> None:
    # Both hold the same trials, one drawn around the centres, the other given as points.
    study, blind = (study_of(prior=p, startup_trials=4, options=options) for p in (1.0, 0.0))
    told = [study.ask() for _ in range(4)]
    for number, params in filter(None, told):
        study.tell(number, Outcome.COMPLETED, params["coef"], {})
        blind.add_points([params], f"trial {number}")
        asked = blind.ask()
        assert asked is not None
        blind.tell(asked[0], Outcome.COMPLETED, params["coef"], {})
    assert play(study, 6) == play(blind, 6)


@pytest.mark.parametrize("sampler", ["tpe", pytest.param("gp", marks=pytest.mark.long)])
def test_without_a_share_suggestions_are_those_of_a_space_without_centres(sampler: str) -> None:
    search: dict[str, Any] = {"sampler": sampler, "startup_trials": 5, "prior": 0.0, "seed": 4}
    expected = play(study_of(BARE, **search), 8)
    assert play(study_of(**search), 8) == expected
    assert play(study_of(BARE, **{**search, "prior": 1.0}), 8) == expected


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name not in ("tpe", "gp")])
def test_samplers_that_model_nothing_take_no_notice_of_the_centres(sampler: str) -> None:
    grid = {"grid_points": 2} if sampler == "grid" else {}
    asked = [play(study_of(space, sampler=sampler, **grid), 4) for space in (SPACE, BARE)]
    assert asked[0] == asked[1]


def test_an_opened_study_goes_on_as_if_never_closed(tmp_path: Path) -> None:
    search: dict[str, Any] = {"startup_trials": 6, "points": ({"lr": 5e-3},), "seed": 9}
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = play(study_of(folder=tmp_path / "whole", **search), 10)
    parts = [p for _ in range(5) for p in play(study_of(folder=tmp_path / "parts", **search), 2)]
    assert parts == whole


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_trial_that_was_asked_for_half_gets_the_values_it_would_have_had(
    tmp_path: Path, before: int
) -> None:
    whole = study_of(prior=1.0)
    play(whole, before)
    expected = whole.ask()
    cut = study_of(folder=tmp_path, prior=1.0)
    play(cut, before)
    # A driver that dies between two parameters leaves the first ones in the storage.
    suggest(cut._study.ask(), Space({key: SPACE[key] for key in ("lr", "epochs")}))
    again = study_of(folder=tmp_path, prior=1.0)
    assert (before, again.adopt(before)) == again.ask() == expected


def test_a_conditional_parameter_has_its_centre_only_where_it_counts() -> None:
    asked = play(study_of(prior=1.0, startup_trials=40), 40, told=False)
    assert {"target" in params for params in asked} == {True, False}
    assert all(("target" in params) == (params["kind"] == "adaptive") for params in asked)
    assert all(SPACE.check(params) == [] for params in asked)
    targets = [params["target"] for params in asked if "target" in params]
    assert targets[0] == 6.0
    assert len(set(targets)) > 3


def test_centres_that_break_a_rule_are_passed_over_once() -> None:
    study = Study(None, "s", SearchConfig(), SPACE, lambda p: ["no"] if p["lr"] == 1e-4 else [])
    assert ask(study)["lr"] != 1e-4
    assert study.rejected == 1


# What is said and refused


SCRIPT: dict[str, Any] = {
    "program": "sweep_helpers:ScriptProgram",
    "base": {"steps": 2},
    "search": {"trials": 1, "objective": "script/loss", "direction": "minimize"},
}
WITH = {"x": {"float": [0.0, 6.0], "centre": 2.0}}
WITHOUT = {"x": {"float": [0.0, 6.0]}}


def load(space: dict[str, Any], **search: Any) -> Any:
    return load_sweep({**SCRIPT, "space": space, "search": {**SCRIPT["search"], **search}})


@pytest.mark.parametrize(
    ("space", "search", "said"),
    [
        (
            WITH,
            {"sampler": "random", "prior": 0.3},
            "prior 0.3 has no effect: it belongs to search.sampler",
        ),
        (WITHOUT, {"prior": 0.3}, "prior 0.3 has no effect: it belongs to a space with centres"),
        (WITH, {"prior": 1.5}, "search.prior"),
    ],
)
def test_a_prior_without_effect_is_refused_in_a_line(
    space: dict[str, Any], search: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as info:
        load(space, **search)
    (line,) = info.value.problems
    assert said in line


@pytest.mark.parametrize(
    ("space", "search"),
    [
        (WITHOUT, {}), (WITHOUT, {"prior": 0}), (WITH, {"prior": 0}),
        (WITH, {"sampler": "random"}), (WITH, {"sampler": "random", "prior": 0}),
    ],
)  # fmt: skip
def test_a_blind_search_says_nothing_of_centres(
    space: dict[str, Any], search: dict[str, Any]
) -> None:
    assert not any("centres" in note for note in Sweep(load(space, **search)).notes())


def test_a_search_that_begins_at_centres_says_so() -> None:
    (note,) = Sweep(load({**WITH, "steps": {"choice": [1, 2]}}, prior=0.25)).notes()
    assert "centres of the space (1 of 2 parameters have one) and draws 25%" in note


# Directories of earlier releases


@pytest.mark.parametrize(
    ("space", "search", "prior"),
    [(WITH, {}, 0.0), (WITHOUT, {}, 0.5), (WITH, {"sampler": "random"}, 0.5)],
)
def test_a_sweep_that_began_without_the_centres_goes_on_without_them(
    tmp_path: Path, space: dict[str, Any], search: dict[str, Any], prior: float
) -> None:
    RunDirectory(tmp_path).write_sweep(load(space, **search), [])
    recorded = Sweep.from_directory(tmp_path).loaded.config.search
    assert recorded.prior == 0.5
    document = read_config(tmp_path)
    del document["config"]["search"]["prior"]
    (tmp_path / "sweep.json").write_text(json.dumps(document))
    assert Sweep.from_directory(tmp_path).loaded.config.search.prior == prior


# Presets


def test_presets_name_the_centres_for_a_size() -> None:
    small, large = presets.centres(1e6), presets.centres(8e9)
    assert small["optim.policy.lr"] == 1e-3
    assert large["optim.policy.lr"] == 1e-6
    assert small["sync.interval"] == large["sync.interval"] == 1
    assert {"reward.clip", "rollout.temperature", "resources.layout"} <= small.keys()
