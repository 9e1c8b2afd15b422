"""New actors in the place of dead ones, inside a running trial: for workers whose roles learn nothing.

What such a worker is asked follows from the call alone and, for rollouts, from a weight version that others or the
object store still hold. So a lost call is repeated by the new actor, and the trial's numbers are those of an
undisturbed one.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from rlhf_core.errors import RlhfError
from rlhf_core.runtime.placement import WorkerPlace
from rlhf_core.runtime.ray_actor import RayWorker, get
from rlhf_core.runtime.ray_delivery import Parcel
from rlhf_core.runtime.ray_teardown import Departure, Process
from rlhf_core.types import CallContext

REPLACEABLE = frozenset({"rollout", "reference", "reward"})
# Ray gives a lost node up after about 13 s and then looks for another one for the bundle.
START_TIMEOUT_S, START_TRIES, LOOK_S = 60.0, 3, 0.5
CONTEXT = CallContext("runtime")


class Replacements:
    """Replaces dead workers of a trial, one at a time.

    Args:
        limit: At most so many.
        launch: Starts the actor of a place.

    Attributes:
        workers: All workers of the trial with their places; filled by the runtime.
        unseated: Whether a rollout was replaced that is to sit in the group of weights again.
        gone: Processes of dead workers.
    """

    def __init__(self, limit: int, launch: Callable[[WorkerPlace], Any]) -> None:
        self.launch = launch
        self.workers: Sequence[tuple[WorkerPlace, RayWorker]] = ()
        self.gone: list[Process] = []
        self._closed = False
        self._lock = threading.Lock()
        self.begin(limit)

    def begin(self, limit: int) -> None:
        """A trial begins, with the first weights everywhere."""
        self.limit, self.count, self._counted = limit, 0, 0
        self.unseated = False
        self._told: list[str] = []
        # Version that all rollouts hold, None: not known; and whether the learner still holds it.
        self._version: int | None = 0
        self._learner_too = True
        # What brought these weights: a method of an actor and its arguments.
        self._brought: tuple[str, tuple[Any, ...]] | None = None

    def close(self) -> None:
        """From now on nobody is replaced; returns when no replacement is under way."""
        self._closed = True
        with self._lock:
            pass

    def delivered(
        self, version: int | None, parcel: Parcel | None, *, learner_too: bool = True
    ) -> None:
        """The rollouts hold weights ``version`` now, and the learner, too, unless it may have gone on.

        A ``parcel`` of them is kept until the next delivery: a rollout that is alone has no other source.
        """
        self._version, self._learner_too = version, learner_too
        self._brought = None if parcel is None else ("receive", (CONTEXT, parcel))

    def called(self, role: str, method: str, context: CallContext, *args: Any) -> None:
        """What is called tells who holds which weights."""
        if role == "learner" and method in ("update", "load"):
            self._learner_too = False
        elif role == "rollout" and method == "load":
            self._version = None
            self._brought = ("call", (role, method, context, *args))

    def take_events(self) -> list[str]:
        """What was replaced since last asked, one line each."""
        events, self._told = self._told, []
        return events

    def take_count(self) -> int:
        """How many were replaced since last asked."""
        new, self._counted = self.count - self._counted, self.count
        return new

    def stand_in(self, worker: RayWorker, dead: Any, error: BaseException, *, brings: bool) -> None:
        """Returns when ``worker`` has another actor than ``dead``, with the weights it needs.

        Args:
            worker: Whose actor died.
            dead: That actor.
            error: What says so.
            brings: Whether the lost call itself brings weights.

        Raises:
            BaseException: ``error``, where the worker cannot be replaced.
        """
        with self._lock:
            if worker.actor is not dead:
                return
            place = next(place for place, other in self.workers if other is worker)
            learns = not REPLACEABLE.issuperset(place.roles)
            if self._closed or learns or self.count >= self.limit:
                raise error
            self.count += 1
            actor = self._start(worker, place, error)
            if "rollout" in place.roles:
                self.unseated = True
                if not brings:
                    self._bring_weights(actor, worker, error)
            worker.actor = actor
            reason = str(error).strip().splitlines()[0]
            self._told.append(f"{place.name} {place.index} was replaced: {reason}")

    def _start(self, worker: RayWorker, place: WorkerPlace, error: BaseException) -> Any:
        """A new actor in the same bundle, once the old process is gone and its device with it."""
        departure = Departure([worker.process])
        # It may only be out of reach.
        ray.kill(worker.actor)
        departure.wait()
        self.gone.append(worker.process)
        deadline = time.monotonic() + START_TIMEOUT_S
        for tries_left in reversed(range(START_TRIES)):
            actor = self.launch(place)
            try:
                where = self._answer(actor.where.remote(), deadline)
                get(actor.start.remote())
            except RayError as failure:
                ray.kill(actor)
                # Until Ray has given a lost node up it sends new actors there.
                if not isinstance(failure, RayActorError) or not tries_left:
                    raise error from failure
                continue
            worker.moved(where)
            return actor
        raise error

    def _answer(self, ref: Any, deadline: float) -> Any:
        """What a new actor answers; its bundle may have to find another node first."""
        while not self._closed and time.monotonic() < deadline:
            if ray.wait([ref], timeout=LOOK_S)[0]:
                break
        return ray.get(ref, timeout=0)

    def _bring_weights(self, actor: Any, worker: RayWorker, error: BaseException) -> None:
        """Weights of the version that the others hold, from whoever has them."""
        if self._version == 0:
            return
        for bring in self._ways(worker):
            try:
                bring(actor)
            except (RayError, RlhfError):
                # Dead as well, a delivery broke off in it, or a checkpoint is gone: another one may have them.
                continue
            return
        ray.kill(actor)
        raise error

    def _ways(self, worker: RayWorker) -> Iterator[Callable[[Any], Any]]:
        """How an actor may come to the weights that the others hold, those that disturb nobody first."""
        if self._brought is not None:
            method, args = self._brought
            yield lambda actor: get(getattr(actor, method).remote(*args))
        context = CallContext(CONTEXT.caller, self._version)
        for role, source in self._sources(worker):
            publish = functools.partial(source.publish.remote, context, role)
            yield lambda actor, publish=publish: get(actor.receive.remote(CONTEXT, get(publish())))

    def _sources(self, worker: RayWorker) -> list[tuple[str, Any]]:
        rollouts = [
            ("rollout", other.actor)
            for place, other in self.workers
            if "rollout" in place.roles and other is not worker
        ]
        learners = [("learner", w.actor) for place, w in self.workers if "learner" in place.roles]
        known = self._learner_too and self._version is not None
        return [*rollouts, *(learners[:1] if known else [])]
