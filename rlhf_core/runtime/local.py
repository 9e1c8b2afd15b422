"""Roles in the calling process: layout ``fused``, tests, and one trial on a laptop."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from rlhf_core.config.trial import TrialConfig
from rlhf_core.runtime.base import RoleGroup
from rlhf_core.runtime.host import RoleHost
from rlhf_core.runtime.placement import PlacementPlan
from rlhf_core.types import CallContext


class LocalWorker:
    """A host in this process. A call has finished when it returns."""

    def __init__(self, host: RoleHost) -> None:
        self.host = host

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self.host.call(role, method, context, *args))
        except Exception as error:  # noqa: BLE001 - handed to whoever asks the future
            future.set_exception(error)
        return future

    def usage(self, caller: str) -> Future[dict[str, float]]:
        future: Future[dict[str, float]] = Future()
        future.set_result(self.host.usage(caller))
        return future


class LocalRuntime:
    """One ``RoleHost`` for each worker of the plan, all in this process.

    Args:
        config: The trial.
        plan: Its placement; only who hosts what is used.
        gpus: GPUs this process was given.
    """

    def __init__(self, config: TrialConfig, plan: PlacementPlan, gpus: float = 0.0) -> None:
        self._workers = [(w, LocalWorker(RoleHost(config, w.roles, gpus))) for w in plan.workers]

    def group(self, role: str) -> RoleGroup:
        return RoleGroup(role, [worker for place, worker in self._workers if role in place.roles])

    def deliver_weights(self, context: CallContext) -> Future[dict[str, float]]:
        weights = self.group("learner").call("publish", context).result()
        for future in self.group("rollout").call_all("load_weights", context, *weights):
            future.result()
        done: Future[dict[str, float]] = Future()
        done.set_result({"bytes": float(sum(bucket.nbytes for bucket in weights[1]))})
        return done

    def close(self) -> None:
        for _, worker in self._workers:
            worker.host.close()
