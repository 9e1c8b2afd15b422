"""Which replicas were replaced, and which are given up."""

from __future__ import annotations

from sweeps.decide.replicas import Answered, Died, End, Replicas, Silent, Tell, decide


def test_a_new_process_is_a_replacement() -> None:
    state = Replicas(timeout_s=10)
    assert decide(state, Answered("a", "p1"), 0) == [Tell("a", "started", 0)]
    assert decide(state, Answered("a", "p1"), 5) == []
    assert decide(state, Answered("b", "q1"), 5) == [Tell("b", "started", 0)]
    assert decide(state, Answered("a", "p2"), 8) == [Tell("a", "replaced", 1)]
    assert decide(state, Answered("a", "p3"), 9) == [Tell("a", "replaced", 2)]


def test_silence_is_counted_from_the_last_answer_and_ends_the_replica_once() -> None:
    state = Replicas(timeout_s=10)
    assert decide(state, Silent("a"), 0) == []
    decide(state, Answered("a", "p1"), 9)
    assert decide(state, Silent("a"), 19) == []
    told, ended = decide(state, Silent("a"), 20)
    assert isinstance(told, Tell)
    assert told.event == "given_up"
    assert "11 s (cluster.services.timeout_s)" in told.reason
    assert ended == End("a")
    assert decide(state, Silent("a"), 99) == []
    assert decide(state, Answered("a", "p2"), 99) == []


def test_a_replica_that_never_starts_is_given_up_too() -> None:
    state = Replicas(timeout_s=10)
    decide(state, Silent("a"), 100)
    assert End("a") in decide(state, Silent("a"), 111)


def test_death_is_told_once_with_its_reason() -> None:
    state = Replicas(timeout_s=10)
    decide(state, Answered("a", "p1"), 0)
    assert decide(state, Died("a", "out of memory"), 1) == [
        Tell("a", "given_up", 0, "out of memory")
    ]
    assert decide(state, Died("a", "out of memory"), 2) == []
