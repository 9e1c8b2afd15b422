"""Trials that wait for their place: when to look, what to tell, whom to give up. Decisions without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pending:
    """Event: these trials wait for their placement group now."""

    trials: frozenset[str]


@dataclass(frozen=True)
class Looked:
    """Event: the cluster was looked at for a trial.

    Attributes:
        trial: The trial.
        never: Why neither the live nodes nor the declared node types can ever hold it, or None.
        missing: What it waits for with the resources that are free now, in words.
    """

    trial: str
    never: str | None
    missing: str


@dataclass(frozen=True)
class Look:
    """Action: compare the trial with the cluster, and come back with ``Looked``."""

    trial: str


@dataclass(frozen=True)
class Tell:
    """Action: record and show that the trial waits since ``since``, for ``missing``."""

    trial: str
    since: float
    missing: str


@dataclass(frozen=True)
class GiveUp:
    """Action: the trial can never be placed; it ends as infeasible."""

    trial: str
    reason: str


Event = Pending | Looked
Action = Look | Tell | GiveUp


@dataclass
class Wait:
    """One waiting trial: since when, when it was looked at, when it first fitted nowhere, what was told."""

    since: float
    looked: float | None = None
    hopeless: float | None = None
    told: str | None = None


@dataclass
class Waiting:
    """State of all waiting trials, and how patient the sweep is.

    Attributes:
        notice_s: A trial that waits longer is shown, and leaves its slot to another.
        every_s: Looks at one trial are at least this far apart.
        patience_s: A trial must fit nowhere for this long before it ends: nodes come back, and an autoscaler
            replaces them.
    """

    notice_s: float = 10.0
    every_s: float = 5.0
    patience_s: float = 60.0
    waits: dict[str, Wait] = field(default_factory=dict)

    def stuck(self, now: float) -> frozenset[str]:
        """Trials that have waited longer than notice allows."""
        return frozenset(t for t, wait in self.waits.items() if now - wait.since >= self.notice_s)


def decide(state: Waiting, event: Event, now: float) -> list[Action]:
    """What to do after ``event``; brings ``state`` up to date.

    Time alone never ends a trial: it waits for as long as some node, alive or declared, could hold it.

    Args:
        state: Changed in place.
        event: What happened.
        now: Seconds on a clock that only goes forward.
    """
    if isinstance(event, Pending):
        return list(_pending(state, event, now))
    wait = state.waits.get(event.trial)
    if wait is None:
        return []
    if event.never is None:
        wait.hopeless = None
    elif wait.hopeless is None:
        wait.hopeless = now
    if (
        event.never is not None
        and wait.hopeless is not None
        and now - wait.hopeless >= state.patience_s
    ):
        del state.waits[event.trial]
        return [GiveUp(event.trial, event.never)]
    missing = event.never or event.missing
    if wait.told == missing:
        return []
    wait.told = missing
    return [Tell(event.trial, wait.since, missing)]


def _pending(state: Waiting, event: Pending, now: float) -> list[Action]:
    for trial in state.waits.keys() - event.trials:
        del state.waits[trial]
    for trial in event.trials:
        state.waits.setdefault(trial, Wait(now))
    due = []
    for trial in sorted(state.stuck(now)):
        wait = state.waits[trial]
        if wait.looked is None or now - wait.looked >= state.every_s:
            wait.looked = now
            due.append(trial)
    return [Look(trial) for trial in due]
