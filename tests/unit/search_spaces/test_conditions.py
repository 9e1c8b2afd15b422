from __future__ import annotations

import pytest

from search_spaces import SpaceError, When
from search_spaces.conditions import parents_first


def test_holds_keeps_booleans_apart_from_numbers() -> None:
    when = When("a.b", (1, "x"))
    assert when.holds(1)
    assert when.holds("x")
    assert not when.holds(True)
    assert not when.holds("y")


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("", (1,), "needs the dotted key"),
        ("a", (), "condition on 'a' needs at least one value"),
        ("a", (1, 1), "got 1 twice"),
    ],
)
def test_refuses(key: str, values: tuple[int, ...], expected: str) -> None:
    with pytest.raises(SpaceError, match=expected):
        When(key, values)


def test_parents_move_before_their_first_child_and_the_rest_stays() -> None:
    order = parents_first({"x": None, "c": "b", "y": None, "b": "a", "a": None, "z": "a"})
    assert order == ("x", "a", "b", "c", "y", "z")


@pytest.mark.parametrize(
    ("parents", "cycle"),
    [({"a": "a"}, "a -> a"), ({"x": None, "d": "a", "a": "b", "b": "a"}, "a -> b -> a")],
)
def test_a_cycle_is_refused_and_named(parents: dict[str, str | None], cycle: str) -> None:
    with pytest.raises(SpaceError, match=f"got {cycle};"):
        parents_first(parents)
