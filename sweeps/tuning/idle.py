"""Trial processes that wait for another trial of their shape: how many are kept, and when they make room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from ray.tune.utils.object_cache import _ObjectCache

from rlhf_core.runtime.placement import GB
from sweeps import places
from sweeps.decide.leftovers import total
from sweeps.tuning.turns import controller_of

if TYPE_CHECKING:
    from sweeps.driver import SweepDriver
    from sweeps.places import ClusterView

# A trial that the free nodes seem to hold may wait for so long before idle processes make room all the same.
PATIENCE_S = 5.0
# What is ended has given its place back by then.
GONE_S = 2.0
UNITS = {"CPU": ("CPUs", 1), "GPU": ("GPUs", 1), "memory": ("GB memory", GB)}


class IdleShapes(_ObjectCache):
    """Takes the place of Tune's cache of idle trial processes, whose keys are placements.

    Tune's keeps one set of processes, and ends it as soon as a trial of another shape is to start, whether that
    has room or not. This one keeps up to ``most``, of whatever shapes, until they are in the way of a trial. Those
    idle for longest go first, and none that a trial about to start will take.

    Args:
        most: Sets of processes.
    """

    def __init__(self, most: int) -> None:
        super().__init__(may_keep_one=False)
        self.most = most
        # Oldest first.
        self._kept: list[tuple[Any, Any]] = []
        self._unwanted = 0

    def cache_object(self, key: Any, obj: Any) -> bool:
        self._cached_objects[key].append(obj)
        self._num_cached_objects += 1
        self._kept.append((key, obj))
        return True

    def pop_cached_object(self, key: Any) -> Any:
        found = super().pop_cached_object(key)
        self._kept = [(other, obj) for other, obj in self._kept if obj is not found]
        return found

    def make_room(self) -> None:
        """The next flush ends one more."""
        self._unwanted += 1

    def flush_cached_objects(self, force_all: bool = False) -> Iterator[Any]:
        ending = max(self._unwanted, len(self._kept) - self.most)
        self._unwanted = 0
        for key, obj in [*self._kept]:
            if not force_all and ending <= 0:
                return
            if force_all or len(self._cached_objects[key]) > self._max_num_objects[key]:
                ending -= 1
                self._kept.remove((key, obj))
                self._cached_objects[key].remove(obj)
                self._num_cached_objects -= 1
                yield obj

    @property
    def held(self) -> dict[str, float]:
        """What the idle processes have reserved, ``{unit in words: amount}``."""
        parts = [key.required_resources for key, _ in self._kept]
        found = total(parts)
        named = {name: UNITS.get(name, (name, 1)) for name in found}
        return {named[name][0]: amount / named[name][1] for name, amount in found.items()}


class IdleWatch:
    """Keeps several idle shapes in a Tune controller, and ends them where they are in the way."""

    def __init__(self) -> None:
        self._cache: IdleShapes | None = None
        self._asked: dict[str, float] = {}
        self._ended = -GONE_S

    def install(self, tune_controller: Any, most: int) -> None:
        """Called before the controller has started anything; more often, it changes nothing."""
        controller = controller_of(tune_controller)
        if self._cache is None or controller._actor_cache is not self._cache:
            self._cache = controller._actor_cache = IdleShapes(most)

    def look(
        self,
        driver: SweepDriver,
        pending: Collection[str],
        view: Callable[[], ClusterView],
        now: float,
    ) -> None:
        """Tells the driver what is idle, and ends one set of processes where a trial has no room beside them.

        Args:
            driver: The sweep.
            pending: Trials that have not started.
            view: Looks at the cluster.
            now: Seconds on a clock that only goes forward.
        """
        if self._cache is None:
            return
        driver.idle = self._cache.held
        if not (driver.idle and pending):
            self._asked.clear()
            return
        waits = places.waiting_for_room(driver, pending, view())
        self._asked = {trial: self._asked.get(trial, now) for trial in waits}
        late = any(now - since >= PATIENCE_S for since in self._asked.values())
        if (late or any(waits.values())) and now - self._ended >= GONE_S:
            self._cache.make_room()
            self._ended = now
