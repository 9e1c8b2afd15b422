"""Seconds of each phase of an iteration, also where phases overlap."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Semaphore
from typing import Any

Watch = Callable[[str, list[Future[Any]]], list[Future[Any]]]


class Phases:
    """A stopwatch of one iteration."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._start = time.perf_counter()
        self._covered = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Times a phase in which the loop waits."""
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[name] += elapsed
            self._covered += elapsed

    @contextmanager
    def overlapping(self, stage: str) -> Iterator[Watch]:
        """Times calls side by side and their stage: yields ``watch(name, futures)``, which returns them.

        A phase lasts from its submission to the end of its last call. The block ends when all have ended;
        exceptions stay in their futures.
        """
        begin = last = time.perf_counter()
        watched: list[Future[Any]] = []
        noted = Semaphore(0)

        def watch(name: str, futures: list[Future[Any]]) -> list[Future[Any]]:
            # A local call has run when it returns, so a phase starts where the one before was handed over.
            nonlocal last
            start, last = last, time.perf_counter()

            def done(_future: Future[Any]) -> None:
                self.seconds[name] = max(self.seconds[name], time.perf_counter() - start)
                noted.release()

            for future in futures:
                future.add_done_callback(done)
            watched.extend(futures)
            return futures

        yield watch
        wait(watched)
        # A future wakes whoever waits before it calls back.
        for _ in watched:
            noted.acquire()
        elapsed = time.perf_counter() - begin
        self.seconds[stage] += elapsed
        self._covered += elapsed

    def add(self, name: str, seconds: float) -> None:
        """Counts time in which the loop did not wait."""
        self.seconds[name] += seconds

    def total(self) -> float:
        """Seconds since the iteration began."""
        return time.perf_counter() - self._start

    def metrics(self) -> dict[str, float]:
        """Metrics of group ``time``; ``time/wait`` is what no phase covers."""
        total = self.total()
        times = {f"time/{name}": seconds for name, seconds in self.seconds.items()}
        return {**times, "time/iteration": total, "time/wait": max(0.0, total - self._covered)}


def imbalance(busy: Sequence[float]) -> dict[str, float]:
    """``util/imbalance``: by how much the busiest of several nodes exceeds their mean; nothing of one node."""
    middle = sum(busy) / len(busy) if busy else 0.0
    return {"util/imbalance": max(busy) / middle - 1} if len(busy) > 1 and middle > 0 else {}
