"""Suggestions follow from seed, number and history: a study that is opened again goes on as if never closed."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from rlhf_core.errors import ConfigError
from search_spaces import Choice, Constant, Float, Int, Parameter, Space, When
from sweeps.config import SAMPLERS, SearchConfig
from sweeps.outcomes import Outcome
from sweeps.tuning.designs import MAX_CELLS, at, cells, levels
from sweeps.tuning.samplers import make_sampler, sampler_problems, underneath
from sweeps.tuning.space import suggest
from sweeps.tuning.study import Study

SPACE = Space(
    {
        "lr": Parameter(Float(1e-5, 1e-2, log=True)),
        "coef": Parameter(Float(0.0, 1.0)),
        "epochs": Parameter(Int(1, 8)),
        "kind": Parameter(Choice(("fixed", "adaptive"))),
        "target": Parameter(Float(1.0, 9.0), when=When("kind", ("adaptive",))),
    }
)
OUTCOMES = (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.STOPPED, Outcome.DIVERGED, Outcome.FAILED)


def from_random(seed: int, **options: Any) -> BaseSampler:
    """What a user's own module may have."""
    return optuna.samplers.RandomSampler(seed=seed, **options)


class Stubborn(optuna.samplers.RandomSampler):
    """Proposes one value of each number."""

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        return distribution.high


def nothing(seed: int) -> str:
    return "no sampler"


SHARED = optuna.samplers.RandomSampler(seed=3)
OWN = f"{Path(__file__).stem}:"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def open_study(folder: Path, sampler: str, space: Space = SPACE, **search: Any) -> Study:
    folder.mkdir(exist_ok=True)
    # A GP is fitted in half a second; it is to be fitted, but not often.
    values = {"seed": 5, "startup_trials": 7 if sampler == "gp" else 3, **search}
    config = SearchConfig(sampler=sampler, **values)
    return Study(folder, "s", config, space, lambda params: [])


def ask(study: Study) -> tuple[int, dict[str, Any]]:
    asked = study.ask()
    assert asked is not None
    return asked


def play(study: Study, count: int) -> list[tuple[int, dict[str, Any]]]:
    """Asks ``count`` times, two trials at once, and tells each how it went."""
    asked = []
    for _ in range(count):
        number, params = ask(study)
        asked.append((number, params))
        for iteration in (1, 2):
            study.report(number, iteration, params["coef"] * iteration)
        if number % 2:
            for ended in (number, number - 1):
                value = dict(asked).get(ended, {}).get("coef", 0.5)
                finals = {"eval/heldout": value, "kl/response": 3.0, "cost/gpu_seconds": value}
                study.tell(ended, OUTCOMES[ended % len(OUTCOMES)], value, finals)
    return asked


QUICK = [name for name in SAMPLERS if name != "gp"]


@pytest.mark.parametrize(
    "sampler", [*QUICK, f"{OWN}from_random", pytest.param("gp", marks=pytest.mark.long)]
)
def test_a_study_that_is_opened_again_goes_on_as_if_never_closed(
    tmp_path: Path, sampler: str
) -> None:
    constraints = ("kl/response <= 10",)
    whole = play(open_study(tmp_path / "whole", sampler, constraints=constraints), 12)
    parts: list[Any] = []
    for _ in range(3):
        parts += play(open_study(tmp_path / "parts", sampler, constraints=constraints), 4)
    assert parts == whole
    # Children of a small population can be equal to a parent.
    assert "nsga" in sampler or len({str(params) for _, params in whole}) == 12


@pytest.mark.parametrize("goals", [{}, {"eval/heldout": "maximize", "kl/response": "minimize"}])
@pytest.mark.parametrize(("sampler", "kind"), [("tpe", "TPESampler"), ("random", "RandomSampler")])
def test_a_sampler_that_is_seeded_anew_draws_as_one_that_is_made_anew(
    tmp_path: Path, sampler: str, kind: str, goals: dict[str, str]
) -> None:
    named = play(open_study(tmp_path / "named", sampler, objectives=goals), 16)
    # One that is imported is made for each draw.
    options = {"n_startup_trials": 3} if sampler == "tpe" else {}
    made = open_study(
        tmp_path / "made", f"optuna.samplers:{kind}", objectives=goals, options=options
    )
    assert play(made, 16) == named


def _play_in_a_process(folder: Path, sampler: str, count: int) -> None:
    play(open_study(folder, sampler), count)


@pytest.mark.long
def test_another_process_goes_on_as_well(tmp_path: Path) -> None:
    for sampler in SAMPLERS:
        whole = play(open_study(tmp_path / f"{sampler}-whole", sampler), 12)
        folder = tmp_path / f"{sampler}-parts"
        # A new process has other hashes of strings.
        process = multiprocessing.get_context("spawn").Process(
            target=_play_in_a_process, args=(folder, sampler, 8)
        )
        process.start()
        process.join()
        assert process.exitcode == 0
        assert play(open_study(folder, sampler), 4) == whole[8:]


@pytest.mark.parametrize(
    "sampler", ["tpe", "nsga2", "nsga3", pytest.param("gp", marks=pytest.mark.long)]
)
def test_several_objectives_go_on_as_well(tmp_path: Path, sampler: str) -> None:
    goals = {"objectives": {"eval/heldout": "maximize", "cost/gpu_seconds": "minimize"}}
    whole = play(open_study(tmp_path / "whole", sampler, **goals), 12)
    first = play(open_study(tmp_path / "parts", sampler, **goals), 6)
    assert first + play(open_study(tmp_path / "parts", sampler, **goals), 6) == whole


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsga2", "qmc", "random", "grid"])
def test_a_trial_that_was_asked_for_half_gets_the_values_it_would_have_had(
    tmp_path: Path, sampler: str
) -> None:
    whole, cut = (open_study(tmp_path / name, sampler) for name in ("whole", "cut"))
    play(whole, 8)
    play(cut, 8)
    expected = ask(whole)
    # A driver that dies between two parameters leaves the first ones in the storage.
    trial = cut._study.ask()
    suggest(trial, Space({key: SPACE[key] for key in ("lr", "coef")}))
    again = open_study(tmp_path / "cut", sampler)
    assert (8, again.adopt(8)) == ask(again) == expected


def test_the_seed_moves_every_sampler(tmp_path: Path) -> None:
    for sampler in SAMPLERS:
        asked = [
            ask(open_study(tmp_path / f"{sampler}{seed}", sampler, seed=seed))[1] for seed in (1, 2)
        ]
        assert asked[0] != asked[1], sampler


def test_a_sampler_object_draws_anew_when_a_study_goes_on(tmp_path: Path) -> None:
    first = [params for _, params in play(open_study(tmp_path / "a", f"{OWN}SHARED"), 2)]
    SHARED._rng.rng.seed(3)
    again = [params for _, params in play(open_study(tmp_path / "a", f"{OWN}SHARED"), 2)]
    assert all(params not in first for params in again)


def test_options_reach_the_sampler() -> None:
    made: Any = make_sampler(SearchConfig(sampler="tpe", options={"n_ei_candidates": 7}), SPACE)
    assert underneath(made)._n_ei_candidates == 7
    generation: Any = make_sampler(SearchConfig(sampler="nsga2", startup_trials=6), SPACE)
    assert underneath(generation).population_size == 6


@pytest.mark.parametrize(
    ("sampler", "state"),
    [
        (f"{OWN}from_random", TrialState.PRUNED),
        (f"{OWN}SHARED", TrialState.PRUNED),
        ("optuna.samplers:TPESampler", TrialState.PRUNED),
        ("optuna.samplers:NSGAIISampler", TrialState.COMPLETE),
    ],
)
def test_a_sampler_by_import_path_is_told_as_its_class(sampler: str, state: TrialState) -> None:
    study = Study(None, "s", SearchConfig(sampler=sampler), SPACE, lambda params: [])
    for value, outcome in ((0.5, Outcome.COMPLETED), (0.1, Outcome.STOPPED)):
        number, _ = ask(study)
        study.tell(number, outcome, value, {})
    assert study._study.trials[1].state is state


ONE = Space({"x": Parameter(Float(0.0, 1.0)), "c": Parameter(Choice((1, 2)))})
PROBLEMS: list[tuple[dict[str, Any], Space, str]] = [
    ({"sampler": "cmaes"}, ONE, "needs two float or int parameters, but the space has 1"),
    (
        {"sampler": "cmaes", "objectives": {"a/b": "maximize", "c/d": "minimize"}},
        SPACE,
        "knows one objective, but search.objectives has 2",
    ),
    ({"sampler": "nsga2", "startup_trials": 1}, SPACE, "population of nsga2 is at least 2"),
    ({"options": {"n_trials": 3}}, SPACE, "unexpected keyword argument 'n_trials'"),
    ({"options": {"seed": 3}}, SPACE, "'seed' is search.seed"),
    ({"sampler": "grid", "options": {"a": 3}}, SPACE, "grid takes none"),
    ({"sampler": "no_such_module:sampler"}, SPACE, "cannot be imported"),
    ({"sampler": f"{OWN}nothing"}, SPACE, "must make an Optuna sampler, but makes a str"),
    ({"sampler": f"{OWN}from_random", "options": {"wide": 1}}, SPACE, "'wide'"),
]


@pytest.mark.parametrize(("search", "space", "said"), PROBLEMS)
def test_a_sampler_that_cannot_search_the_space_is_refused_in_a_line(
    search: dict[str, Any], space: Space, said: str
) -> None:
    (line,) = sampler_problems(SearchConfig(**search), space)
    assert said in line
    assert line.startswith("search.")
    assert len(line.splitlines()) == 1


def test_samplers_that_fit_have_no_problems() -> None:
    assert [sampler_problems(SearchConfig(sampler=name), SPACE) for name in SAMPLERS] == [[]] * 8


# Grid


GRID = Space(
    {
        "kind": Parameter(Choice(("fixed", "adaptive"))),
        "target": Parameter(Float(1.0, 9.0), when=When("kind", ("adaptive",))),
        "epochs": Parameter(Int(1, 2)),
        "horizon": Parameter(Constant(7)),
    }
)


def test_a_grid_has_each_valid_combination_once() -> None:
    found = cells(GRID, 3)
    assert len(found) == (1 + 3) * 2
    assert {(c["kind"], c.get("target")) for c in found} == {
        ("fixed", None),
        ("adaptive", 1.0),
        ("adaptive", 5.0),
        ("adaptive", 9.0),
    }
    assert cells(Space({}), 3) == [{}]


def test_a_sweep_over_a_grid_ends_with_its_last_cell(tmp_path: Path) -> None:
    point = {"kind": "fixed", "epochs": 2}
    study = open_study(tmp_path, "grid", GRID, grid_points=3, points=(point,))
    asked = [ask(study)[1] for _ in range(9)]
    assert asked[0] == {**point, "horizon": 7}
    assert sorted(map(str, asked[1:])) == sorted(str({**c, "horizon": 7}) for c in cells(GRID, 3))
    assert study.spent
    assert study.ask() is None
    study.add_points([point], "a command")
    assert not study.spent
    assert ask(study)[1] == {**point, "horizon": 7}
    assert study.ask() is None


def test_cells_that_break_a_rule_are_passed_over(tmp_path: Path) -> None:
    config = SearchConfig(sampler="grid", grid_points=3)
    study = Study(tmp_path, "s", config, GRID, lambda p: ["no"] if p["epochs"] == 1 else [])
    asked = list(itertools.takewhile(bool, iter(study.ask, None)))
    assert len(asked) == 4
    assert study.rejected == 4


def test_a_cell_that_is_run_again_takes_no_other_s_place() -> None:
    config = SearchConfig(sampler="grid", grid_points=3)
    study = Study(None, "s", config, GRID, lambda params: [])
    asked = [ask(study)]
    study.tell(0, Outcome.LOST, None, {})
    assert study.again(0) == 1
    asked += [ask(study) for _ in range(7)]
    assert study.spent
    assert len({str(params) for _, params in asked}) == len(cells(GRID, 3)) == 8


def test_a_grid_too_large_to_come_to_its_end_is_refused() -> None:
    wide = Space({f"x{i}": Parameter(Float(0.0, 1.0)) for i in range(6)})
    with pytest.raises(ConfigError, match=f"more than {MAX_CELLS} cells"):
        make_sampler(SearchConfig(sampler="grid"), wide)


@pytest.mark.parametrize(
    ("distribution", "values"),
    [
        (FloatDistribution(0.0, 1.0), [0.0, 0.25, 0.5, 0.75, 1.0]),
        (FloatDistribution(0.0, 1.0, step=0.5), [0.0, 0.5, 1.0]),
        (FloatDistribution(0.0, 1.0, step=0.125), [0.0, 0.25, 0.5, 0.75, 1.0]),
        (FloatDistribution(1e-4, 1.0, log=True), [1e-4, 1e-3, 1e-2, 1e-1, 1.0]),
        (IntDistribution(1, 4), [1, 2, 3, 4]),
        (IntDistribution(0, 100), [0, 25, 50, 75, 100]),
        (IntDistribution(1, 9, step=2), [1, 3, 5, 7, 9]),
        (IntDistribution(1, 256, log=True), [1, 4, 16, 64, 256]),
        (CategoricalDistribution((None, "a", 3)), [None, "a", 3]),
    ],
)
def test_levels_go_from_end_to_end_in_the_scale_of_the_parameter(
    distribution: Any, values: list[Any]
) -> None:
    found = levels(distribution, 5)
    assert found == pytest.approx(values) if isinstance(values[0], float) else found == values
    assert found[0] == values[0]
    assert found[-1] == values[-1]
    assert all(type(a) is type(b) for a, b in zip(found, values, strict=True))


# Sobol


@pytest.mark.parametrize(
    "distribution",
    [
        FloatDistribution(-1.0, 3.0),
        FloatDistribution(0.0, 0.3, step=0.1),
        FloatDistribution(1e-5, 1e-2, log=True),
        IntDistribution(2, 8, step=3),
        IntDistribution(1, 64, log=True),
        CategoricalDistribution(("a", None, True)),
    ],
)
def test_the_unit_interval_covers_a_parameter_and_nothing_else(distribution: Any) -> None:
    values = [at(distribution, i / 1000) for i in range(1000)]
    assert all(distribution._contains(distribution.to_internal_repr(value)) for value in values)
    if isinstance(distribution, FloatDistribution) and distribution.step is None:
        assert values == sorted(values)
        assert values[0] == pytest.approx(distribution.low)
    else:
        assert set(levels(distribution, 1000)) == set(values)


def test_sobol_covers_better_than_chance(tmp_path: Path) -> None:
    study = open_study(tmp_path, "qmc", Space({"coef": Parameter(Float(0.0, 1.0))}))
    asked = [ask(study)[1]["coef"] for _ in range(32)]
    # Of a sequence of 2^5 points each 32nd part holds exactly one.
    assert sorted(int(value * 32) for value in asked) == list(range(32))


def test_a_sampler_whose_proposals_are_all_refused_gives_way_to_chance(tmp_path: Path) -> None:
    space = Space({"coef": Parameter(Float(0.0, 1.0))})
    config = SearchConfig(sampler=f"{OWN}Stubborn", seed=5)
    seen: list[float] = []

    def check(params: Mapping[str, Any]) -> list[str]:
        seen.append(params["coef"])
        if len(seen) == stop:
            raise KeyboardInterrupt
        return ["too large"] if params["coef"] > 0.5 else []

    def play(folder: Path, asked: int) -> list[tuple[int, dict[str, Any]]]:
        folder.mkdir(exist_ok=True)
        study = Study(folder, "s", config, space, check)
        for number in study.open_numbers():
            study.adopt(number)
        return [ask(study) for _ in range(asked)]

    stop = 0
    whole = play(tmp_path / "whole", 1)
    assert whole[0][1]["coef"] <= 0.5
    assert seen[:20] == [1.0] * 20
    assert 1.0 not in seen[20:]
    # A driver that is gone in the middle of such a row changes nothing.
    seen, stop = [], 15
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path / "parts", 1)
    assert play(tmp_path / "parts", 1) == whole
