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
        missing: What it waits for, in words; empty where it has its place and only starts.
        alive: Whether the live nodes could hold it if nothing else ran.
    """

    trial: str
    never: str | None
    missing: str
    alive: bool = True


@dataclass(frozen=True)
class Look:
    """Action: compare the trial with the cluster, and come back with ``Looked``."""

    trial: str


@dataclass(frozen=True)
class Tell:
    """Action: record that the trial has waited for ``seconds`` by now, for ``missing``."""

    trial: str
    seconds: float
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
    """One waiting trial.

    Attributes:
        since: When it began to wait.
        looked: When the cluster was last looked at for it.
        missing: What it waits for; empty before the first look, and where it has its place.
        alive: Whether the live nodes could hold it if nothing else ran.
        hopeless: Since when it fits nowhere, or None.
    """

    since: float
    looked: float | None = None
    missing: str = ""
    alive: bool = True
    hopeless: float | None = None


@dataclass
class Waiting:
    """State of all waiting trials, and how patient the sweep is.

    Attributes:
        notice_s: A trial that waits longer is shown.
        every_s: Looks at one trial are at least this far apart.
        patience_s: A trial must fit nowhere for this long before it ends: nodes come back, and an autoscaler
            replaces them.
    """

    notice_s: float = 10.0
    every_s: float = 5.0
    patience_s: float = 60.0
    waits: dict[str, Wait] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, Wait]:
        """Trials that have waited long enough to be shown."""
        return {trial: wait for trial, wait in self.waits.items() if wait.missing}

    @property
    def absent(self) -> int:
        """Trials whose nodes are not there: others may run in their stead until they come."""
        return sum(not wait.alive for wait in self.waits.values())


def decide(state: Waiting, event: Event, now: float) -> list[Action]:
    """What to do after ``event``; brings ``state`` up to date.

    Time alone never ends a trial: it waits for as long as some node, alive or declared, could hold it.

    Args:
        state: Changed in place.
        event: What happened.
        now: Seconds on a clock that only goes forward.
    """
    if isinstance(event, Pending):
        return _pending(state, event, now)
    wait = state.waits.get(event.trial)
    return [] if wait is None else _looked(state, wait, event, now)


def _pending(state: Waiting, event: Pending, now: float) -> list[Action]:
    for trial in state.waits.keys() - event.trials:
        del state.waits[trial]
    for trial in event.trials:
        state.waits.setdefault(trial, Wait(now))
    due = []
    for trial, wait in sorted(state.waits.items()):
        last = wait.since + state.notice_s - state.every_s if wait.looked is None else wait.looked
        if now - last >= state.every_s:
            wait.looked = now
            due.append(Look(trial))
    return list(due)


def _looked(state: Waiting, wait: Wait, event: Looked, now: float) -> list[Action]:
    was, first = wait.hopeless is not None, not wait.missing
    wait.missing, wait.alive = event.missing, event.alive
    if event.never is None:
        wait.hopeless = None
    elif wait.hopeless is None:
        wait.hopeless = now
    elif now - wait.hopeless >= state.patience_s:
        del state.waits[event.trial]
        return [GiveUp(event.trial, event.never)]
    # What it waits for in a busy cluster changes with every look; the ledger need not say so.
    changed = was != (wait.hopeless is not None)
    told = bool(wait.missing) and (first or changed)
    return [Tell(event.trial, now - wait.since, wait.missing)] if told else []
