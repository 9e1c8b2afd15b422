"""Roles as Ray actors, each pinned to its bundle of the trial's placement group."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import PlacementError
from rlhf_core.runtime.base import RoleGroup
from rlhf_core.runtime.groups import broadcast_weights, connect_trial
from rlhf_core.runtime.placement import GB, PlacementPlan, WorkerPlace
from rlhf_core.runtime.ray_actor import RayWorker, RoleActor, get
from rlhf_core.runtime.ray_teardown import Departure
from rlhf_core.types import CallContext

# Longest time of a role to leave its groups and to end its own processes.
CLOSE_TIMEOUT_S = 1.5
ENV_VARS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class RayRuntime:
    """One actor for each worker of the plan.

    Args:
        config: The trial.
        plan: Its placement.
        placement_group: Ready; its bundles are those of the plan.
    """

    def __init__(
        self, config: TrialConfig, plan: PlacementPlan, placement_group: PlacementGroup
    ) -> None:
        if len(placement_group.bundle_specs) != len(plan.bundles):
            raise PlacementError(
                f"placement: the group has {len(placement_group.bundle_specs)} bundles, the plan "
                f"{len(plan.bundles)}"
            )
        self.plan, self.placement_group = plan, placement_group
        threads = str(config.resources.threads)
        env = {"env_vars": dict.fromkeys(ENV_VARS, threads)}
        self.config = config
        self._actors: list[tuple[WorkerPlace, Any]] = []
        self._workers: list[RayWorker] = []
        self._places: list[dict[str, Any]] = []
        try:
            self._start(config, env)
            connect_trial(self, config, plan)
        except BaseException:
            self.close()
            raise

    def _start(self, config: TrialConfig, env: dict[str, Any]) -> None:
        actor_class, plan = ray.remote(RoleActor), self.plan
        for worker in plan.workers:
            share = plan.share(worker)
            options = actor_class.options(
                num_cpus=share.cpus,
                num_gpus=share.gpus,
                memory=int(share.memory_gb * GB) or None,
                resources=dict(share.custom),
                runtime_env=env,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self.placement_group,
                    placement_group_bundle_index=worker.bundle,
                    placement_group_capture_child_tasks=True,
                ),
            )
            self._actors.append((worker, options.remote(config, worker.roles, share.gpus)))
        self._places = get([actor.where.remote() for _, actor in self._actors])
        get([actor.start.remote() for _, actor in self._actors])
        self._workers = [
            RayWorker(actor, place["address"])
            for (_, actor), place in zip(self._actors, self._places, strict=True)
        ]

    def group(self, role: str) -> RoleGroup:
        return RoleGroup(role, [self._workers[i] for i in self._hosts(role)])

    def share(self, value: Any) -> Any:
        return ray.put(value)

    def _hosts(self, role: str) -> list[int]:
        """Positions of the workers that host ``role``."""
        return [i for i, (place, _) in enumerate(self._actors) if role in place.roles]

    def placement(self) -> dict[str, Any]:
        """The plan with the nodes and devices that were really got, as ``placement.json`` holds it."""
        record = self.plan.as_dict()
        nodes = placement_group_table(self.placement_group)["bundles_to_node_id"]
        for bundle in record["bundles"]:
            bundle["node"] = nodes.get(bundle["index"])
        for worker, place in zip(record["workers"], self._places, strict=True):
            worker |= {"pid": place["process"].pid, "gpus": place["gpus"]}
        return record

    def deliver_weights(self, context: CallContext) -> Future[dict[str, float]]:
        if self.config.sync.transport == "collective":
            size = broadcast_weights(self.group("learner"), self.group("rollout"), context)
        else:
            learner = self._actors[self._hosts("learner")[0]][1]
            parcel = get(learner.publish.remote(context))
            get(
                [self._actors[i][1].receive.remote(context, parcel) for i in self._hosts("rollout")]
            )
            size = parcel.header.nbytes
        done: Future[dict[str, float]] = Future()
        done.set_result({"bytes": float(size)})
        return done

    def close(self) -> None:
        """Ends rollouts, process groups and roles, and waits until all processes are gone, on every node."""
        actors, self._actors = self._actors, []
        if not actors:
            return
        departure = Departure(place["process"] for place in self._places)
        samplers = [actor for place, actor in actors if place.roles == ("rollout",)]
        others = [actor for place, actor in actors if place.roles != ("rollout",)]
        for group in filter(None, (samplers, others)):
            # Others leave their process groups only when nobody samples any more. A busy or dead actor is killed
            # all the same, and keeps no other from closing.
            closing = [actor.close.remote() for actor in group]
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_TIMEOUT_S, fetch_local=False)
            for actor in group:
                ray.kill(actor)
        departure.wait()
