from __future__ import annotations

from sweeps.decide.guards import Guards
from sweeps.decide.stopping import Asha, MedianStopping


def test_asha_rungs_end_before_the_horizon() -> None:
    assert Asha(grace=2, reduction=3, horizon=20).rungs(100) == [2, 6, 18]
    assert Asha(grace=5, reduction=2, horizon=20).rungs(9) == [5]
    assert Asha(grace=5, reduction=2, horizon=None).rungs(40) == [5, 10, 20, 40]


def test_asha_keeps_the_best_third_of_those_that_came_so_far() -> None:
    asha = Asha(grace=2, reduction=3, horizon=100)
    # Until three trials have reached the rung nobody is behind.
    assert asha.decide("a", 2, 0.1) is None
    assert asha.decide("b", 2, 0.2) is None
    # Of three values one goes on: 0.2 is the best, 0.15 is not.
    reason = asha.decide("c", 2, 0.15)
    assert reason is not None
    assert "0.15" in reason
    assert "rung 2" in reason
    # Of six values two go on: 0.9, 0.2.
    assert asha.decide("d", 2, 0.9) is None
    assert asha.decide("e", 2, 0.05) is not None
    assert asha.decide("f", 2, 0.2) is None


def test_asha_judges_a_trial_once_at_each_rung() -> None:
    asha = Asha(grace=1, reduction=2, horizon=8)
    assert asha.decide("a", 1, 1.0) is None
    assert asha.decide("b", 1, 2.0) is None
    # The next result of b before rung 2 is not a decision point.
    assert asha.decide("a", 1, -5.0) is None


def test_asha_takes_the_first_value_at_or_after_a_rung() -> None:
    asha = Asha(grace=3, reduction=2, horizon=50)
    assert asha.decide("a", 5, 1.0) is None
    assert asha.decide("b", 4, 0.5) is not None


def test_asha_does_not_go_back_to_a_rung_that_was_jumped_over() -> None:
    asha = Asha(grace=1, reduction=2, horizon=100)
    assert asha.decide("a", 4, 1.0) is None
    assert asha.decide("a", 5, -9.0) is None
    assert asha.decide("b", 2, 0.0) is None


def test_median_compares_the_best_so_far_with_the_others_means() -> None:
    rule = MedianStopping(grace=2, min_trials=2)
    for trial, values in {"a": (1.0, 3.0), "b": (2.0, 4.0)}.items():
        for iteration, value in enumerate(values, 1):
            assert rule.decide(trial, iteration, value) is None
    # Means of the others up to iteration 2 are 2 and 3, their median 2.5.
    assert rule.decide("c", 1, 2.4) is None
    reason = rule.decide("c", 2, 2.3)
    assert reason is not None
    assert "2.4" in reason
    assert "2.5" in reason
    assert rule.decide("d", 2, 2.6) is None


def test_median_waits_for_grace_and_for_enough_trials() -> None:
    rule = MedianStopping(grace=3, min_trials=2)
    assert rule.decide("a", 5, 1.0) is None
    assert rule.decide("b", 5, 1.0) is None
    assert rule.decide("c", 2, -9.0) is None
    alone = MedianStopping(grace=1, min_trials=2)
    assert alone.decide("a", 5, 1.0) is None
    assert alone.decide("b", 5, -9.0) is None


def test_a_missing_value_is_no_decision() -> None:
    assert Asha(1, 2, 10).decide("a", 1, None) is None
    assert MedianStopping(1, 1).decide("a", 1, None) is None


def test_guards_name_the_number_that_is_not_finite() -> None:
    guards = Guards(max_kl=None, patience=1)
    assert guards.decide("a", {"policy/loss": 1.0}) is None
    assert guards.decide("a", {"policy/loss": float("nan")}) == "policy/loss is nan"


def test_the_kl_guard_counts_iterations_in_a_row() -> None:
    guards = Guards(max_kl=10.0, patience=2)
    assert guards.decide("a", {"kl/response": 11.0}) is None
    assert guards.decide("a", {"kl/response": 9.0}) is None
    assert guards.decide("a", {"kl/response": 11.0}) is None
    # Another trial has its own count, and a result without KL changes nothing.
    assert guards.decide("b", {"kl/response": 11.0}) is None
    assert guards.decide("a", {"eval/heldout": 1.0}) is None
    assert "guards.max_kl = 10" in (guards.decide("a", {"kl/response": 12.0}) or "")
