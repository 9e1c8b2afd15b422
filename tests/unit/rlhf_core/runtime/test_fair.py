"""Whom a service serves next, what it merges, and what it charges."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.runtime.fair import FairQueue, Meter, Request

Waiting = list[tuple[str, int]]


def _queue(waiting: Waiting, most: int | None = None, key: object = "k") -> FairQueue[int]:
    """A queue with a request of ``size`` rows for each ``(caller, size)``; its call is its position."""
    queue: FairQueue[int] = FairQueue(most)
    for number, (caller, size) in enumerate(waiting):
        queue.put(Request(caller, size, key, number))
    return queue


def _drained(queue: FairQueue[int]) -> list[list[Request[int]]]:
    taken = []
    while requests := queue.take():
        taken.append(requests)
    return taken


WAITING = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 8)), max_size=30)


def test_callers_take_turns_whoever_came_first() -> None:
    queue = _queue([("a", 1)] * 4 + [("b", 1)] * 2 + [("c", 1)])
    order = [request.caller for (request,) in _drained(queue)]
    assert order == ["a", "b", "c", "a", "b", "a", "a"]


def test_a_turn_can_have_several_requests_and_ends_early_where_there_are_no_more() -> None:
    queue: FairQueue[int] = FairQueue(turn=2)
    for number, caller in enumerate("aaaaabbbc"):
        queue.put(Request(caller, 1, "k", number))
    order = "".join(request.caller for (request,) in _drained(queue))
    assert order == "aabbcaaba"


def test_a_turn_is_a_batch_and_is_kept_while_its_caller_asks_for_nothing() -> None:
    queue: FairQueue[int] = FairQueue(turn=9)
    asked = iter(range(100))

    def put(*requests: str) -> None:
        for caller, batch in requests:
            queue.put(Request(caller, 1, "k", next(asked), batch))

    def take(count: int) -> str:
        return "".join(request.caller for _ in range(count) for request in queue.take())

    put("a1", "b1", "b1", "c1")
    # In its pause others are served, and then it goes on.
    assert take(2) == "ab"
    put("a1", "a1")
    assert take(2) == "aa"
    # What is next of another batch waits for everybody's turn, whether its turn was over by then or not.
    put("a2", "b2")
    assert take(4) == "bcab"
    put("c1", "a1", "b1", "a2")
    assert take(4) == "caba"
    assert len(queue) == 0
    # With nobody waiting it begins anew.
    put("b1", "a1")
    assert take(2) == "ba"


def test_a_caller_that_comes_late_does_not_wait_for_what_others_have_queued() -> None:
    queue = _queue([("a", 1)] * 100)
    assert [r.caller for r in queue.take()] == ["a"]
    queue.put(Request("b", 1, "k", 100))
    turns = [queue.take()[0].caller for _ in range(2)]
    assert "b" in turns


def test_who_waits_for_its_batch_comes_before_who_is_still_sampling() -> None:
    queue: FairQueue[int] = FairQueue(turn=9)
    for number, (caller, left) in enumerate([("a", 5), ("b", 2), ("a", 4), ("c", 0), ("b", 1)]):
        queue.put(Request(caller, 1, "k", number, "batch", left))
    assert [queue.take()[0].call for _ in range(2)] == [3, 1]
    # With its last request it is as urgent as whoever waits, from its first one on.
    for left in (3, 2, 1, 0):
        queue.put(Request("a", 1, "k", 10 - left, "batch", left))
    assert "".join(request.caller for (request,) in _drained(queue)) == "aaaaaab"
    assert len(queue) == 0


@given(WAITING)
def test_between_two_turns_of_a_caller_every_other_that_waits_has_one(waiting: Waiting) -> None:
    queue = _queue(waiting)
    left = Counter(caller for caller, _ in waiting)
    since: dict[str, set[str]] = {}
    while requests := queue.take():
        (request,) = requests
        caller = request.caller
        if caller in since:
            others = {other for other in left if left[other] and other != caller}
            assert others <= since[caller]
        for seen in since.values():
            seen.add(caller)
        since[caller] = set()
        left[caller] -= 1
    assert not +left


@given(WAITING, st.none() | st.integers(1, 16))
def test_every_request_is_served_once_and_in_its_callers_order(
    waiting: Waiting, most: int | None
) -> None:
    served = [request for requests in _drained(_queue(waiting, most)) for request in requests]
    assert sorted(request.call for request in served) == list(range(len(waiting)))
    for caller in "abcd":
        own = [request.call for request in served if request.caller == caller]
        assert own == sorted(own)


@given(WAITING, st.integers(1, 16))
def test_what_is_merged_fits_unless_it_is_one_request(waiting: Waiting, most: int) -> None:
    for requests in _drained(_queue(waiting, most)):
        assert len(requests) == 1 or sum(request.size for request in requests) <= most


def test_without_merging_each_request_goes_alone_and_with_it_callers_share() -> None:
    waiting = [("a", 4), ("a", 4), ("b", 4), ("c", 9)]
    assert [[r.call for r in rs] for rs in _drained(_queue(waiting))] == [[0], [2], [3], [1]]
    merged = [[r.call for r in rs] for rs in _drained(_queue(waiting, most=8))]
    assert merged == [[0, 2], [3], [1]]


def test_only_equal_keys_are_merged_and_none_is_equal_to_nothing() -> None:
    queue: FairQueue[int] = FairQueue(8)
    for number, key in enumerate((1.0, 0.5, 1.0, None, None)):
        queue.put(Request("abcde"[number], 1, key, number))
    assert [[r.call for r in rs] for rs in _drained(queue)] == [[0, 2], [1], [3], [4]]


def test_busy_seconds_are_each_callers_own() -> None:
    meter = Meter()
    for caller in "ab":
        meter.enter(caller, 0.0)
    meter.worked({"a": 2.0})
    meter.worked({"a": 1.0, "b": 3.0})
    assert (meter.usage("a"), meter.usage("b"), meter.usage("c")) == (3.0, 3.0, 0.0)
    assert meter.usage("a") == 0.0


def test_reserved_time_is_paid_by_busy_share_idle_time_included() -> None:
    meter = Meter()
    for caller in "ab":
        meter.enter(caller, 10.0)
    meter.worked({"a": 3.0})
    meter.worked({"b": 1.0})
    assert meter.charge("a", 30.0) == pytest.approx(15.0)
    # Asking for busy seconds takes nothing from what is charged, nor the other way round.
    assert meter.usage("b") == 1.0
    assert meter.charge("b", 30.0) == pytest.approx(5.0)
    assert meter.usage("a") == 3.0
    assert meter.charge("a", 40.0) == 0.0
    meter.worked({"a": 0.5})
    assert meter.charge("a", 50.0) == pytest.approx(10.0)
    assert meter.charge("nobody", 50.0) == 0.0
