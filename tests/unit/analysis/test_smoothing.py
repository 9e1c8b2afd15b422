from __future__ import annotations

import io
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from run_directories import Builder

import analysis
from analysis.report.pages import render
from analysis.space import Axis, axes
from analysis.statistics import smoothed
from analysis.statistics.smoothing import FURTHEST, LENGTHS, MOST, NOISES, Run, encoded
from sweeps.cli import main

LINE = {"x": Axis("x", "float", low=0.0, high=1.0)}


def runs_on(values: list[float], places: list[float] | None = None, **params: Any) -> list[Run]:
    """Whole runs along ``x``, evenly spaced unless places are given."""
    places = places or np.linspace(0, 1, len(values)).tolist()
    return [Run({"x": x, **params}, v, True) for x, v in zip(places, values, strict=True)]


def by_hand(points: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The same posterior without eigenvectors: one linear system for each point of the grid."""
    count = len(values)
    ones, centre, spread = np.ones(count), values.mean(), values.std()
    z = (values - centre) / spread
    found = []
    for length, noise in itertools.product(LENGTHS, NOISES):
        kernel = np.empty((count, count))
        for i, j in np.ndindex(count, count):
            r = math.sqrt(5) * math.dist(points[i], points[j])
            r /= length * math.sqrt(points.shape[1])
            kernel[i, j] = (1 + r + r * r / 3) * math.exp(-r)
        whole = (1 - noise) * kernel + noise * np.eye(count)
        sure = ones @ np.linalg.solve(whole, ones)
        mean = ones @ np.linalg.solve(whole, z) / sure
        rest = np.linalg.solve(whole, z - mean)
        _, size = np.linalg.slogdet(whole)
        misfit = math.log((z - mean) @ rest)
        evidence = -0.5 * (size + math.log(sure) + (count - 1) * misfit)
        found.append((evidence, mean + (1 - noise) * kernel @ rest))
    top = max(evidence for evidence, _ in found)
    weights = np.array([math.exp(evidence - top) for evidence, _ in found])
    means = np.array([mean for _, mean in found])
    return np.asarray(centre + spread * (weights / weights.sum()) @ means)


def test_the_posterior_is_that_of_one_linear_system_for_each_point_of_the_grid() -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(9, 2))
    values = rng.normal(size=9)
    space = {key: Axis(key, "float", low=0.0, high=1.0) for key in ("a", "b")}
    runs = [
        Run({"a": float(a), "b": float(b)}, float(v), True)
        for (a, b), v in zip(points, values, strict=True)
    ]
    assert smoothed(runs, space) == pytest.approx(by_hand(points, values), rel=1e-7)


def test_a_lucky_run_among_poor_ones_is_behind_a_good_one_among_good_ones() -> None:
    found = smoothed(runs_on([0.0, 0.1, 1.0, 0.05, 0.1, 0.7, 0.8, 0.85, 0.9, 0.8]), LINE)
    assert found is not None
    assert found.argmax() in (7, 8)
    assert found[2] < 0.6


def test_runs_that_were_cut_off_pull_their_neighbours_down_and_have_no_value_themselves() -> None:
    whole = runs_on([0.8, 0.7, 0.75, 0.3, 0.72], [0.1, 0.12, 0.5, 0.6, 0.9])
    cut = [Run({"x": x}, -0.5, False) for x in (0.08, 0.11, 0.14)]
    alone, beside = smoothed(whole, LINE), smoothed(whole + cut, LINE)
    assert alone is not None
    assert beside is not None
    assert alone.argmax() == 0
    assert beside[:5].argmax() not in (0, 1)
    assert np.isnan(beside[5:]).all()


def test_equal_runs_count_once_and_equal_parameters_on_other_seeds_have_equal_values() -> None:
    runs = runs_on([0.1, 0.9, 0.4, 0.3, 0.2], [0.0, 0.3, 0.5, 0.7, 1.0], seed=1)
    once = smoothed(runs, LINE)
    again = smoothed([*runs, *[runs[1]] * 5], LINE)
    assert once is not None
    assert again is not None
    assert again[:5].tolist() == pytest.approx(once.tolist())
    # A run that was cut off and then made again is the whole one.
    cut = runs[1]._replace(value=-5.0, whole=False)
    assert smoothed([*runs, cut], LINE)[:5] == pytest.approx(once)  # type: ignore[index]
    other = Run({"x": 0.3, "seed": 2}, 0.1, True)
    both = smoothed([*runs, other], LINE)
    assert both is not None
    assert both[1] == both[5]
    assert both[1] < once[1]


def test_without_noise_the_best_stays_the_best() -> None:
    values = -((np.linspace(0, 1, 13) - 0.4) ** 2)
    found = smoothed(runs_on(values.tolist()), LINE)
    assert found is not None
    assert found.argmax() == values.argmax()
    assert found == pytest.approx(values, abs=0.01)


def test_values_may_be_shifted_scaled_and_turned_round() -> None:
    values = [0.1, 0.9, 0.4, 0.3, 0.2, 0.6, -3.0]
    plain = smoothed(runs_on(values), LINE)
    assert plain is not None
    moved = smoothed(runs_on([7 + 100 * v for v in values]), LINE)
    assert moved == pytest.approx(7 + 100 * plain)
    turned = smoothed(runs_on([-v for v in values]), LINE, ascending=True)
    assert turned == pytest.approx(-plain)


def test_a_crash_counts_no_more_than_so_far_below_the_others() -> None:
    usual = [0.0, 0.1, 0.2, 0.35, 0.3, 0.2, 0.1]
    reach = FURTHEST * (0.35 - 0.1)
    a_little, far = (smoothed(runs_on([*usual, 0.1 - reach * k]), LINE) for k in (1.2, 1e9))
    assert a_little is not None
    assert far is not None
    assert far[:7] == pytest.approx(a_little[:7])


@pytest.mark.parametrize(
    "runs",
    [
        runs_on([0.1, 0.5, 0.3, 0.2]),
        [*runs_on([0.1, 0.5, 0.3, 0.2]), Run({"x": 0.6}, 0.1, False)],
        [*runs_on([0.1, 0.5, 0.3, 0.2]), *runs_on([0.1])],
        runs_on([0.5] * 8),
        runs_on([0.1, 0.5, 0.3, 0.2, 0.4], [0.5] * 5),
        [],
    ],
    ids=["four", "five with one cut off", "one twice", "equal values", "one point", "none"],
)
def test_where_nothing_can_be_said_nothing_is(runs: list[Run]) -> None:
    assert smoothed(runs, LINE) is None


def test_many_runs_are_fitted_by_some_and_all_have_values() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(size=3 * MOST)
    noisy = np.sin(3 * x) + rng.normal(scale=0.5, size=x.size)
    found = smoothed(runs_on(noisy.tolist(), x.tolist()), LINE)
    assert found is not None
    assert np.abs(found - np.sin(3 * x)).max() < 0.25


def test_parameters_lie_on_the_scale_of_their_domains() -> None:
    space = {
        "parameters": [
            {"key": "lr", "type": "float", "low": 1e-6, "high": 1e-2, "log": True},
            {"key": "gamma", "type": "logit", "low": 0.9, "high": 0.999},
            {"key": "batch", "type": "pow2", "low": 4, "high": 64},
            {"key": "kind", "type": "choice", "values": ["a", None, "b"]},
            {"key": "depth", "type": "int", "low": 0, "high": 4, "when": {"kind": "b"}},
            {"key": "seed", "type": "int", "low": 0, "high": 9},
            {"key": "same", "type": "float", "low": 0.0, "high": 1.0},
        ]
    }
    odds = [math.log(g / (1 - g)) for g in (0.9, 0.99, 0.999)]
    rows = [
        {"lr": 1e-6, "gamma": 0.9, "batch": 8, "kind": "a", "seed": 1, "same": 0.5},
        {"lr": 1e-4, "gamma": 0.99, "batch": 64, "kind": None, "seed": 2, "same": 0.5},
        {"lr": 1e-2, "gamma": 0.999, "batch": 4, "kind": "b", "depth": 1, "seed": 3, "same": 0.5},
    ]
    step = math.sqrt(0.5)
    assert encoded(rows, axes(space)) == pytest.approx(
        np.array(
            [
                [0.0, 0.0, 0.25, step, 0, 0, 0.5],
                [0.5, (odds[1] - odds[0]) / (odds[2] - odds[0]), 1.0, 0, step, 0, 0.5],
                [1.0, 1.0, 0.0, 0, 0, step, 0.25],
            ]
        )
    )


def test_values_that_no_domain_allows_are_still_encoded() -> None:
    space = {"lr": Axis("lr", "float", log=True, low=1e-6, high=1e-2), "n": Axis("n")}
    rows = [{"lr": -1.0, "n": 3}, {"lr": 1e-3, "n": "many"}, {"lr": 1e-4}]
    assert np.isfinite(encoded(rows, space)).all()


SMOOTH: dict[str, Any] = {"selection": {"smooth": True}, "scheduler": {"kind": "median"}}
# A lucky trial among poor ones, and good ones elsewhere.
VALUES = [0.1, 0.0, 1.0, 0.05, 0.1, 0.7, 0.8, 0.85, 0.9, 0.8]


def fill(builder: Builder, values: list[float] = VALUES) -> Path:
    for number, value in enumerate(values):
        place = number / (len(values) - 1)
        builder.completed(f"t{number:04}", value, params={"ppo.clip_range_low": 0.05 + place / 4})
    return builder.path


def text(shown: Any) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()


def test_everything_that_ranks_a_sweep_agrees_on_smoothed_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = analysis.load(fill(Builder(tmp_path / "run", config=SMOOTH)))
    board = analysis.leaderboard(sweep)
    first = board["trial"].iloc[0]
    assert first in ("t0007", "t0008")
    assert board["smoothed"].is_monotonic_decreasing
    assert board.set_index("trial")["value"].loc["t0002"] == 1.0
    assert analysis.best(sweep) == first
    assert first in repr(sweep)
    assert analysis.status(sweep)["best"]["trial"] == first  # type: ignore[index]
    assert main(["best", str(sweep.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["trial"], told["smoothed"]) == (first, board["smoothed"].iloc[0])
    assert main(["best", str(sweep.path)]) == 0
    assert "smoothed over the parameters, by which trials rank" in capsys.readouterr().out
    # Within the reach of smoothed values: what the lucky trial measured does not count.
    near = analysis.cheapest(sweep, analysis.Within.parse("0%"))
    assert (near.trial, near.best_value) == (first, board["smoothed"].iloc[0])
    assert any(
        f"trials is {first} with" in line and "smoothed" in line
        for line in analysis.findings(sweep)
    )
    shown = text(analysis.render_leaderboard(sweep))
    assert "smoothed" in shown
    assert "ranked by values smoothed over the parameters" in shown.replace("\n", " ")
    assert "ranked by values smoothed over the parameters" in render(sweep)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"selection": {"top": 4}},
        {"selection": {"smooth": False}},
        {"selection": {"smooth": True}, "scheduler": {"kind": "pbt"}},
    ],
    ids=["foreign", "older", "off", "population"],
)
def test_a_sweep_that_does_not_say_so_ranks_by_measured_values(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    sweep = analysis.load(fill(Builder(tmp_path / "run", config=config)))
    board = analysis.leaderboard(sweep)
    assert board["trial"].iloc[0] == analysis.best(sweep) == "t0002"
    assert "smoothed" not in board
    assert "smoothed" not in text(analysis.render_leaderboard(sweep))


def test_trials_that_break_a_constraint_or_did_not_complete_have_no_rank(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", config=SMOOTH)
    fill(builder)
    builder.completed("t0010", 5.0, kl=99.0, params={"ppo.clip_range_low": 0.3})
    builder.begin("t0011", {"ppo.clip_range_low": 0.2})
    builder.report("t0011", 1, eval__heldout=9.0)
    builder.end("t0011", "stopped", 9.0, iteration=1)
    board = analysis.leaderboard(analysis.load(builder.path)).set_index("trial")
    assert board.index[-2:].tolist() == ["t0011", "t0010"]
    assert board["rank"].isna().tolist() == [False] * 10 + [True] * 2
    assert np.isnan(board["smoothed"].loc["t0011"])


def test_the_smallest_smoothed_value_is_first_where_less_is_better(tmp_path: Path) -> None:
    goal = {"metric": "eval/heldout", "direction": "minimize"}
    path = fill(Builder(tmp_path / "run", config=SMOOTH, objective=goal), [-v for v in VALUES])
    board = analysis.leaderboard(analysis.load(path))
    assert board["trial"].iloc[0] in ("t0007", "t0008")
    assert board["smoothed"].is_monotonic_increasing


def test_test_runs_stand_above_smoothed_values(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", config=SMOOTH)
    fill(builder)
    for number, (of, value) in enumerate((("t0001", 0.9), ("t0008", 0.8))):
        about = {"number": None, "purpose": "test", "of": of}
        trial = f"t{number + 10:04}"
        for state in ("queued", "placed", "started"):
            builder.state(trial, state, **about)
        builder.report(trial, 2, eval__heldout=value, eval__kl_response=5.0)
        builder.end(trial, "completed", value, iteration=2, **about)
    sweep = analysis.load(builder.path)
    board = analysis.leaderboard(sweep)
    assert board["trial"].tolist()[:2] == ["t0001", "t0008"]
    assert board["smoothed"].iloc[2:].is_monotonic_decreasing
    shown = text(analysis.render_leaderboard(sweep)).replace("\n", " ")
    assert "trials without test runs are ranked by values smoothed over the parameters" in shown


def test_early_values_count_only_where_they_are_no_more_than_whole_ones() -> None:
    whole = runs_on([0.2, 0.5, 0.9, 0.7, 0.3, 0.6])
    early = [Run({"x": x}, 0.0, False) for x in np.linspace(0.81, 0.99, 7).tolist()]
    alone = smoothed(whole, LINE)
    assert alone is not None
    few, many = smoothed([*whole, *early[:6]], LINE), smoothed([*whole, *early], LINE)
    assert few is not None
    assert many is not None
    # Six say that the right end is bad; seven would say that everything is.
    assert few[5] < alone[5]
    assert many[:6].tolist() == alone.tolist()
    assert np.isnan(many[6:]).all()


@pytest.mark.filterwarnings("error")
def test_huge_numbers_are_smoothed_or_told_as_they_are() -> None:
    values = [0.0, 0.1, 1.0, 0.05, 0.1, 0.7]
    small = smoothed(runs_on(values), LINE)
    assert small is not None
    huge = smoothed(runs_on([v * 1e299 for v in values]), LINE)
    assert huge == pytest.approx(small * 1e299)
    opposite = smoothed(runs_on([1.7e308, -1.7e308, 0.0, 1.0, 2.0, 3.0]), LINE)
    assert opposite is None or np.isfinite(opposite).all()
    wide = {"x": Axis("x", "float", low=-1e308, high=1.7e308)}
    assert smoothed(runs_on(values, [-1e308, 0.0, 1.0, 1e308, 1.5e308, 1.7e308]), wide) is None
