from __future__ import annotations

from sweeps.decide.failures import SameFailure


def test_the_first_trials_failing_alike_give_the_sweep_up() -> None:
    rule = SameFailure(patience=3)
    assert [rule.decide(True, "KeyError: x") for _ in range(2)] == [None, None]
    found = rule.decide(True, "KeyError: x")
    assert found is not None
    assert "the first 3 trials all failed with KeyError: x" in found


def test_another_error_or_another_outcome_among_the_first_keeps_it_going() -> None:
    rule = SameFailure(patience=2)
    assert [rule.decide(True, reason) for reason in ("a", "b", "b", "b")] == [None] * 4
    rule = SameFailure(patience=2)
    assert rule.decide(False, "") is None
    assert [rule.decide(True, "a") for _ in range(3)] == [None] * 3
