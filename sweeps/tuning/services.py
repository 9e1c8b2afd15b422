"""Services of a sweep on Ray: made by its driver, each in a placement group of its own, gone at the end.

Neither actors nor groups are detached: they end with the driver's process, however it ends.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlhf_core.errors import PlacementError
from rlhf_core.runtime.placement import GB, Node, PlacementPlan, group_request
from rlhf_core.runtime.ray_runtime import ENV_VARS
from rlhf_core.runtime.ray_service import AT_ONCE, Seat, ServiceActor
from rlhf_core.runtime.shared import ServiceOrder, SharedRole
from sweeps.config import ServicesConfig
from sweeps.decide.replicas import Answered, Died, End, Event, Replicas, Silent, Tell, decide
from sweeps.record import RunDirectory
from sweeps.services import left, refusal

logger = logging.getLogger(__name__)
ASK_EVERY_S = 2.0
CLOSE_TIMEOUT_S = 8.0


@dataclass
class _Service:
    """A running service; ``places`` is what each replica last said of itself."""

    order: ServiceOrder
    plan: PlacementPlan
    seat: Seat
    group: PlacementGroup
    actors: dict[str, Any]
    asked: dict[str, Any] = field(default_factory=dict)
    places: dict[str, dict[str, Any]] = field(default_factory=dict)


class RayServices:
    """Services on the connected cluster.

    Args:
        config: Their limits.
        directory: Where they are recorded.
        nodes: What the cluster offers in total.
    """

    def __init__(
        self, config: ServicesConfig, directory: RunDirectory, nodes: Sequence[Node]
    ) -> None:
        self.config, self.directory, self.nodes = config, directory, list(nodes)
        # Sweeps on one cluster have services of their own, also for equal models.
        self._sweep = uuid.uuid4().hex[:8]
        self._running: dict[str, _Service] = {}
        self._replicas = Replicas(config.timeout_s)
        self._asked = -ASK_EVERY_S

    def seats(self, asked: Sequence[SharedRole], trial: PlacementPlan) -> dict[str, dict[str, Any]]:
        return {shared.role: self._service(shared, trial).seat.as_dict() for shared in asked}

    def start(self, asked: Sequence[SharedRole]) -> None:
        """Starts services before the first trial asks.

        Raises:
            ConfigError: A model cannot be read, or the nodes do not hold them all.
        """
        for shared in asked:
            self._service(shared, None)

    def room(self, nodes: Sequence[Node]) -> list[Node]:
        rest = list(nodes)
        for service in self._running.values():
            rest = _without(rest, service)
        return rest

    def watch(self, now: float) -> None:
        for service in self._running.values():
            for name in service.actors:
                self._look(service, name, now)
        if now - self._asked >= ASK_EVERY_S:
            self._asked = now

    def close(self) -> None:
        """Ends replicas and removes their groups; returns when they are gone."""
        running, self._running = self._running, {}
        if not running or not ray.is_initialized():
            return
        try:
            self._end(running)
        except Exception as error:  # noqa: BLE001 - a cluster that is lost must not hide how the sweep ended
            logger.warning("services could not be ended one by one: %r", error)

    def _end(self, running: Mapping[str, _Service]) -> None:
        for service in running.values():
            for name in service.actors:
                self._look(service, name, time.monotonic())
        actors = [actor for service in running.values() for actor in service.actors.values()]
        # What a role holds besides memory ends with its own close; a busy or dead one is killed all the same.
        closing = [actor.close.remote() for actor in actors]
        ray.wait(closing, num_returns=len(closing), timeout=2, fetch_local=False)
        for actor in actors:
            ray.kill(actor)
        for service in running.values():
            remove_placement_group(service.group)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while time.monotonic() < deadline and any(
            placement_group_table(service.group)["state"] != "REMOVED"
            for service in running.values()
        ):
            time.sleep(0.02)

    # One service

    def _service(self, shared: SharedRole, trial: PlacementPlan | None) -> _Service:
        order = shared.order
        found = self._running.get(order.fingerprint)
        if found is None:
            lack = refusal(shared, self.room(self.nodes), trial)
            if lack is not None:
                raise PlacementError(lack)
            found = self._running[order.fingerprint] = self._made(order, shared.plan)
        return found

    def _made(self, order: ServiceOrder, plan: PlacementPlan) -> _Service:
        """Asks for the group and its actors; waits for neither."""
        group = placement_group(**group_request(plan), name=f"{order.name} {self._sweep}")
        names = [f"{self._sweep} {order.name} {i}" for i in range(len(plan.bundles))]
        actors = {}
        env = {"env_vars": dict.fromkeys(ENV_VARS, str(order.config.resources.threads))}
        for worker, name in zip(plan.workers, names, strict=True):
            share = plan.share(worker)
            options = ray.remote(ServiceActor).options(
                name=name,
                num_cpus=share.cpus,
                num_gpus=share.gpus,
                memory=int(share.memory_gb * GB) or None,
                resources=dict(share.custom),
                runtime_env=env,
                max_concurrency=AT_ONCE,
                max_restarts=self.config.replacements,
                # A lost call is asked again of the replacement; roles keep no state between calls.
                max_task_retries=-1 if self.config.replacements else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=worker.bundle
                ),
            )
            actors[name] = options.remote(order, share.gpus, self.config.turn)
        bundle = plan.bundles[0]
        seat = Seat(
            order.name, order.role, order.fingerprint, tuple(names), bundle.gpus, bundle.cpus
        )
        return _Service(order, plan, seat, group, actors)

    # What becomes of replicas

    def _look(self, service: _Service, name: str, now: float) -> None:
        waiting = service.asked.get(name)
        if waiting is None:
            if now - self._asked >= ASK_EVERY_S:
                service.asked[name] = service.actors[name].where.remote()
            return
        done, _ = ray.wait([waiting], timeout=0, fetch_local=False)
        event: Event = Silent(name)
        if done:
            del service.asked[name]
            event = self._heard(service, name, waiting)
        for action in decide(self._replicas, event, now):
            if isinstance(action, Tell):
                self._tell(service, action)
            elif isinstance(action, End):
                ray.kill(service.actors[name])

    def _heard(self, service: _Service, name: str, answer: Any) -> Event:
        try:
            place = ray.get(answer)
        except RayError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return Died(name, lines[0])
        service.places[name] = place
        return Answered(name, f"{place['node']} {place['pid']}")

    def _tell(self, service: _Service, action: Tell) -> None:
        index = list(service.actors).index(action.replica)
        self.directory.service_event(
            {
                "service": service.seat.name,
                "role": service.seat.role,
                "replica": index,
                "event": action.event,
                "replacements": action.count,
                "reason": action.reason,
            }
        )
        if len(service.places) == len(service.actors):
            self.directory.write_service(service.seat.name, self._placed(service))

    def _placed(self, service: _Service) -> dict[str, Any]:
        """As a trial's ``placement.json``."""
        record = service.plan.as_dict()
        nodes = placement_group_table(service.group)["bundles_to_node_id"]
        for bundle in record["bundles"]:
            bundle["node"] = nodes.get(bundle["index"])
        for worker, place in zip(record["workers"], service.places.values(), strict=True):
            worker |= {"pid": place["pid"], "gpus": place["gpus"]}
        names = {"service": service.seat.name, "role": service.seat.role}
        return {**names, "fingerprint": service.seat.fingerprint, **record}


def _without(nodes: Sequence[Node], service: _Service) -> list[Node]:
    """What a service leaves: of the nodes where it is, or while that is not known, where it would go."""
    known = {getattr(node, "id", None): i for i, node in enumerate(nodes)}
    places = [known.get(place["node"]) for place in service.places.values()]
    if None in places or len(places) < len(service.plan.bundles):
        return left(nodes, [service.plan])
    rest = list(nodes)
    for bundle, index in zip(service.plan.bundles, places, strict=True):
        if index is not None:
            rest[index] = rest[index].without(bundle)
    return rest


@contextlib.contextmanager
def serving(
    config: ServicesConfig, directory: RunDirectory, nodes: Sequence[Node]
) -> Iterator[RayServices]:
    """The services of a sweep, ended on every way out.

    Args:
        config: Their limits.
        directory: Where they are recorded.
        nodes: What the cluster offers in total.
    """
    services = RayServices(config, directory, nodes)
    try:
        yield services
    finally:
        services.close()
