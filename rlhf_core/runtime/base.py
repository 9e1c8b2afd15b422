"""What a trial loop needs from whoever runs its roles.

Calls return ``concurrent.futures.Future``, so one loop serves local objects and Ray actors, and overlap is
visible in that loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Lock
from typing import Any, Protocol

from rlhf_core.errors import RankError
from rlhf_core.types import CallContext


class Worker(Protocol):
    """One process, hosting one or more roles.

    Attributes:
        address: Address of its node, under which other workers reach it.
    """

    address: str

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Future[Any]:
        """Calls ``method`` of ``role``; an exception of the role is the future's."""
        ...

    def usage(self, caller: str) -> Future[dict[str, float]]:
        """``{role: busy seconds for this caller since it last asked}``."""
        ...

    def hand_over(self, context: CallContext) -> Future[int]:
        """Brings the weights of its learner to its own rollout role; returns the bytes."""
        ...


class Runtime(Protocol):
    """The role groups of one trial.

    Attributes:
        concurrent: Whether calls to several workers run side by side.
    """

    concurrent: bool

    def group(self, role: str) -> RoleGroup:
        """The workers of ``role``."""
        ...

    def deliver_weights(self, context: CallContext) -> Future[dict[str, float]]:
        """Brings the learner's weights to all rollout workers.

        The context's version is the one they carry afterwards. The result has ``bytes``, those that each
        worker was sent.
        """
        ...

    def publish(self, context: CallContext) -> tuple[Any, int]:
        """The learner's weights of now under the context's version, as a parcel for ``receive``, and its bytes."""
        ...

    def receive(self, context: CallContext, parcel: Any) -> None:
        """Loads a parcel into all rollout workers; returns when they have it."""
        ...

    def share(self, value: Any) -> Any:
        """``value`` as an argument of several calls, carried once and not once for each of them."""
        ...

    def metrics(self) -> dict[str, float]:
        """Metrics of group ``runtime`` since last asked."""
        ...

    def close(self) -> None:
        """Ends every process of the trial and returns when they are gone. May be called twice."""
        ...


class RoleGroup:
    """The workers of one role.

    Args:
        role: Name of the role.
        workers: At least one.
        joint: Methods that need every rank where one is asked; see ``config.engines.joint_methods``.
    """

    def __init__(
        self, role: str, workers: Sequence[Worker], joint: frozenset[str] = frozenset()
    ) -> None:
        self.role, self.joint = role, joint
        self.workers = tuple(workers)

    def call(self, method: str, context: CallContext, *args: Any) -> Future[Any]:
        """One call, on the first worker; with the others where it needs them."""
        if method in self.joint:
            return self.together(method, context, *args)
        return self.workers[0].call(self.role, method, context, *args)

    def call_all(self, method: str, context: CallContext, *args: Any) -> list[Future[Any]]:
        """The same call on every worker."""
        return [worker.call(self.role, method, context, *args) for worker in self.workers]

    def together(self, method: str, context: CallContext, *args: Any) -> Future[Any]:
        """The same call on every rank; the result is rank 0's.

        It ends when all ranks have; of several errors it is the one that caused the others.
        """
        futures = self.call_all(method, context, *args)
        if len(futures) == 1:
            return futures[0]
        joint: Future[Any] = Future()
        open_calls, lock = len(futures), Lock()

        def done(_future: Future[Any]) -> None:
            nonlocal open_calls
            with lock:
                open_calls -= 1
                if open_calls:
                    return
            error = _cause(futures)
            if error is None:
                joint.set_result(futures[0].result())
            else:
                joint.set_exception(error)

        for future in futures:
            future.add_done_callback(done)
        return joint

    def charged(self, caller: str) -> dict[str, float]:
        """``gpu_seconds`` and ``cpu_seconds`` of a service for this caller since it last asked.

        Empty where the workers are in the trial's own bundles, whose whole time is its cost.
        """
        return {}

    def scatter(
        self, method: str, calls: Sequence[tuple[CallContext, tuple[Any, ...]]]
    ) -> list[Future[Any]]:
        """One call for each item, dealt out in turn, without waiting."""
        return [self.turn(i, method, context, *args) for i, (context, args) in enumerate(calls)]

    def turn(self, number: int, method: str, context: CallContext, *args: Any) -> Future[Any]:
        """One call, on the worker whose turn it is at call ``number``."""
        worker = self.workers[number % len(self.workers)]
        return worker.call(self.role, method, context, *args)

    def map(
        self,
        method: str,
        calls: Sequence[tuple[CallContext, tuple[Any, ...]]],
        ahead: int = 1,
        finished: Callable[[int, Any], None] = lambda _index, _result: None,
    ) -> list[Any]:
        """One call for each item, the next to whoever is free; results in item order.

        A slow worker gets less; what is computed does not depend on who computes it.

        Args:
            method: Method of the role.
            calls: Context and arguments of each item.
            ahead: Calls a worker has at the same time.
            finished: Told of each item when it is done, and its result.
        """
        results: list[Any] = [None] * len(calls)
        if method in self.joint:
            for index, (context, args) in enumerate(calls):
                results[index] = self.together(method, context, *args).result()
                finished(index, results[index])
            return results
        pending: dict[Future[Any], tuple[int, Worker]] = {}
        queue = iter(enumerate(calls))

        def feed(worker: Worker) -> None:
            item = next(queue, None)
            if item is not None:
                index, (context, args) = item
                pending[worker.call(self.role, method, context, *args)] = (index, worker)

        for _ in range(ahead):
            for worker in self.workers:
                feed(worker)
        while pending:
            done, _rest = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                index, worker = pending.pop(future)
                results[index] = future.result()
                feed(worker)
                finished(index, results[index])
        return results


def gather(futures: Iterable[Future[Any]]) -> list[Any]:
    """Results of all futures, in order, once all have ended; raises the first error that no other caused."""
    futures = list(futures)
    error = _cause(futures)
    if error is not None:
        raise error
    return [future.result() for future in futures]


def _cause(futures: Sequence[Future[Any]]) -> BaseException | None:
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    first = (error for error in errors if not isinstance(error, RankError))
    return next(first, errors[0] if errors else None)
