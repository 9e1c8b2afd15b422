"""Which trial Tune is to find a process for next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.experiment import Trial


def next_in_line(tune_controller: Any, queued: Callable[[Trial], float]) -> Trial | None:
    """The trial that has waited longest and that no process is starting for; else one that Tune lets wait.

    Tune gives a process that became free to the trial named here, and ends the one that was starting for it. So a
    trial whose own process is on its way is passed over: the free one is the next trial's, and both run. Only live
    trials are looked at: of those that ended there can be thousands, at each step.

    Args:
        tune_controller: Tune's, or its wrapper for schedulers.
        queued: Since when a trial waits.
    """
    controller = controller_of(tune_controller)
    live = controller.get_live_trials()
    waiting = [t for t in live if t.status == Trial.PENDING and not _starts(controller, t)]
    paused = [t for t in live if t.status == Trial.PAUSED]
    return min(waiting or paused, key=queued, default=None)


def controller_of(tune_controller: Any) -> Any:
    """Tune's controller itself; schedulers are given a wrapper of it."""
    return getattr(tune_controller, "_tune_controller", tune_controller)


def _starts(controller: Any, trial: Trial) -> bool:
    """Whether the trial has its place, and a process that starts there or changes over from the last trial."""
    actor = controller._trial_to_actor.get(trial)
    started: bool = actor is not None and controller._actor_manager.is_actor_started(actor)
    return started
