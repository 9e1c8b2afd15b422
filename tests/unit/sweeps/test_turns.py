"""Which trial is next to have a process, of those that Tune knows."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial

from sweeps.tuning.turns import next_in_line


@dataclass(frozen=True)
class Waits:
    """What is read of a trial."""

    since: float
    status: str = Trial.PENDING


def chosen(
    trials: list[Waits], asked: tuple[Waits, ...] = (), begun: tuple[Waits, ...] = ()
) -> Any:
    """The choice where processes were asked for, and where of these some have begun to start."""
    actors = {trial: f"actor of {trial.since}" for trial in (*asked, *begun)}
    started = {actors[trial] for trial in begun}
    controller = SimpleNamespace(
        get_live_trials=lambda: set(trials),
        _trial_to_actor=actors,
        _actor_manager=SimpleNamespace(is_actor_started=started.__contains__),
    )
    return next_in_line(SimpleNamespace(_tune_controller=controller), lambda trial: trial.since)


def test_the_one_that_waits_longest_is_next() -> None:
    trials = [Waits(3.0), Waits(1.0), Waits(2.0), Waits(0.0, Trial.RUNNING)]
    assert chosen(trials) is trials[1]
    assert chosen([Waits(0.0, Trial.RUNNING)]) is None


@pytest.mark.parametrize("asked", [0, 1])
def test_a_trial_whose_own_process_starts_is_passed_over(asked: int) -> None:
    first, second = Waits(1.0), Waits(2.0)
    # One that was only asked for has no room yet; the room of the one that became free is its.
    assert chosen([first, second], asked=(first, second)[: asked + 1], begun=(first,)) is second
    assert chosen([first], begun=(first,)) is None


def test_paused_trials_come_last() -> None:
    paused, waits = Waits(1.0, Trial.PAUSED), Waits(2.0)
    assert chosen([paused, waits]) is waits
    assert chosen([paused, waits], begun=(waits,)) is paused
