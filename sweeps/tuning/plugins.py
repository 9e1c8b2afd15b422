"""Tune's searcher, scheduler and callback of a sweep: thin, and nothing they call may raise into Tune.

They are pickled with the Tuner, so they hold the sweep's key and find its driver here.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from rlhf_core.runtime.ray_teardown import LOST
from sweeps.driver import SweepDriver
from sweeps.outcomes import Outcome
from sweeps.steering import steer
from sweeps.tuning import cluster
from sweeps.tuning.idle import IdleWatch
from sweeps.tuning.turns import controller_of, next_in_line

logger = logging.getLogger(__name__)
DRIVERS: dict[str, SweepDriver] = {}
# How often live nodes are counted, and how many looks in a row must find none.
LOOK_EVERY_S, LOST_AFTER = 5.0, 3
WATCH_EVERY_S = 0.5
F = TypeVar("F", bound=Callable[..., Any])


def never_raise(default: Any = None) -> Callable[[F], F]:
    """An exception in a plug-in would end the sweep: it is logged and noted, and ``default`` is returned.

    Once nothing can be recorded any more the plug-ins do nothing, until the sweep ends after Tune's step.
    """

    def wrap(function: F) -> F:
        @functools.wraps(function)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.driver.broken is not None:
                return default
            try:
                return function(self, *args, **kwargs)
            except Exception as error:
                if self.driver.broke(error):
                    return default
                logger.exception("%s failed", function.__qualname__)
                self.driver.problems.append(f"{function.__qualname__}: {error!r}")
                return default

        return guarded  # type: ignore[return-value]

    return wrap


class _Plugin:
    key: str

    @property
    def driver(self) -> SweepDriver:
        return DRIVERS[self.key]


class SweepSearcher(_Plugin, Searcher):
    """Hands out the driver's next trial."""

    def __init__(self, key: str, fixed: Mapping[str, Any]) -> None:
        super().__init__()
        self.key, self._fixed = key, fixed

    @never_raise(default=Searcher.FINISHED)
    def suggest(self, trial_id: str) -> Any:
        record = self.driver.next_trial()
        if record is not None:
            points = self.driver.save_points(record)
            own = {
                "trial": record.trial,
                "services": record.services,
                "fork": record.fork,
                "save_points": points and points.as_dict(),
                "heard": record.passed,
            }
            return {**self._fixed, **own, **record.params}
        # With nothing running, None would freeze the controller for minutes. As long as something runs, a
        # user may still add to the sweep, or the scheduler lets a paused trial go on.
        return None if self.driver.live else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Told through the callback, which sees every end."""

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        """Told through the callback."""

    def save(self, checkpoint_path: str) -> None:
        """The study is durable by itself."""

    def restore(self, checkpoint_path: str) -> None:
        """The study is durable by itself."""


class SweepScheduler(_Plugin, FIFOScheduler):
    """Asks the driver after each result whether the trial goes on, and lets it look after those that wait."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self._watched = 0.0
        self._idle = IdleWatch()

    @never_raise(default=TrialScheduler.CONTINUE)
    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if not self.driver.decide(name_of(trial), result):
            return TrialScheduler.STOP
        # Tune has it saved before it gives its place back; ``_watch`` then takes it out of Tune.
        paused = self.driver.wants_pause(name_of(trial))
        return TrialScheduler.PAUSE if paused else TrialScheduler.CONTINUE

    @never_raise()
    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Called at every step of the controller, the only place from which a waiting trial can be ended."""
        now = time.monotonic()
        self._idle.install(tune_controller, self.driver.loaded.config.cluster.warm_shapes)
        if now - self._watched >= WATCH_EVERY_S:
            self._watched = now
            self._watch(tune_controller, now)
        chosen = next_in_line(tune_controller, self._queued)
        leaves = chosen is not None and self.driver.wants_pause(name_of(chosen))
        return None if leaves else chosen

    def _queued(self, trial: Trial) -> float:
        return self.driver.records[name_of(trial)].times.get("queued", 0.0)

    @never_raise()
    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        record = self.driver.records[name_of(trial)]
        if record.held is None and record.outcome not in (Outcome.COMPLETED, Outcome.STOPPED):
            _start_next_cold(tune_controller, trial)

    @never_raise()
    def _watch(self, tune_controller: Any, now: float) -> None:
        self.driver.services.watch(now)
        live = tune_controller.get_live_trials()
        pending = {name_of(trial): trial for trial in live if trial.status == Trial.PENDING}
        types = cluster.node_types(self.driver.loaded.config.cluster)
        self._idle.look(self.driver, pending.keys(), lambda: cluster.view(types), now)
        ended = self.driver.watch(pending.keys(), lambda: cluster.view(types), now)
        for name in [*ended, *steer(self.driver, pending.keys() - {*ended})]:
            tune_controller.stop_trial(pending[name])
        for trial in live:
            if trial.status == Trial.PAUSED and self.driver.wants_pause(name_of(trial)):
                tune_controller.stop_trial(trial)


def _start_next_cold(tune_controller: Any, trial: Trial) -> None:
    """Keeps the process of a failed trial from serving another one."""
    controller = controller_of(tune_controller)
    # Tune keeps processes that it knows as started.
    controller._started_actors.discard(controller._trial_to_actor.get(trial))


class ClusterLost(BaseException):
    """The cluster has no live node any more: Tune would wait for ever."""


class NothingRecorded(BaseException):
    """Nothing can be written any more: what trials do from now on would be lost."""


class SweepCallback(_Plugin, tune.Callback):
    """Records what happens to trials."""

    def __init__(self, key: str, view: Any) -> None:
        self.key = key
        self._view = view
        self._looked = time.monotonic()
        self._missing = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"key": self.key, "_view": None, "_looked": 0.0, "_missing": 0}

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        if self.driver.broken is not None:
            raise NothingRecorded
        self._look()

    @never_raise()
    def _look(self) -> None:
        if self._view is not None:
            self._view.refresh(self.driver)
        if time.monotonic() - self._looked > LOOK_EVERY_S:
            self._looked = time.monotonic()
            self._missing = 0 if any(node["Alive"] for node in ray.nodes()) else self._missing + 1
        if self._missing >= LOST_AFTER:
            self.driver.cluster_lost = True
            raise ClusterLost

    @never_raise()
    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self.driver.placed(name_of(trial))

    @never_raise()
    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self.driver.result(name_of(trial), result)

    @never_raise()
    def on_trial_recover(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self.driver.retried(name_of(trial), "a process of the trial was lost")

    @never_raise()
    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self.driver.end(name_of(trial), Outcome.COMPLETED)

    @never_raise()
    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        lost, reason = _what_was_lost(trial.get_error())
        self.driver.end(name_of(trial), Outcome.LOST if lost else Outcome.FAILED, reason)


# Tune may know an error as text only: that of its file, with the error's name, or the message alone.
_NAMES = (
    *(kind.__name__ for kind in LOST),
    "ActorDiedError",
    "ActorUnavailableError",
    "The actor died",
    "The actor is dead",
)


def _what_was_lost(error: Exception | None) -> tuple[bool, str]:
    """Whether an error that left a trial says that a process was lost, and its last line."""
    lines = str(error or "").strip().splitlines()
    lost = (
        error is None
        or isinstance(error, LOST)
        or isinstance(getattr(error, "cause", None), LOST)
        or any(name in line for line in lines for name in _NAMES)
    )
    if isinstance(error, LOST) or not lines:
        return lost, lines[
            0
        ] if lines else "a process of the trial was lost, and its retries are used up"
    named = [line for line in lines if any(name in line for name in _NAMES)]
    return lost, (named or lines)[-1].strip()


def name_of(trial: Trial) -> str:
    """Our id of a Tune trial."""
    return str(trial.config["trial"])
