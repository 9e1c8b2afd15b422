"""A ``RoleHost`` as a Ray actor, and the handle through which others call it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayTaskError

from rlhf_core.config.trial import TrialConfig
from rlhf_core.runtime.host import RoleHost
from rlhf_core.runtime.ray_delivery import Parcel, pack
from rlhf_core.runtime.ray_teardown import Process
from rlhf_core.types import CallContext


class RoleActor:
    """A ``RoleHost`` in an actor."""

    def __init__(self, config: TrialConfig, roles: Sequence[str], gpus: float) -> None:
        self._arguments = (config, roles, gpus)

    def start(self) -> None:
        """Builds the host; not in ``__init__``, whose errors would look like a lost process."""
        if self._arguments[2] == 0:
            # An actor without GPUs would see all of them.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.host = RoleHost(*self._arguments)

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Any:
        return self.host.call(role, method, context, *args)

    def usage(self, caller: str) -> dict[str, float]:
        return self.host.usage(caller)

    def hand_over(self, context: CallContext) -> int:
        return self.host.hand_over(context)

    def publish(self, context: CallContext) -> Parcel:
        """Puts the learner's weights into the object store."""
        header, buckets = self.host.call("learner", "publish", context)
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


class RayWorker:
    """Handle of a role actor.

    Args:
        actor: The actor.
        address: Address of its node.
    """

    def __init__(self, actor: Any, address: str) -> None:
        self.actor, self.address = actor, address

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Future[Any]:
        return unwrapped(self.actor.call.remote(role, method, context, *args))

    def usage(self, caller: str) -> Future[dict[str, float]]:
        return unwrapped(self.actor.usage.remote(caller))

    def hand_over(self, context: CallContext) -> Future[int]:
        return unwrapped(self.actor.hand_over.remote(context))


def unwrapped(ref: Any) -> Future[Any]:
    """The reference's future; an error of a role arrives as itself, Ray's wrapper as its cause."""
    outer: Future[Any] = Future()

    def done(inner: Future[Any]) -> None:
        error = inner.exception()
        if error is None:
            outer.set_result(inner.result())
        else:
            outer.set_exception(_own(error))

    ref.future().add_done_callback(done)
    return outer


def get(refs: Any) -> Any:
    """``ray.get`` that raises what a role raised."""
    try:
        return ray.get(refs)
    except RayTaskError as error:
        raise _own(error) from error


def _own(error: BaseException) -> BaseException:
    """What a role raised, out of Ray's wrapper, which keeps the traceback of the other process."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    if not isinstance(cause, Exception):
        return error
    cause.__cause__ = error
    return cause
