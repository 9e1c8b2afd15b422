"""Chunks go to whoever is free: a slow node gets less, and the batch is whole."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest
from tiny_models import Zoo
from tiny_rollouts import trial_config

from rlhf_core.metrics import repeatable
from rlhf_core.runtime.base import RoleGroup
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import plan_trial
from rlhf_core.timing import imbalance
from rlhf_core.trial import PPOTrial
from rlhf_core.types import CallContext

ANY = CallContext("test")


class Clock:
    """Ends calls in the order of their times, each only when whoever dispatches has answered to the one before.

    Args:
        calls: Of the whole batch.
        at_once: Under way at the same time, as long as there are so many.
    """

    def __init__(self, calls: int, at_once: int) -> None:
        self.calls, self.at_once, self.now = calls, at_once, 0.0
        self._events: list[tuple[float, int, Future[Any], Any]] = []
        self._order, self._changed = itertools.count(), threading.Condition()

    def add(self, seconds: float, result: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            heapq.heappush(self._events, (self.now + seconds, next(self._order), future, result))
            self._changed.notify()
        return future

    def run(self) -> None:
        for ended in range(self.calls):
            open_calls = min(self.at_once, self.calls - ended)
            with self._changed:
                assert self._changed.wait_for(lambda n=open_calls: len(self._events) == n, 30)
                self.now, _, future, result = heapq.heappop(self._events)
            future.set_result(result)


class TimedWorker:
    """Takes ``seconds`` for a chunk, on the clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.address = clock, seconds, ""
        self.done = 0

    def call(self, role: str, method: str, context: CallContext, chunk: int) -> Future[Any]:
        self.done += 1
        return self.clock.add(self.seconds, chunk)


def dispatched(seconds: list[float], chunks: int) -> tuple[list[TimedWorker], Clock]:
    clock = Clock(chunks, len(seconds))
    workers = [TimedWorker(clock, each) for each in seconds]
    thread = threading.Thread(target=clock.run, daemon=True)
    thread.start()
    group = RoleGroup("rollout", workers)  # type: ignore[arg-type]
    assert group.map("generate", [(ANY, (chunk,)) for chunk in range(chunks)]) == [*range(chunks)]
    thread.join()
    return workers, clock


@pytest.mark.parametrize("seconds", [[1.0, 3.0], [3.0, 1.0], [1.0, 1.0, 3.0]])
def test_a_node_three_times_slower_gets_a_third_of_the_work(seconds: list[float]) -> None:
    chunks = 40
    workers, clock = dispatched(seconds, chunks)
    slow = [worker.done for worker in workers if worker.seconds == 3.0]
    fast = [worker.done for worker in workers if worker.seconds == 1.0]
    assert sum(slow) + sum(fast) == chunks
    assert all(abs(each / 3 - slow[0]) <= 1 for each in fast)
    # All work until the end, so they are equally busy: dealt out evenly it would be 0.5 and more.
    busy = [worker.done * worker.seconds for worker in workers]
    assert imbalance(busy)["util/imbalance"] <= 0.06
    assert clock.now <= max(busy)


def test_a_slow_node_shows_in_the_shares_and_not_in_the_numbers(zoo: Zoo) -> None:
    """A whole trial with two rollouts, of which one sleeps."""
    config = trial_config(
        zoo, resources__layout="split", resources__roles__rollout__workers=2,
        rollout__prompts_per_iteration=16, rollout__chunk_size=1, budget__iterations=2,
    )  # fmt: skip
    runs, done = [], Counter[int]()
    for sleeps in ((0.0, 0.0), (0.05, 0.15)):
        plan = plan_trial(config)
        trial = PPOTrial(config, LocalRuntime(config, plan), plan)
        done.clear()
        for index, worker in enumerate(trial.groups["rollout"].workers):
            worker.address = f"node {index}"
            role = worker.host.role("rollout")  # type: ignore[attr-defined]
            _slow_down(role, sleeps[index], done, index)
        results = list(trial)
        runs.append([repeatable(m.values) for m in results])
        trial.close()
    assert runs[0] == runs[1]
    assert done.total() == 32
    assert 4 <= done[1] <= 14
    assert all(m.values["util/imbalance"] < 0.5 for m in results[1:])


def _slow_down(role: Any, seconds: float, done: Counter[int], index: int) -> None:
    generate = role.generate

    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        done[index] += 1
        return generate(*args)

    role.generate = slow
