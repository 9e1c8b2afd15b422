"""Roles in the calling process: layout ``fused``, tests, and one trial on a laptop."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rlhf_core.config.engines import joint_methods, keeps_models
from rlhf_core.config.trial import TrialConfig
from rlhf_core.models.warm import Shelf
from rlhf_core.node_files import node_root
from rlhf_core.runtime.base import RoleGroup, gather
from rlhf_core.runtime.groups import broadcast_weights, connect_trial
from rlhf_core.runtime.host import RoleHost
from rlhf_core.runtime.placement import PlacementPlan
from rlhf_core.types import CallContext


class LocalWorker:
    """A host in this process.

    Args:
        host: Its roles.
        threaded: With a thread of its own, so that ranks can meet; otherwise a call has finished when it returns.
    """

    address = "127.0.0.1"

    def __init__(self, host: RoleHost, threaded: bool = False) -> None:
        self.host = host
        self._thread = ThreadPoolExecutor(1, "roles") if threaded else None

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Future[Any]:
        return self._do(self.host.call, role, method, context, *args)

    def usage(self, caller: str) -> Future[dict[str, float]]:
        return self._do(self.host.usage, caller)

    def hand_over(self, context: CallContext) -> Future[int]:
        return self._do(self.host.hand_over, context)

    def reset(self, config: TrialConfig, checks: bool) -> Future[None]:
        return self._do(self.host.reset, config, checks)

    def close(self) -> None:
        if self._thread is not None:
            # A rank that waits for others ends by its timeout.
            self._thread.shutdown(wait=False, cancel_futures=True)
        self.host.close()

    def _do(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._thread is not None:
            return self._thread.submit(work, *args)
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args))
        except Exception as error:  # noqa: BLE001 - handed to whoever asks the future
            future.set_exception(error)
        return future


class LocalRuntime:
    """One ``RoleHost`` for each worker of the plan, in this process; each has a thread where there are several.

    Args:
        config: The trial.
        plan: Its placement; only who hosts what is used.
        gpus: GPUs this process was given.
        warm: Whether other trials may follow.
    """

    def __init__(
        self, config: TrialConfig, plan: PlacementPlan, gpus: float = 0.0, warm: bool = False
    ) -> None:
        self.config, self.plan, self.concurrent = config, plan, len(plan.workers) > 1
        run = node_root() / uuid.uuid4().hex if warm else None
        self._workers = [
            (
                place,
                LocalWorker(
                    RoleHost(config, place.roles, gpus, shelf=Shelf(run) if run else None),
                    self.concurrent,
                ),
            )
            for place in plan.workers
        ]
        try:
            connect_trial(self, config, plan)
        except BaseException:
            self.close()
            raise

    def reset(self, config: TrialConfig, plan: PlacementPlan, checks: bool = False) -> bool:
        """Begins another trial, as ``RayRuntime.reset``."""
        if plan != self.plan or any(worker.host.shelf is None for _, worker in self._workers):
            return False
        if not (keeps_models(self.config) and keeps_models(config)):
            return False
        self.config = config
        gather([worker.reset(config, checks) for _, worker in self._workers])
        connect_trial(self, config, plan)
        return True

    def group(self, role: str) -> RoleGroup:
        workers = [worker for place, worker in self._workers if role in place.roles]
        return RoleGroup(role, workers, joint_methods(self.config, role))

    def publish(self, context: CallContext) -> tuple[Any, int]:
        header, buckets = self.group("learner").call("publish", context).result()
        # What is published are the learner's own parameters, which it goes on changing.
        return (header, [bucket.copy() for bucket in buckets]), int(header.nbytes)

    def receive(self, context: CallContext, parcel: Any) -> None:
        gather(self.group("rollout").call_all("load_weights", context, *parcel))

    def share(self, value: Any) -> Any:
        return value

    def deliver_weights(self, context: CallContext) -> Future[dict[str, float]]:
        learner, rollouts = self.group("learner"), self.group("rollout")
        if self.config.sync.transport == "collective":
            size = broadcast_weights(learner, rollouts, context)
        else:
            header, buckets = learner.call("publish", context).result()
            gather(rollouts.call_all("load_weights", context, header, buckets))
            size = header.nbytes
        done: Future[dict[str, float]] = Future()
        done.set_result({"bytes": float(size)})
        return done

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        for _, worker in self._workers:
            worker.close()
