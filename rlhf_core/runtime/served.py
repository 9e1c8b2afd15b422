"""A frozen role behind a fair queue, on a thread of its own: what a replica of a service runs. No Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rlhf_core.assets import make_sources
from rlhf_core.errors import ServiceError
from rlhf_core.runtime.fair import FairQueue, Meter, Request
from rlhf_core.runtime.host import RoleHost
from rlhf_core.runtime.merging import Args, joined, key_of, parted, size_of
from rlhf_core.runtime.shared import ServiceOrder, fingerprint
from rlhf_core.types import CallContext


@dataclass(frozen=True)
class Call:
    """A request's method, arguments and answer."""

    method: str
    context: CallContext
    args: Args
    answer: Future[Any]


class ServedRole:
    """Serves one role to several callers, one request after the other.

    Args:
        order: The role; loaded at the first request, on the thread that computes.
        gpus: GPUs this process was given.
        turn: Requests that a caller has answered in a row.
    """

    def __init__(self, order: ServiceOrder, gpus: float = 0.0, turn: int = 1) -> None:
        self.order, self.gpus = order, gpus
        most = order.config.optim.micro_batch_size if order.merge else None
        self._queue: FairQueue[Call] = FairQueue(most, turn)
        self._meter = Meter()
        self._changed = threading.Condition()
        self._closed = False
        self._host: RoleHost | None = None
        self._thread = threading.Thread(target=self._serve, name=order.name, daemon=True)
        self._thread.start()

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Future[Any]:
        """Queues a call; an exception of the role is the future's."""
        answer: Future[Any] = Future()
        if role != self.order.role:
            answer.set_exception(ServiceError(f"{self.order.name}: it has no role {role!r}"))
            return answer
        call = Call(method, context, args, answer)
        key, batch = key_of(method, args), context.seed
        request = Request(context.caller, size_of(args), key, call, batch, context.left)
        with self._changed:
            self._meter.enter(context.caller, time.monotonic())
            self._queue.put(request)
            self._changed.notify()
        return answer

    def usage(self, caller: str) -> dict[str, float]:
        """``{role: busy seconds for this caller since it last asked}``."""
        with self._changed:
            return {self.order.role: self._meter.usage(caller)}

    def charge(self, caller: str) -> float:
        """Seconds of this replica that the caller pays for since it last asked."""
        with self._changed:
            return self._meter.charge(caller, time.monotonic())

    def close(self) -> None:
        """Ends the thread after what it is doing; what waits is refused."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not (self._closed or len(self._queue)):
                    self._changed.wait()
                requests = self._queue.take()
                closed = self._closed
            if closed:
                for request in requests:
                    request.call.answer.set_exception(ServiceError(f"{self.order.name}: ended"))
                if not requests:
                    break
            else:
                self._answer(requests)
        if self._host is not None:
            self._host.close()

    def _answer(self, requests: Sequence[Request[Call]]) -> None:
        try:
            role = self._role()
        except Exception as error:  # noqa: BLE001 - handed to whoever asks the future
            for request in requests:
                request.call.answer.set_exception(error)
            return
        start = time.perf_counter()
        results = _together(role, [request.call for request in requests])
        elapsed, rows = time.perf_counter() - start, sum(request.size for request in requests)
        with self._changed:
            for request in requests:
                self._meter.worked({request.caller: elapsed * request.size / max(1, rows)})
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, Exception):
                request.call.answer.set_exception(result)
            else:
                request.call.answer.set_result(result)

    def _role(self) -> Any:
        """The loaded role; refuses models that are not those that were asked for."""
        order = self.order
        if self._host is None:
            # A node of its own builds what its cache lacks.
            make_sources(order.config)
            host = RoleHost(order.config, [order.role], self.gpus, order.assets)
            host.role(order.role)
            # After loading, which can bring a newer revision, and on this node, whose files can be others.
            found = fingerprint(order.role, order.config, order.assets)
            if found != order.fingerprint:
                host.close()
                raise ServiceError(
                    f"{order.name}: its models must be those that the sweep asked for (fingerprint "
                    f"{order.fingerprint[:6]}), but they are {found[:6]} on this node; make the files equal "
                    f"on all nodes, or use resources.roles.{order.role}.placement 'trial'"
                )
            self._host = host
        return self._host.role(order.role)


def _together(role: Any, calls: Sequence[Call]) -> list[Any]:
    """Results of the calls, or the exceptions they raised; several go through the model as one batch."""
    method = calls[0].method
    if len(calls) > 1:
        everything = [call.args for call in calls]
        try:
            result = getattr(role, method)(calls[0].context, *joined(method, everything))
            return parted(method, result, everything)
        except Exception:  # noqa: BLE001 - alone, each meets its own error and no other's
            pass
    return [_alone(role, call) for call in calls]


def _alone(role: Any, call: Call) -> Any:
    try:
        return getattr(role, call.method)(call.context, *call.args)
    except Exception as error:  # noqa: BLE001 - handed to whoever asks the future
        return error
