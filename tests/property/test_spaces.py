"""Any space survives the trip through JSON, and its own points pass its own check."""

from __future__ import annotations

import json
import pickle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from random_spaces import domains, numbers, pick, spaces

from search_spaces import Choice, Constant, Space, from_dict, parse, to_dict

bounded = settings(max_examples=50, deadline=None, derandomize=True, database=None)


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
