"""A ``RoleHost`` as a Ray actor, and the handle through which others call it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, Protocol

import ray
from ray.exceptions import RayTaskError

from rlhf_core.config.trial import TrialConfig
from rlhf_core.models.warm import Shelf
from rlhf_core.node_files import node_root
from rlhf_core.runtime.host import RoleHost
from rlhf_core.runtime.ray_delivery import Parcel, pack
from rlhf_core.runtime.ray_teardown import LOST, Process
from rlhf_core.types import CallContext

# Calls of several workers that wait for each other: one alone cannot be repeated.
TOGETHER = ("listen", "join", "receive_weights")


class RoleActor:
    """A ``RoleHost`` in an actor.

    Args:
        config, roles, gpus: As for ``RoleHost``.
        run: Name of the run whose trials follow each other in this process; None: there is only one.
    """

    def __init__(
        self, config: TrialConfig, roles: Sequence[str], gpus: float, run: str | None = None
    ) -> None:
        self._arguments, self._run = (config, roles, gpus), run

    def start(self) -> None:
        """Builds the host; not in ``__init__``, whose errors would look like a lost process."""
        if self._arguments[2] == 0:
            # An actor without GPUs would see all of them.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        shelf = Shelf(node_root() / self._run) if self._run else None
        self.host = RoleHost(*self._arguments, shelf=shelf)

    def reset(self, config: TrialConfig, checks: bool) -> None:
        """Begins another trial."""
        self.host.reset(config, checks)

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Any:
        return self.host.call(role, method, context, *args)

    def usage(self, caller: str) -> dict[str, float]:
        return self.host.usage(caller)

    def hand_over(self, context: CallContext) -> int:
        return self.host.hand_over(context)

    def publish(self, context: CallContext, role: str = "learner") -> Parcel:
        """Puts the weights of ``role`` into the object store."""
        header, buckets = self.host.call(role, "publish", context)
        return pack(header, buckets)

    def receive(self, context: CallContext, parcel: Parcel) -> int:
        """Loads what was published into the rollout role."""
        return int(self.host.call("rollout", "load_weights", context, parcel.header, parcel.open()))

    def where(self) -> dict[str, Any]:
        """Process and node of this actor."""
        context = ray.get_runtime_context()
        return {
            "process": Process.this(),
            "address": ray.util.get_node_ip_address(),
            "gpus": [str(i) for i in context.get_accelerator_ids().get("GPU", [])],
        }

    def close(self) -> None:
        if hasattr(self, "host"):
            self.host.close()


class StandIn(Protocol):
    """Gives a worker another actor than ``dead``, or raises ``error``."""

    def __call__(
        self, worker: RayWorker, dead: Any, error: BaseException, *, brings: bool
    ) -> None: ...


class RayWorker:
    """Handle of a role actor, and of whichever takes its place.

    Args:
        actor: The actor.
        where: Its process and node, as ``RoleActor.where`` tells.
        stand_in: Finds another actor when this one died; the lost call is then repeated.
        called: Told of every call, ``(role, method, context, *args)``.
    """

    def __init__(
        self,
        actor: Any,
        where: Mapping[str, Any],
        stand_in: StandIn,
        called: Callable[..., None],
    ) -> None:
        self.actor, self._stand_in, self._called = actor, stand_in, called
        self.moved(where)

    def moved(self, where: Mapping[str, Any]) -> None:
        """Its actor is another one, or in another place."""
        self.address: str = where["address"]
        self.process: Process = where["process"]
        self.gpus: list[str] = where["gpus"]

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Future[Any]:
        self._called(role, method, context, *args)
        if method in TOGETHER:
            return unwrapped(self.actor.call.remote(role, method, context, *args))
        brings = method in ("load", "load_weights")
        return self._ask(lambda actor: actor.call.remote(role, method, context, *args), brings)

    def usage(self, caller: str) -> Future[dict[str, float]]:
        return self._ask(lambda actor: actor.usage.remote(caller))

    def hand_over(self, context: CallContext) -> Future[int]:
        return self._ask(lambda actor: actor.hand_over.remote(context))

    def receive(self, context: CallContext, parcel: Parcel) -> Future[int]:
        """Loads what was published into the rollout role."""
        return self._ask(lambda actor: actor.receive.remote(context, parcel), True)

    def look_alive(self) -> Future[Any]:
        """Ends when the actor answers, or that in its place, which then waits for weights."""
        return self._ask(lambda actor: actor.where.remote(), True)

    def _ask(self, send: Callable[[Any], Any], brings: bool = False) -> Future[Any]:
        outer: Future[Any] = Future()
        self._try(send, brings, outer)
        return outer

    def _try(self, send: Callable[[Any], Any], brings: bool, outer: Future[Any]) -> None:
        actor = self.actor

        def again(error: BaseException) -> None:
            try:
                self._stand_in(self, actor, error, brings=brings)
                self._try(send, brings, outer)
            except Exception as other:  # noqa: BLE001 - handed to whoever asks the future
                outer.set_exception(own(other))

        def done(inner: Future[Any]) -> None:
            error = inner.exception()
            if error is None:
                outer.set_result(inner.result())
            elif isinstance(error, LOST) and not isinstance(error, RayTaskError):
                # What a role itself met is no sign of its own death. Finding another takes seconds, which
                # Ray's own thread must not wait.
                Thread(target=again, args=(error,), daemon=True).start()
            else:
                outer.set_exception(own(error))

        send(actor).future().add_done_callback(done)


def unwrapped(ref: Any) -> Future[Any]:
    """The reference's future; an error of a role arrives as itself, Ray's wrapper as its cause."""
    outer: Future[Any] = Future()

    def done(inner: Future[Any]) -> None:
        error = inner.exception()
        if error is None:
            outer.set_result(inner.result())
        else:
            outer.set_exception(own(error))

    ref.future().add_done_callback(done)
    return outer


def get(refs: Any) -> Any:
    """``ray.get`` that raises what a role raised."""
    try:
        return ray.get(refs)
    except RayTaskError as error:
        raise own(error) from error


def own(error: BaseException) -> BaseException:
    """What a role raised, out of Ray's wrapper, which keeps the traceback of the other process."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    if not isinstance(cause, Exception):
        return error
    cause.__cause__ = error
    return cause
