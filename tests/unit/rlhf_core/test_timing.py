"""The stopwatch of an iteration."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from rlhf_core.timing import Phases


def _later(seconds: float) -> Future[int]:
    future: Future[int] = Future()
    threading.Timer(seconds, future.set_result, (1,)).start()
    return future


def test_overlapping_phases_each_have_their_own_time() -> None:
    phases = Phases()
    with phases.overlapping("scoring") as watch:
        watch("score", [_later(0.02), _later(0.12)])
        watch("reference", [_later(0.04)])
    assert phases.seconds["score"] == pytest.approx(0.12, abs=0.06)
    assert phases.seconds["reference"] < phases.seconds["score"] <= phases.seconds["scoring"]
    metrics = phases.metrics()
    assert metrics["time/iteration"] < 0.12 + 0.06 + 0.04
    assert metrics["time/wait"] < 0.02


def test_time_that_no_phase_covers_is_waiting() -> None:
    phases = Phases()
    with phases("generate"):
        time.sleep(0.02)
    time.sleep(0.05)
    metrics = phases.metrics()
    assert metrics["time/wait"] >= 0.05
    assert metrics["time/iteration"] == pytest.approx(
        metrics["time/generate"] + metrics["time/wait"], abs=0.01
    )


class _Slow(Future[int]):
    """Wakes whoever waits well before it calls back, as any future may."""

    def _invoke_callbacks(self) -> None:
        time.sleep(0.05)
        super()._invoke_callbacks()  # type: ignore[misc]


def test_every_call_is_timed_when_the_block_ends() -> None:
    phases, future = Phases(), _Slow()
    thread = threading.Timer(0.02, future.set_result, (1,))
    with phases.overlapping("scoring") as watch:
        watch("score", [future])
        thread.start()
    assert "time/score" in phases.metrics()
    thread.join()


def test_a_failed_call_ends_its_phase_and_keeps_its_error() -> None:
    phases = Phases()
    future: Future[int] = Future()
    future.set_exception(ValueError("no"))
    with phases.overlapping("scoring") as watch:
        watch("score", [future])
    assert "score" in phases.seconds
    with pytest.raises(ValueError, match="no"):
        future.result()
