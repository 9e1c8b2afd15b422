from __future__ import annotations

from sweeps.decide.failures import SameFailure


def test_the_first_trials_failing_alike_give_the_sweep_up() -> None:
    rule = SameFailure(patience=3)
    assert [rule.decide(number, True, "KeyError: x") for number in (1, 0)] == [None, None]
    found = rule.decide(2, True, "KeyError: x")
    assert found is not None
    assert "the first 3 trials all failed with KeyError: x" in found


def test_another_error_or_another_outcome_among_the_first_keeps_it_going() -> None:
    rule = SameFailure(patience=2)
    assert [rule.decide(n, True, reason) for n, reason in enumerate("abbb")] == [None] * 4
    rule = SameFailure(patience=2)
    assert rule.decide(0, False, "") is None
    assert [rule.decide(number, True, "a") for number in (1, 2, 3)] == [None] * 3


def test_trials_that_fail_at_once_do_not_outrun_one_that_began_before_them() -> None:
    rule = SameFailure(patience=3)
    assert [rule.decide(number, True, "no device") for number in (1, 2, 3, 4)] == [None] * 4
    assert rule.decide(0, False, "") is None
    assert rule.decide(5, True, "no device") is None
