from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

import analysis
from analysis.objective import Constraint
from rlhf_core.errors import ConfigError


def rendered(thing) -> list[str]:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(thing)
    return console.export_text().splitlines()


@pytest.mark.parametrize(
    ("direction", "order"), [("maximize", ["t0001", "t0002", "t0000"]),
                             ("minimize", ["t0000", "t0002", "t0001"])]
)  # fmt: skip
def test_ranks_follow_the_direction(builder, direction, order):
    builder.write(
        "sweep.json",
        builder.info | {"objective": {"metric": "eval/heldout", "direction": direction}},
    )
    for trial, value in (("t0000", -1.0), ("t0001", 3.0), ("t0002", 2.0)):
        builder.completed(trial, value)
    sweep = analysis.load(builder.path)
    board = analysis.leaderboard(sweep)
    assert board["trial"].tolist() == order
    assert board["rank"].tolist() == [1, 2, 3]
    assert analysis.best(sweep) == order[0]


def test_ineligible_trials_stand_below_with_their_reason(every_outcome):
    every_outcome.completed("t0010", 9.0, kl=25.0)
    every_outcome.completed("t0011", None)
    board = analysis.leaderboard(analysis.load(every_outcome.path))
    assert board["trial"].tolist()[:2] == ["t0001", "t0000"]
    assert board["rank"].notna().sum() == 2
    reasons = dict(zip(board["trial"], board["why_not"], strict=True))
    assert reasons["t0000"] == ""
    assert reasons["t0010"] == "eval/kl_response is 25, needs <= 20"
    assert reasons["t0011"] == "no finite eval/heldout"
    assert reasons["t0002"] == "stopped: stopped by rule"
    assert reasons["t0007"] == "interrupted"
    assert reasons["t0008"] == "still running"
    assert board["trial"].iloc[2] == "t0010", "the ineligible are in order of value as well"


def test_columns(every_outcome):
    board = analysis.leaderboard(analysis.load(every_outcome.path), top=1)
    row = board.iloc[0]
    assert len(board) == 1
    assert (row["value"], row["stderr"], row["kl"]) == (2.0, 0.1, 5.0)
    assert (row["iterations"], row["gpu_seconds"]) == (2, 7.0)
    assert "params.optim.policy.lr" in board


def test_stderr_only_for_an_objective_that_has_one(builder):
    builder.completed("t0000", 1.0)
    info = builder.info | {"objective": {"metric": "reward/proxy", "direction": "maximize"}}
    builder.write("sweep.json", info)
    assert "stderr" not in analysis.leaderboard(analysis.load(builder.path))


def test_equal_values_keep_the_order_of_numbers(builder):
    for trial in ("t0002", "t0000", "t0001"):
        builder.completed(trial, 1.0)
    board = analysis.leaderboard(analysis.load(builder.path))
    assert board["trial"].tolist() == ["t0000", "t0001", "t0002"]


def test_a_constraint_that_was_not_measured_is_broken(builder):
    builder.write("sweep.json", builder.info | {"constraints": ["policy/entropy >= 0.1"]})
    builder.completed("t0000", 1.0)
    board = analysis.leaderboard(analysis.load(builder.path))
    assert board["why_not"].tolist() == ["policy/entropy was not measured, needs >= 0.1"]


def test_no_eligible_trial_says_how_many_and_why(builder):
    builder.completed("t0000", 1.0, kl=30.0)
    builder.completed("t0001", 1.0, kl=40.0)
    builder.begin("t0002")
    builder.end("t0002", "diverged")
    with pytest.raises(ConfigError) as caught:
        analysis.best(analysis.load(builder.path))
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert "among 3: 2 break eval/kl_response <= 20, 1 diverged" in text


def best_refused(builder) -> str:
    with pytest.raises(ConfigError) as caught:
        analysis.best(analysis.load(builder.path))
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_failed_trials_tell_their_reasons_with_counts_and_where_the_error_is(builder):
    for number, reason in enumerate(["KeyError: 'rare'", "KeyError: 'often'", "KeyError: 'often'"]):
        builder.begin(f"t000{number}")
        builder.end(f"t000{number}", "failed", reason=reason)
    (builder.path / "trials/t0000/error.txt").write_text("Traceback")
    text = best_refused(builder)
    assert "among 3: 3 failed; 2 x KeyError: 'often' | 1 x KeyError: 'rare'" in text
    assert text.index("trials/t0000/error.txt") < text.index("correct the error")
    assert "loosen" not in text


@pytest.mark.parametrize(
    ("outcome", "advice"),
    [("diverged", "guards.max_kl"), ("stopped", "scheduler.grace"), ("infeasible", "resources"),
     ("lost", "budget.retries")],
)  # fmt: skip
def test_the_advice_follows_the_cause(builder, outcome, advice):
    builder.begin("t0000")
    builder.end("t0000", outcome, reason="a reason")
    assert advice in best_refused(builder)


def test_an_interrupted_sweep_names_the_furthest_trial_or_the_best_completed_one(builder):
    for trial, iteration, value in (("t0000", 1, 0.4), ("t0001", 3, 0.25)):
        builder.begin(trial)
        builder.report(trial, iteration, eval__heldout=value)
    for trial in ("t0000", "t0001"):
        builder.state(trial, "interrupted")
    text = best_refused(builder)
    assert "2 interrupted" in text
    assert "none was completed; the furthest is t0001 with eval/heldout 0.25 at iteration 3" in text
    builder.completed("t0002", 0.1)
    assert analysis.best(analysis.load(builder.path)) == "t0002"


def test_no_trial_at_all(builder):
    with pytest.raises(ConfigError, match="no trials yet"):
        analysis.best(analysis.load(builder.path))
    assert analysis.leaderboard(analysis.load(builder.path)).empty


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("a/b <= 2", 2.0, True), ("a/b < 2", 2.0, False), ("a/b>=2", 2.0, True),
        ("a/b > 2", 2.0, False), ("a/b > -1e-3", 0.0, True), ("a/b < 2", math.nan, False),
        ("a/b >= 2", math.nan, False),
    ],
)  # fmt: skip
def test_operators(text, value, holds):
    assert Constraint.parse(text).holds(value) is holds


@pytest.mark.parametrize("text", ["a/b == 2", "a/b <= two", "<= 2", "a/b <=", "a <= nan", 3, None])
def test_what_is_no_constraint(text):
    with pytest.raises(ConfigError, match="a constraint is"):
        Constraint.parse(text)


def test_table_fits_and_counts_what_it_leaves_out(simulated):
    lines = rendered(analysis.render_leaderboard(analysis.load(simulated(24))))
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert "policy.lr" in text
    assert "optim.policy" not in text
    assert "more parameters" in text
    assert "…" not in text, "no cell had to be cut"


def test_table_of_every_outcome_fits(every_outcome):
    every_outcome.completed("t0010", 9.0, kl=25.0)
    lines = rendered(analysis.render_leaderboard(analysis.load(every_outcome.path)))
    assert max(map(len, lines)) <= 100
    assert any("eval/kl_response is 25" in line for line in lines)


def test_the_table_prefers_parameters_that_go_with_the_objective_and_names_the_rest(builder):
    names = [f"group.parameter_of_some_length_{letter}" for letter in "abcd"]
    for number in range(6):
        params = dict.fromkeys(names, 1.0) | {names[1]: number % 2, names[3]: float(number)}
        builder.completed(f"t000{number}", float(number), params=params)
    text = "\n".join(rendered(analysis.render_leaderboard(analysis.load(builder.path))))
    header, rest = text.split("more parameter")
    assert "some_length_d" in header
    assert "some_length_a" not in header
    assert "some_length_a" in rest


def test_the_table_tells_equal_reasons_once_below(builder):
    builder.completed("t0000", 1.0)
    for trial in ("t0001", "t0002"):
        builder.begin(trial)
        builder.end(trial, "failed", reason="KeyError: [odd]")
    text = "\n".join(rendered(analysis.render_leaderboard(analysis.load(builder.path))))
    assert "t0001, t0002 failed: KeyError: [odd]" in " ".join(text.split())
