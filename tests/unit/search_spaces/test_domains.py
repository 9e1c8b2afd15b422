from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from search_spaces import Choice, Constant, Float, Int, Logit, Pow2, SpaceError


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        (Float(0.1, 0.3), [0.1, 0.3, 0.2], [0.0999, 0.3001, "0.2", None, float("nan"), True]),
        (Float(1, 3), [1, 2, 3.0], [0, 4, True]),
        (Float(1e-5, 1e-3, log=True), [1e-5, 1e-3], [0.0, 1e-6]),
        # 0.1 + 2 * 0.1 is 0.30000000000000004: a grid needs slack, but not much.
        (Float(0.1, 0.5, step=0.1), [0.1, 0.3, 0.1 + 2 * 0.1, 0.5], [0.15, 0.3001]),
        (Logit(0.9, 0.99), [0.9, 0.99, 0.95], [0.89, 0.991, 1, True, "0.95"]),
        (Pow2(4, 16), [4, 8, 16], [2, 5, 32, 8.0, True]),
        (Int(1, 4), [1, 4], [0, 5, 2.0, True, "2"]),
        (Int(2, 8, step=3), [2, 5, 8], [3, 11]),
        (Choice((1, "a", None)), [1, 1.0, "a", None], [True, "b", 2, [1]]),
        (Choice((True, 1)), [True, 1], [False, 0]),
        (Constant(1), [1, 1.0], [True, 2, None]),
    ],
)
def test_contains(domain: Any, inside: list[object], outside: list[object]) -> None:
    assert [v for v in inside if not domain.contains(v)] == []
    assert [v for v in outside if domain.contains(v)] == []


@pytest.mark.parametrize(
    ("kind", "kwargs", "expected"),
    [
        (Float, {"low": 2, "high": 1}, "low < high must hold, got low=2.0 and high=1.0"),
        (Float, {"low": 1, "high": 1}, "low < high must hold"),
        (Float, {"low": -1e308, "high": 1.7e308}, "high - low must be a number"),
        (Float, {"low": -1e308, "high": 1.7e308, "step": 1}, "high - low must be a number"),
        (Float, {"low": 0, "high": 1, "log": True}, "a log domain needs low > 0, got low=0.0"),
        (Float, {"low": 0.1, "high": 1, "log": True, "step": 0.1}, "takes no step"),
        (Float, {"low": 0, "high": 1, "step": 0.3}, "step must divide high - low"),
        (Float, {"low": 0, "high": 1, "step": -0.5}, "step must be above 0"),
        (Float, {"low": 0, "high": float("inf")}, "finite numbers, got high=inf"),
        (Float, {"low": 0, "high": 10**400}, "finite numbers, got high=1000"),
        (Float, {"low": "0", "high": 1}, "finite numbers, got low='0'"),
        (Float, {"low": 0, "high": True}, "finite numbers, got high=True"),
        (Float, {"low": 0, "high": 1, "log": "yes"}, "log must be true or false"),
        (Logit, {"low": 0, "high": 0.5}, r"lies within \(0, 1\), got low=0.0"),
        (Logit, {"low": 0.5, "high": 1}, r"lies within \(0, 1\), got high=1.0"),
        (Logit, {"low": 0.9, "high": 0.5}, "low < high must hold"),
        (Pow2, {"low": 0, "high": 8}, "needs powers of two, got low=0; use low=1"),
        (Pow2, {"low": 2, "high": 24}, "got high=24; use high=16"),
        (Pow2, {"low": 8, "high": 2}, "low < high must hold"),
        (Pow2, {"low": 1, "high": 4.0}, "needs integers, got high=4.0"),
        (Int, {"low": 1, "high": 4.0}, "needs integers, got high=4.0"),
        (Int, {"low": 4, "high": 1}, "low < high must hold"),
        (Int, {"low": 1, "high": 4, "step": 2}, "use high=3"),
        (Int, {"low": 1, "high": 4, "step": 0}, "step must be above 0"),
        (Int, {"low": 0, "high": 4, "log": True}, "needs low >= 1"),
        (Int, {"low": 1, "high": 5, "log": True, "step": 2}, "takes no step"),
        (Choice, {"values": ()}, "at least one value"),
        (Choice, {"values": "abc"}, "at least one value"),
        (Choice, {"values": (1, 2, 1.0)}, "got 1.0 twice"),
        (Choice, {"values": (1, [2])}, r"got \[2\]"),
        (Choice, {"values": (float("nan"),)}, "got nan"),
        (Constant, {"value": [1]}, "strings, finite numbers"),
    ],
)
def test_refuses(kind: Any, kwargs: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpaceError, match=expected):
        kind(**kwargs)


def test_all_problems_of_a_domain_come_together() -> None:
    with pytest.raises(SpaceError) as caught:
        Float(0.0, -1.0, log=True, step=-1.0)
    assert len(caught.value.problems) == 4


def test_error_survives_pickling_and_is_a_value_error() -> None:
    error = pickle.loads(pickle.dumps(SpaceError(["one", "two"])))
    assert isinstance(error, ValueError)
    assert error.problems == ("one", "two")
    assert str(error) == "one\ntwo"
    assert SpaceError("single").problems == ("single",)


def test_domains_are_frozen_values() -> None:
    domain = Float(0, 1)
    assert domain == Float(0.0, 1.0)
    assert isinstance(domain.low, float)
    assert Choice([1, 2]) == Choice((1, 2))  # type: ignore[arg-type]  # What JSON gives.
    with pytest.raises(dataclasses.FrozenInstanceError):
        domain.low = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("domain", "middle"),
    [
        (Float(1, 3), 2.0),
        (Float(1e-6, 1e-2, log=True), pytest.approx(1e-4)),
        (Float(0.1, 0.5, step=0.1), pytest.approx(0.3)),
        # 0.9 is 9 to 1 and 0.99 is 99 to 1: halfway is sqrt(9 x 99) to 1.
        (Logit(0.9, 0.99), pytest.approx(1 / (1 + 1 / (9 * 99) ** 0.5))),
        (Int(1, 5, step=2), 3),
        (Int(1, 100, log=True), 10),
        (Pow2(1, 16), 4),
        (Choice(("a", "b", None)), "b"),
        (Constant(7), 7),
    ],
)
def test_at_runs_from_one_end_to_the_other(domain: Any, middle: Any) -> None:
    assert domain.at(0.5) == middle
    if hasattr(domain, "low"):
        assert (domain.at(0.0), domain.at(1.0)) == (domain.low, domain.high)


def test_each_power_of_two_is_as_likely_as_the_next() -> None:
    shares = [(i + 0.5) / 40 for i in range(40)]
    drawn = [Pow2(2, 16).at(share) for share in shares]
    assert [drawn.count(value) for value in (2, 4, 8, 16)] == [10] * 4
