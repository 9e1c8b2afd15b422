from __future__ import annotations

import math

import pytest

import analysis
from analysis.names import duration, number, shorten
from rlhf_core.errors import ConfigError


def test_best_so_far_counts_eligible_trials_only(builder):
    builder.completed("t0000", 1.0)
    builder.completed("t0001", 9.0, kl=99.0)
    builder.begin("t0002")
    builder.end("t0002", "diverged")
    builder.completed("t0003", 0.5)
    builder.completed("t0004", 2.0)
    builder.begin("t0005")
    course = analysis.best_so_far(analysis.load(builder.path))
    assert course["trial"].tolist() == ["t0000", "t0001", "t0002", "t0003", "t0004"]
    assert course["best"].tolist() == [1.0, 1.0, 1.0, 1.0, 2.0]
    assert course["eligible"].tolist() == [True, False, False, True, True]
    assert course["seconds"].is_monotonic_increasing
    assert course["ended"].tolist() == [1, 2, 3, 4, 5]


def test_best_so_far_when_minimising(builder):
    objective = {"metric": "eval/heldout", "direction": "minimize"}
    builder.write("sweep.json", builder.info | {"objective": objective})
    for trial, value in (("t0000", 1.0), ("t0001", 3.0), ("t0002", 0.5)):
        builder.completed(trial, value)
    assert analysis.best_so_far(analysis.load(builder.path))["best"].tolist() == [1.0, 1.0, 0.5]


def test_a_retried_trial_counts_once_at_its_last_end(builder):
    builder.begin("t0000")
    builder.end("t0000", "lost")
    builder.completed("t0001", 1.0)
    builder.state("t0000", "retried")
    builder.end("t0000", "completed", 2.0)
    course = analysis.best_so_far(analysis.load(builder.path))
    assert course["trial"].tolist() == ["t0001", "t0000"]


def test_final_by_choice(builder):
    for n, (choice, value) in enumerate([("gae", 1.0), ("gae", 3.0), ("rloo", 5.0)]):
        builder.completed(f"t000{n}", value, params={"ppo.estimator": choice})
    builder.begin("t0003", {"ppo.estimator": "rloo"})
    builder.end("t0003", "stopped", 100.0)
    table = analysis.final_by(analysis.load(builder.path), "ppo.estimator")
    assert table["median"].to_dict() == {"gae": 2.0, "rloo": 5.0}
    assert table["trials"].tolist() == [2, 1]
    assert table.loc["gae", "low"] == 1.5


def test_final_by_bins_many_numbers_and_takes_any_metric(simulated):
    sweep = analysis.load(simulated(60))
    table = analysis.final_by(sweep, "optim.policy.lr", "reward/proxy", bins=3)
    assert len(table) == 3
    assert table["trials"].sum() == (sweep.trials["outcome"] == "completed").sum()
    assert " to " in table.index[0]


def test_unknown_names_have_near_misses(simulated):
    sweep = analysis.load(simulated(3))
    with pytest.raises(ConfigError, match=r"optim\.policy\.lr"):
        analysis.final_by(sweep, "optim.polcy.lr")
    with pytest.raises(ConfigError, match="reward/proxy"):
        analysis.final_by(sweep, "optim.policy.lr", "reward/prox")


def test_findings_state_the_numbers(builder):
    builder.completed("t0000", 1.0, kl=5.0)
    builder.completed("t0001", 1.05, kl=6.0)
    text = " ".join(analysis.findings(analysis.load(builder.path)))
    assert "2 completed" in text
    assert "t0001 with eval/heldout = 1.05, 0.05 ahead of t0000, less than twice" in text
    assert "went from 0 at iteration 0 to 1.05 at iteration 2" in text


def test_findings_correlation_has_its_sign(builder):
    for n in range(5):
        builder.completed(f"t000{n}", float(n), kl=10.0 - n)
    assert any("-1.00 (5 trials)" in s for s in analysis.findings(analysis.load(builder.path)))


def test_findings_without_an_eligible_trial(builder):
    assert analysis.findings(analysis.load(builder.path))[-1].startswith("No trial is eligible")


def test_shorten_keeps_what_tells_keys_apart():
    keys = ["ppo.kl.coef", "optim.policy.lr", "optim.critic.lr", "lr", "ppo.clip_range_low"]
    assert list(shorten(keys).values()) == [
        "kl.coef", "policy.lr", "critic.lr", "lr", "clip_range_low",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.27e-4, "1.27e-4"), (1e-5, "1e-5"), (0.5, "0.5"), (14.6, "14.6"), (20.0, "20"),
        (-0.0034, "-0.0034"), (0.0, "0"), (12345.6, "12346"), (2e9, "2e9"), (8, "8"),
        (True, "True"), (math.nan, "-"), (None, "-"), ("gae", "gae"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5 s"), (59.6, "1 min"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (90000, "1 d 1 h"),
     (None, "-")],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text
