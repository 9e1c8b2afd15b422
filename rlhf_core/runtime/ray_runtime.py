"""Roles as Ray actors, each pinned to its bundle of the trial's placement group.

The only Ray code of the package.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import psutil
import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import PlacementError
from rlhf_core.runtime.base import RoleGroup
from rlhf_core.runtime.host import RoleHost
from rlhf_core.runtime.placement import GB, PlacementPlan
from rlhf_core.types import CallContext

GONE_TIMEOUT_S = 8.0
ENV_VARS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class _RoleActor:
    """A ``RoleHost`` in an actor; weights travel through the object store."""

    def __init__(self, config: TrialConfig, roles: Sequence[str], gpus: float) -> None:
        self._arguments = (config, roles, gpus)

    def start(self) -> dict[str, Any]:
        """Builds the host; not in ``__init__``, whose errors would look like a lost process."""
        if self._arguments[2] == 0:
            # An actor without GPUs would see all of them.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.host = RoleHost(*self._arguments)
        return self.where()

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Any:
        return self.host.call(role, method, context, *args)

    def usage(self, caller: str) -> dict[str, float]:
        return self.host.usage(caller)

    def publish(self, context: CallContext) -> tuple[Any, list[Any], float]:
        """Puts the learner's buckets into the object store; returns header, references and bytes."""
        header, buckets = self.host.call("learner", "publish", context)
        size = float(sum(bucket.nbytes for bucket in buckets))
        return header, [ray.put(bucket) for bucket in buckets], size

    def receive(self, context: CallContext, header: Any, refs: list[Any]) -> int:
        """Loads published buckets into the rollout role."""
        return int(self.host.call("rollout", "load_weights", context, header, ray.get(refs)))

    def where(self) -> dict[str, Any]:
        """Process and node of this actor."""
        context = ray.get_runtime_context()
        return {
            "pid": os.getpid(),
            "node": context.get_node_id(),
            "gpus": [str(i) for i in context.get_accelerator_ids().get("GPU", [])],
        }

    def close(self) -> None:
        if hasattr(self, "host"):
            self.host.close()


class RayWorker:
    """Handle of a role actor."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Future[Any]:
        return _unwrapped(self.actor.call.remote(role, method, context, *args))

    def usage(self, caller: str) -> Future[dict[str, float]]:
        return _unwrapped(self.actor.usage.remote(caller))


def _unwrapped(ref: Any) -> Future[Any]:
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


def _own(error: BaseException) -> BaseException:
    """What a role raised, out of Ray's wrapper, which keeps the traceback of the other process."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    if not isinstance(cause, Exception):
        return error
    cause.__cause__ = error
    return cause


def _get(refs: Any) -> Any:
    try:
        return ray.get(refs)
    except RayTaskError as error:
        raise _own(error) from error


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
        self._actors: list[tuple[Any, Any]] = []
        self._places: list[dict[str, Any]] = []
        try:
            self._start(config, env)
        except BaseException:
            self.close()
            raise

    def _start(self, config: TrialConfig, env: dict[str, Any]) -> None:
        actor_class, plan = ray.remote(_RoleActor), self.plan
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
        self._places = _get([actor.start.remote() for _, actor in self._actors])

    def group(self, role: str) -> RoleGroup:
        return RoleGroup(role, [RayWorker(a) for place, a in self._actors if role in place.roles])

    def placement(self) -> dict[str, Any]:
        """The plan with the nodes and devices that were really got, as ``placement.json`` holds it."""
        record = self.plan.as_dict()
        nodes = placement_group_table(self.placement_group)["bundles_to_node_id"]
        for bundle in record["bundles"]:
            bundle["node"] = nodes.get(bundle["index"])
        for worker, place in zip(record["workers"], self._places, strict=True):
            worker |= {"pid": place["pid"], "gpus": place["gpus"]}
        return record

    def deliver_weights(self, context: CallContext) -> Future[dict[str, float]]:
        learner = next(a for place, a in self._actors if "learner" in place.roles)
        rollouts = [a for place, a in self._actors if "rollout" in place.roles]
        header, refs, size = _get(learner.publish.remote(context))
        # References travel inside a list: Ray would resolve bare ones on the way.
        _get([actor.receive.remote(context, header, refs) for actor in rollouts])
        done: Future[dict[str, float]] = Future()
        done.set_result({"bytes": size})
        return done

    def close(self) -> None:
        """Ends the actors and waits until their processes are gone, so that their devices are free."""
        actors, self._actors = self._actors, []
        if not actors:
            return
        # A busy or dead actor is killed all the same, and keeps no other from closing.
        closing = [actor.close.remote() for _, actor in actors]
        ray.wait(closing, num_returns=len(closing), timeout=2, fetch_local=False)
        for _, actor in actors:
            ray.kill(actor)
        here = ray.get_runtime_context().get_node_id()
        _wait_gone([place["pid"] for place in self._places if place["node"] == here])


def _wait_gone(pids: Sequence[int]) -> None:
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
