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
    assert reasons["t0002"] == "stopped"
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
