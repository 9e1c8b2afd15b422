from __future__ import annotations

import copy
import pickle

import pytest

from search_spaces import (
    Choice,
    Constant,
    Float,
    Int,
    Parameter,
    Pow2,
    Rule,
    Space,
    SpaceError,
    When,
)


@pytest.fixture
def space() -> Space:
    """Nested conditions, children declared before their parents."""
    return Space(
        {
            "ppo.kl.horizon": Parameter(Int(100, 900), When("ppo.kl.target", (6.0,))),
            "ppo.lr": Parameter(Float(1e-5, 1e-3, log=True), centre=1e-4),
            "ppo.kl.target": Parameter(Float(2, 12), When("ppo.kl.controller", ("adaptive",))),
            "ppo.kl.controller": Parameter(Choice(("fixed", "adaptive"))),
            "ppo.epochs": Parameter(Int(1, 4)),
        }
    )


def test_iteration_yields_parents_first_else_in_order_of_declaration(space: Space) -> None:
    assert list(space) == [
        "ppo.kl.controller",
        "ppo.kl.target",
        "ppo.kl.horizon",
        "ppo.lr",
        "ppo.epochs",
    ]
    assert list(space.keys()) == list(space)
    assert len(space) == 5
    assert space["ppo.epochs"].domain == Int(1, 4)


@pytest.mark.parametrize(
    ("params", "inactive"),
    [
        ({}, {"ppo.kl.target", "ppo.kl.horizon"}),
        ({"ppo.kl.controller": "fixed"}, {"ppo.kl.target", "ppo.kl.horizon"}),
        ({"ppo.kl.controller": "adaptive"}, {"ppo.kl.horizon"}),
        ({"ppo.kl.controller": "adaptive", "ppo.kl.target": 6}, set()),
        # The grandparent decides, whatever the value of the inactive parent.
        (
            {"ppo.kl.controller": "fixed", "ppo.kl.target": 6.0},
            {"ppo.kl.target", "ppo.kl.horizon"},
        ),
    ],
)
def test_active(space: Space, params: dict[str, object], inactive: set[str]) -> None:
    assert space.active(params) == set(space) - inactive


def test_check_accepts_a_point(space: Space) -> None:
    point = {"ppo.kl.controller": "fixed", "ppo.lr": 1e-4, "ppo.epochs": 2}
    assert space.check(point) == []
    adaptive = {**point, "ppo.kl.controller": "adaptive", "ppo.kl.target": 6.0}
    assert space.check({**adaptive, "ppo.kl.horizon": 500}) == []


def test_check_names_every_problem(space: Space) -> None:
    problems = space.check(
        {"ppo.epoch": 2, "ppo.kl.controller": "fixed", "ppo.kl.target": 6.0, "ppo.lr": 1.0}
    )
    assert problems == [
        "ppo.epoch: not a parameter of this space; did you mean 'ppo.epochs'?",
        "ppo.kl.target: inactive unless ppo.kl.controller is one of ['adaptive']; remove it",
        "ppo.lr: 1.0 is outside Float(low=1e-05, high=0.001, log=True, step=None); "
        "choose a value inside",
        "ppo.epochs: missing; give a value of Int(low=1, high=4, log=False, step=1)",
    ]


def test_construction_reports_all_problems() -> None:
    with pytest.raises(SpaceError) as caught:
        Space(
            {
                "a b": Parameter(Int(1, 2)),
                "ppo.mode": Parameter(Choice(("x", "y"))),
                "ppo.one": Parameter(Int(1, 2), When("ppo.mod", ("x",))),
                "ppo.two": Parameter(Int(1, 2), When("ppo.mode", ("z",))),
                "c.a": Parameter(Int(1, 2), When("c.b", (1,))),
                "c.b": Parameter(Int(1, 2), When("c.a", (1,))),
            }
        )
    text = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 4
    assert "'a b': a key is dotted words" in text
    assert "names 'ppo.mod', which is not a parameter of this space; did you mean" in text
    assert "ppo.two: its condition waits for ppo.mode = 'z'" in text
    assert "c.a -> c.b -> c.a" in text


def test_a_parameter_refuses_a_centre_outside_and_a_bare_value() -> None:
    with pytest.raises(SpaceError, match=r"centre must lie in the domain, got 3\.0"):
        Parameter(Float(0, 1), centre=3.0)
    with pytest.raises(SpaceError, match="needs a Float, Int, Choice or Constant"):
        Parameter([1, 2])  # type: ignore[arg-type]


def test_merge_prefers_the_other_and_checks_the_result(space: Space) -> None:
    merged = space.merge(Space({"ppo.epochs": Parameter(Int(2, 8)), "x": Parameter(Int(0, 1))}))
    assert merged["ppo.epochs"].domain == Int(2, 8)
    assert list(merged)[-1] == "x"
    assert space["ppo.epochs"].domain == Int(1, 4)
    with pytest.raises(SpaceError, match=r"waits for ppo\.kl\.controller = 'adaptive'"):
        space.merge(Space({"ppo.kl.controller": Parameter(Constant("fixed"))}))


def test_freeze_drops_what_can_no_longer_be_active(space: Space) -> None:
    fixed = space.freeze("ppo.kl.controller", "fixed")
    assert set(fixed) == {"ppo.kl.controller", "ppo.lr", "ppo.epochs"}
    assert fixed["ppo.kl.controller"].domain == Constant("fixed")
    adaptive = space.freeze("ppo.kl.controller", "adaptive")
    assert set(adaptive) == set(space)
    with pytest.raises(SpaceError, match="cannot freeze at 9"):
        space.freeze("ppo.epochs", 9)
    with pytest.raises(SpaceError, match=r"did you mean 'ppo\.epochs'"):
        space.freeze("ppo.epoch", 1)


def test_narrow(space: Space) -> None:
    narrowed = space.narrow("ppo.lr", 2e-4, 1e-3)
    assert narrowed["ppo.lr"] == Parameter(Float(2e-4, 1e-3, log=True))
    assert space.narrow("ppo.lr", 2e-5, 1e-3)["ppo.lr"].centre == 1e-4
    assert space.narrow("ppo.epochs", 2, 3)["ppo.epochs"].domain == Int(2, 3)
    assert "ppo.kl.horizon" not in space.narrow("ppo.kl.target", 2, 5)
    for key, low, high, expected in [
        ("ppo.lr", 1e-6, 2.0, r"narrow to low=1e-06.*\n.*narrow to high=2\.0"),
        ("ppo.epochs", 3, 2, "ppo.epochs: low < high must hold"),
        ("ppo.kl.controller", 0, 1, "only float and int domains can be narrowed"),
    ]:
        with pytest.raises(SpaceError, match=expected):
            space.narrow(key, low, high)


def test_space_is_an_immutable_value_that_pickles(space: Space) -> None:
    for twin in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert twin == space
        assert list(twin) == list(space)
    assert space != space.narrow("ppo.epochs", 1, 2)
    with pytest.raises(TypeError):
        space.parameters["ppo.epochs"] = Parameter(Int(1, 2))  # type: ignore[index]
    with pytest.raises(AttributeError):
        space.parameters = {}  # type: ignore[misc]


def test_source_mapping_is_copied() -> None:
    source = {"a": Parameter(Int(1, 2))}
    space = Space(source)
    source["b"] = Parameter(Int(1, 2))
    assert list(space) == ["a"]


ORDERED = Rule("at_most", ("ppo.epochs", "ppo.kl.target"))


def test_rules_are_part_of_a_space_and_follow_it(space: Space) -> None:
    ruled = Space(dict(space), (ORDERED, ORDERED))
    assert ruled.rules == (ORDERED,)
    assert ruled != space
    assert space != ruled
    for twin in (
        pickle.loads(pickle.dumps(ruled)),
        ruled.merge(Space({}, (ORDERED,))),
        Space({}).merge(ruled),
    ):
        assert twin == ruled
    assert ruled.freeze("ppo.epochs", 2).rules == (ORDERED,)
    assert ruled.narrow("ppo.epochs", 1, 2).rules == (ORDERED,)
    assert ruled.without("ppo.lr").rules == (ORDERED,)


def test_broken_takes_from_the_base_what_is_not_searched_or_inactive(space: Space) -> None:
    ruled = Space(dict(space), (ORDERED,))
    adaptive = {"ppo.kl.controller": "adaptive", "ppo.epochs": 4, "ppo.kl.target": 3.0}
    (line,) = ruled.broken(adaptive)
    assert line.startswith("rule ppo.epochs <= ppo.kl.target is broken by ppo.epochs = 4")
    assert ruled.broken({**adaptive, "ppo.epochs": 3}) == []
    fixed = {"ppo.kl.controller": "fixed", "ppo.epochs": 4}
    assert ruled.broken(fixed) == []
    assert ruled.broken(fixed, {"ppo.kl.target": 3}) == [line]


def test_without_leaves_a_key_to_the_base(space: Space) -> None:
    assert set(space.without("ppo.lr", "ppo.epochs")) == set(space) - {"ppo.lr", "ppo.epochs"}
    with pytest.raises(SpaceError, match=r"did you mean 'ppo\.epochs'"):
        space.without("ppo.epoch")
    with pytest.raises(SpaceError, match=r"its condition names 'ppo\.kl\.controller'"):
        space.without("ppo.kl.controller")


def test_powers_of_two_can_be_narrowed() -> None:
    space = Space({"n": Parameter(Pow2(1, 64))})
    assert space.narrow("n", 2, 8)["n"].domain == Pow2(2, 8)
    with pytest.raises(SpaceError, match="cannot narrow to low=3"):
        space.narrow("n", 3, 8)
