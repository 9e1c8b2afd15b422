"""Roles as Ray actors, each pinned to its bundle of the trial's placement group."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlhf_core.config.engines import joint_methods, keeps_models
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import PlacementError
from rlhf_core.runtime.base import RoleGroup, gather
from rlhf_core.runtime.groups import broadcast_weights, connect_trial, connect_weights
from rlhf_core.runtime.placement import GB, PlacementPlan, WorkerPlace
from rlhf_core.runtime.ray_actor import RayWorker, RoleActor, get
from rlhf_core.runtime.ray_replacement import Replacements
from rlhf_core.runtime.ray_teardown import LOST, Departure
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
        warm: Whether other trials may follow in the same processes.
    """

    concurrent = True

    def __init__(
        self,
        config: TrialConfig,
        plan: PlacementPlan,
        placement_group: PlacementGroup,
        warm: bool = False,
    ) -> None:
        if len(placement_group.bundle_specs) != len(plan.bundles):
            raise PlacementError(
                f"placement: the group has {len(placement_group.bundle_specs)} bundles, the plan "
                f"{len(plan.bundles)}"
            )
        self.plan, self.placement_group, self.config = plan, placement_group, config
        self._run = uuid.uuid4().hex if warm else None
        self.replacements = Replacements(config.resources.max_replacements, self._launch)
        self._workers: list[tuple[WorkerPlace, RayWorker]] = []
        self._actors: list[Any] = []
        try:
            self._start()
            connect_trial(self, config, plan)
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        places = self.plan.workers
        self._actors = [self._launch(place) for place in places]
        found = get([actor.where.remote() for actor in self._actors])
        stand_in, called = self.replacements.stand_in, self.replacements.called
        self._workers = [
            (place, RayWorker(actor, where, stand_in, called))
            for place, actor, where in zip(places, self._actors, found, strict=True)
        ]
        self.replacements.workers = self._workers
        get([actor.start.remote() for actor in self._actors])

    def _launch(self, place: WorkerPlace) -> Any:
        """An actor for ``place``, pinned to its bundle; not started."""
        config, share = self.config, self.plan.share(place)
        env = {"env_vars": dict.fromkeys(ENV_VARS, str(config.resources.threads))}
        options = ray.remote(RoleActor).options(
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            memory=int(share.memory_gb * GB) or None,
            resources=dict(share.custom),
            runtime_env=env,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=self.placement_group,
                placement_group_bundle_index=place.bundle,
                placement_group_capture_child_tasks=True,
            ),
        )
        return options.remote(config, place.roles, share.gpus, self._run)

    def reset(self, config: TrialConfig, plan: PlacementPlan, checks: bool = False) -> bool:
        """Begins another trial in the same processes; False where they do not suit it.

        Args:
            config: The trial.
            plan: Its placement.
            checks: Compares what the processes kept with what new ones would read.

        Raises:
            WarmError: If that differs.
            RayActorError: If a process has died.
        """
        if (
            self._run is None
            or plan != self.plan
            or _started_with(config) != _started_with(self.config)
            or not (keeps_models(self.config) and keeps_models(config))
        ):
            return False
        self.config = config
        self.replacements.begin(config.resources.max_replacements)
        get([worker.actor.reset.remote(config, checks) for _, worker in self._workers])
        connect_trial(self, config, plan)
        return True

    def group(self, role: str) -> RoleGroup:
        workers = [worker for place, worker in self._workers if role in place.roles]
        return RoleGroup(role, workers, joint_methods(self.config, role))

    def share(self, value: Any) -> Any:
        return ray.put(value)

    def metrics(self) -> dict[str, float]:
        return {"runtime/replaced": float(self.replacements.take_count())}

    def events(self) -> list[str]:
        """What happened to workers since last asked, one line each."""
        return self.replacements.take_events()

    def placement(self) -> dict[str, Any]:
        """The plan with the nodes and devices that were really got, as ``placement.json`` holds it."""
        record = self.plan.as_dict()
        nodes = placement_group_table(self.placement_group)["bundles_to_node_id"]
        for bundle in record["bundles"]:
            bundle["node"] = nodes.get(bundle["index"])
        for worker, (_, handle) in zip(record["workers"], self._workers, strict=True):
            worker |= {"pid": handle.process.pid, "gpus": handle.gpus}
        return record

    def deliver_weights(self, context: CallContext) -> Future[dict[str, float]]:
        parcel = None
        if self.config.sync.transport == "object_store":
            parcel, size = self.publish(context)
            self.receive(context, parcel)
        else:
            size = self._broadcast(context)
            # Until the next delivery nobody else has what a rollout that is alone was sent.
            if len(self.group("rollout").workers) == 1 and self.config.sync_interval > 1:
                parcel, _ = self.publish(context)
        self.replacements.delivered(context.version, parcel)
        done: Future[dict[str, float]] = Future()
        done.set_result({"bytes": float(size)})
        return done

    def publish(self, context: CallContext) -> tuple[Any, int]:
        learner = self.group("learner")
        ranks = learner.workers if "publish" in learner.joint else learner.workers[:1]
        parcel = get([worker.actor.publish.remote(context) for worker in ranks])[0]
        return parcel, int(parcel.header.nbytes)

    def receive(self, context: CallContext, parcel: Any) -> None:
        workers = [worker for place, worker in self._workers if "rollout" in place.roles]
        gather(worker.receive(context, parcel) for worker in workers)
        self.replacements.delivered(context.version, parcel, learner_too=False)

    def _broadcast(self, context: CallContext) -> int:
        """Sends the weights over the group; once more, over a new group, when a rollout died in it."""
        learner, rollouts = self.group("learner"), self.group("rollout")
        while True:
            try:
                if self.replacements.unseated:
                    connect_weights(self, self.config)
                    self.replacements.unseated = False
                return broadcast_weights(learner, rollouts, context)
            except LOST:
                before = self.replacements.count
                gather(w.look_alive() for place, w in self._workers if "rollout" in place.roles)
                if self.replacements.count == before:
                    # It was the learner.
                    raise

    def close(self) -> None:
        """Ends rollouts, process groups and roles, and waits until all processes are gone, on every node."""
        self.replacements.close()
        workers, self._workers = self._workers, []
        actors, self._actors = self._actors, []
        if not actors:
            return
        processes = [worker.process for _, worker in workers]
        departure = Departure([*processes, *self.replacements.gone])
        samplers = [worker.actor for place, worker in workers if place.roles == ("rollout",)]
        others = [worker.actor for place, worker in workers if place.roles != ("rollout",)]
        # Others leave their process groups only when nobody samples any more.
        for group in (samplers, others or actors):
            _end(group)
        departure.wait()


def _started_with(config: TrialConfig) -> Hashable:
    """What a process cannot change any more."""
    return config.resources.threads, config.model.device


def _end(actors: Sequence[Any]) -> None:
    """Lets the actors close and kills them; a busy or dead one is killed all the same, and holds up no other."""
    closing = [actor.close.remote() for actor in actors]
    if closing:
        ray.wait(closing, num_returns=len(closing), timeout=CLOSE_TIMEOUT_S, fetch_local=False)
    for actor in actors:
        ray.kill(actor)
