"""Any space survives the trip through JSON, and its own points pass its own check."""

from __future__ import annotations

import json
import pickle
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from search_spaces import (
    Choice,
    Constant,
    Float,
    Int,
    Logit,
    Parameter,
    Pow2,
    Rule,
    Space,
    When,
    from_dict,
    parse,
    to_dict,
)

bounded = settings(max_examples=50, deadline=None, derandomize=True, database=None)

numbers = st.floats(-1e6, 1e6, allow_nan=False)
values = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text("abc", max_size=3))


@st.composite
def floats(draw: st.DrawFn) -> Float:
    low, high = sorted((draw(numbers), draw(numbers)))
    assume(low < high)
    log = low > 0 and draw(st.booleans())
    step = (high - low) / draw(st.integers(1, 7)) if not log and draw(st.booleans()) else None
    assume(step is None or step > 0)
    return Float(low, high, log=log, step=step)


@st.composite
def ints(draw: st.DrawFn) -> Int:
    low, step = draw(st.integers(-50, 50)), draw(st.integers(1, 5))
    high = low + step * draw(st.integers(1, 9))
    return Int(low, high, log=low >= 1 and step == 1 and draw(st.booleans()), step=step)


def distinct(items: list[Any]) -> list[Any]:
    return list({(type(v) is bool, v): v for v in items}.values())


@st.composite
def logits(draw: st.DrawFn) -> Logit:
    inside = st.floats(1e-6, 1 - 1e-6)
    low, high = sorted((draw(inside), draw(inside)))
    assume(low < high)
    return Logit(low, high)


@st.composite
def powers(draw: st.DrawFn) -> Pow2:
    first = draw(st.integers(0, 12))
    return Pow2(2**first, 2 ** (first + draw(st.integers(1, 6))))


choices = st.lists(values, min_size=1, max_size=4).map(lambda v: Choice(tuple(distinct(v))))
domains = st.one_of(floats(), logits(), ints(), powers(), choices, values.map(Constant))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    kind = draw(st.sampled_from(("divides", "at_most", "sum_at_most", "product_at_most")))
    keys = [f"group.k{draw(st.integers(0, 9))}" for _ in range(2 if kind == "at_most" else 3)]
    terms = [*keys[:-1], draw(st.one_of(st.just(keys[-1]), st.integers(1, 99)))]
    return Rule(kind, tuple(terms), draw(st.floats(0.1, 9)) if kind == "at_most" else 1.0)


def pick(draw: st.DrawFn, domain: Any) -> Any:
    """A value of the domain, one of its ends or listed values."""
    if isinstance(domain, Choice):
        return draw(st.sampled_from(domain.values))
    if isinstance(domain, Constant):
        return domain.value
    return draw(st.sampled_from((domain.low, domain.high)))


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    parameters: dict[str, Parameter] = {}
    for index in range(draw(st.integers(0, 6))):
        domain = draw(domains)
        when = None
        if parameters and draw(st.booleans()):
            parent = draw(st.sampled_from(sorted(parameters)))
            when = When(parent, (pick(draw, parameters[parent].domain),))
        centre = pick(draw, domain) if draw(st.booleans()) else None
        parameters[f"group.k{index}"] = Parameter(domain, when, centre)
    ordered = dict(draw(st.permutations(list(parameters.items()))))
    return Space(ordered, tuple(draw(st.lists(rules(), max_size=3))))


@bounded
@given(spaces())
def test_json_and_pickle_round_trips_keep_value_and_order(space: Space) -> None:
    for twin in (
        from_dict(json.loads(json.dumps(to_dict(space)))),
        pickle.loads(pickle.dumps(space)),
    ):
        assert dict(twin) == dict(space)
        assert twin == space
        assert list(twin) == list(space)
        assert repr(twin) == repr(space)


@bounded
@given(domains, st.floats(0, 1), st.floats(0, 1))
def test_every_share_of_a_domain_lies_in_it_in_order(domain: Any, one: float, two: float) -> None:
    low, high = (domain.at(share) for share in sorted((one, two)))
    assert domain.contains(low)
    assert domain.contains(high)
    if hasattr(domain, "low"):
        assert low <= high


@bounded
@given(spaces())
def test_parents_come_before_children(space: Space) -> None:
    seen: set[str] = set()
    for key, parameter in space.items():
        assert parameter.when is None or parameter.when.key in seen
        seen.add(key)


@bounded
@given(spaces(), st.data())
def test_a_point_drawn_in_order_passes_and_any_change_of_keys_fails(
    space: Space, data: st.DataObject
) -> None:
    point: dict[str, Any] = {}
    for key, parameter in space.items():
        if key in space.active(point):
            point[key] = pick(data.draw, parameter.domain)
    assert space.check(point) == []
    assert space.check({**point, "other.key": 1}) != []
    for key in point:
        assert space.check({k: v for k, v in point.items() if k != key}) != []
    for key in set(space) - set(point):
        assert space.check({**point, key: 1}) != []


@bounded
@given(spaces(), st.data())
def test_freezing_a_point_leaves_only_its_constants(space: Space, data: st.DataObject) -> None:
    frozen = space
    for key in space:
        if key in frozen:
            frozen = frozen.freeze(key, pick(data.draw, frozen[key].domain))
    point = {key: p.domain.value for key, p in frozen.items() if isinstance(p.domain, Constant)}
    assert set(point) == set(frozen)
    assert frozen.check(point) == []
    assert space.check(point) == []


@bounded
@given(numbers.filter(bool), st.sampled_from(("e", "E")))
def test_numbers_with_an_exponent_are_read_from_strings(value: float, sign: str) -> None:
    text = f"{value:.17e}".replace("e", sign)
    assert parse({"a": {"choice": [text]}})["a"].domain == Choice((value,))
