"""Frozen roles as services of a sweep: the replica as a Ray actor, and a trial's handle of a service.

The driver of a sweep makes the actors (``sweeps/tuning/services.py``); a trial finds them by name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from rlhf_core.errors import ServiceError
from rlhf_core.runtime.base import RoleGroup, Runtime
from rlhf_core.runtime.ray_actor import unwrapped
from rlhf_core.runtime.served import ServedRole
from rlhf_core.runtime.shared import ServiceOrder
from rlhf_core.types import CallContext

# Calls that a replica takes in at once, so that its queue decides whose turn it is, and not Ray's.
AT_ONCE = 100_000


class ServiceActor:
    """A replica. Calls wait in its own queue; Ray restarts it, empty, where its process dies."""

    def __init__(self, order: ServiceOrder, gpus: float, turn: int) -> None:
        if gpus == 0:
            # An actor without GPUs would see all of them.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.served = ServedRole(order, gpus, turn)

    async def call(self, role: str, method: str, context: CallContext, *args: Any) -> Any:
        return await asyncio.wrap_future(self.served.call(role, method, context, *args))

    async def usage(self, caller: str) -> dict[str, float]:
        return self.served.usage(caller)

    async def charge(self, caller: str) -> float:
        return self.served.charge(caller)

    async def where(self) -> dict[str, Any]:
        """Process, node and fingerprint of this replica."""
        context = ray.get_runtime_context()
        return {
            "pid": os.getpid(),
            "node": context.get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "gpus": [str(i) for i in context.get_accelerator_ids().get("GPU", [])],
            "fingerprint": self.served.order.fingerprint,
        }

    async def close(self) -> None:
        await asyncio.to_thread(self.served.close)


@dataclass(frozen=True)
class Seat:
    """Where a trial finds a service.

    Attributes:
        name: Of the service, for people.
        role: Its role.
        fingerprint: Of its models and settings.
        actors: Ray's name of each replica.
        gpus, cpus: What each replica has reserved.
    """

    name: str
    role: str
    fingerprint: str
    actors: tuple[str, ...]
    gpus: float
    cpus: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as Tune's configurations hold them."""
        return {**vars(self), "actors": list(self.actors)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Seat:
        return cls(**{**values, "actors": tuple(values["actors"])})


class ServiceWorker:
    """A replica, as a trial calls it; Ray, not the trial, finds another one where it died."""

    def __init__(self, actor: Any, address: str, seat: Seat) -> None:
        self.actor, self.address, self.seat = actor, address, seat

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Future[Any]:
        return _named(unwrapped(self.actor.call.remote(role, method, context, *args)), self.seat)

    def usage(self, caller: str) -> Future[dict[str, float]]:
        return _named(unwrapped(self.actor.usage.remote(caller)), self.seat)

    def hand_over(self, context: CallContext) -> Future[int]:
        raise ServiceError(f"service {self.seat.name}: a frozen role hands no weights over")


class SharedGroup(RoleGroup):
    """A service in place of a role group of the trial's own."""

    def __init__(self, seat: Seat, workers: Sequence[ServiceWorker]) -> None:
        super().__init__(seat.role, workers)
        self.seat = seat

    def charged(self, caller: str) -> dict[str, float]:
        try:
            seconds = sum(ray.get([worker.actor.charge.remote(caller) for worker in self.workers]))
        except RayActorError as error:
            raise _lost(self.seat, error) from error
        return {"gpu_seconds": seconds * self.seat.gpus, "cpu_seconds": seconds * self.seat.cpus}


class WithServices:
    """A trial's runtime in which services have some of the roles."""

    def __init__(self, own: Runtime, shared: Mapping[str, SharedGroup]) -> None:
        self._own, self._shared = own, shared

    def group(self, role: str) -> RoleGroup:
        return self._shared.get(role) or self._own.group(role)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def connect_services(seats: Mapping[str, Seat]) -> dict[str, SharedGroup]:
    """The services of a trial, once every replica has answered.

    Raises:
        ServiceError: One is gone, or is not the one that was asked for.
    """
    return {role: _connected(seat) for role, seat in seats.items()}


def _connected(seat: Seat) -> SharedGroup:
    workers = []
    for name in seat.actors:
        try:
            actor = ray.get_actor(name)
            place = ray.get(actor.where.remote())
        except (ValueError, RayActorError) as error:
            raise _lost(seat, error) from error
        if place["fingerprint"] != seat.fingerprint:
            raise ServiceError(
                f"service {seat.name}: it must have fingerprint {seat.fingerprint}, but has "
                f"{place['fingerprint']}; start the sweep again"
            )
        workers.append(ServiceWorker(actor, place["address"], seat))
    return SharedGroup(seat, workers)


def _named(inner: Future[Any], seat: Seat) -> Future[Any]:
    """The future, with an error that names the service where its replica is gone for good."""
    outer: Future[Any] = Future()

    def done(future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            outer.set_result(future.result())
        elif isinstance(error, RayActorError):
            outer.set_exception(_lost(seat, error))
        else:
            outer.set_exception(error)

    inner.add_done_callback(done)
    return outer


def _lost(seat: Seat, error: BaseException) -> ServiceError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    lost = ServiceError(
        f"service {seat.name} is gone, and with it the shared {seat.role} ({reason}); raise "
        f"cluster.services.replacements, or use resources.roles.{seat.role}.placement 'trial'"
    )
    lost.__cause__ = error
    return lost
