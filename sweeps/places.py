"""Looks after trials that wait for their place, and after what ended ones left behind."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_core.runtime.placement import Node, find_shortfall, group_request, shortfall
from sweeps.decide.leftovers import beyond, in_words, total
from sweeps.decide.waiting import GiveUp, Look, Looked, Pending, Tell, decide
from sweeps.outcomes import Outcome, State

if TYPE_CHECKING:
    from sweeps.driver import SweepDriver


@dataclass(frozen=True)
class ClusterView:
    """The cluster at a moment.

    Attributes:
        live: What the live nodes offer in total.
        free: What they have free.
        possible: The live nodes, and those that an autoscaler was declared to add.
        asked: The bundles of each placement group that has no place yet, as Ray counts them.
    """

    live: list[Node]
    free: list[Node]
    possible: list[Node]
    asked: list[list[dict[str, float]]]

    @property
    def used(self) -> dict[str, float]:
        """What is in use, ``{unit in words: amount}``."""
        has, free = (total([n.amounts() for n in nodes]) for nodes in (self.live, self.free))
        return {name: amount - free.get(name, 0.0) for name, amount in has.items()}


def watch(
    driver: SweepDriver, pending: Collection[str], look: Callable[[], ClusterView], now: float
) -> list[str]:
    """See ``SweepDriver.watch``."""
    actions = decide(driver.waiting, Pending(frozenset(pending)), now)
    settling = driver.leftovers.settling(driver.at_rest, now)
    due = driver.leftovers.due(now)
    view = look() if actions or due else None
    if due and view is not None:
        warn(driver, driver.leftovers.looked(view.used, _held(driver, settling, view), now))
    ended = []
    while actions:
        action = actions.pop(0)
        if isinstance(action, Look) and view is not None:
            actions += decide(driver.waiting, _looked(driver, action.trial, view), now)
        elif isinstance(action, Tell):
            reason = f"has waited {action.seconds:.0f} s for {action.missing}"
            driver.note(driver.records[action.trial], State.WAITING, reason=reason)
        elif isinstance(action, GiveUp):
            driver.end(action.trial, Outcome.INFEASIBLE, action.reason)
            ended.append(action.trial)
    return ended


def free_again(driver: SweepDriver, view: ClusterView) -> bool:
    """Whether all resources are as free as before the sweep; all its trials have ended."""
    return not beyond(view.used, driver.leftovers.before or view.used, {})


def left_over(driver: SweepDriver, view: ClusterView) -> None:
    """Records what is not free long after the last trial."""
    last = max(driver.records.values(), key=lambda record: record.times.get("ended", 0.0))
    missing = beyond(view.used, driver.leftovers.before or view.used, {})
    warn(driver, (last.trial, in_words(missing)))


def warn(driver: SweepDriver, found: tuple[str, str] | None) -> None:
    if found is not None:
        trial, warning = found
        driver.note(driver.records[trial], warning=warning)


def _held(driver: SweepDriver, settling: Collection[str], view: ClusterView) -> dict[str, float]:
    """What trials hold at most; one whose placement group waits holds nothing."""
    asked, parts = list(view.asked), []
    for record in [*driver.live, *(driver.records[trial] for trial in settling)]:
        plan = driver.plan(record)
        bundles = group_request(plan)["bundles"]
        if record.state in (State.QUEUED, State.WAITING, State.RETRIED) and bundles in asked:
            asked.remove(bundles)
        else:
            parts += [bundle.amounts() for bundle in plan.bundles]
    return total([*parts, driver.idle])


def waiting_for_room(
    driver: SweepDriver, pending: Collection[str], view: ClusterView
) -> dict[str, bool]:
    """Of the pending trials those that have no place and that live nodes could hold; whether free ones cannot."""
    waits = {}
    for trial in pending:
        plan = driver.plan(driver.records[trial])
        asks = group_request(plan)["bundles"] in view.asked
        if asks and find_shortfall(plan, driver.services.room(view.live)) is None:
            waits[trial] = find_shortfall(plan, view.free) is not None
    return waits


def _looked(driver: SweepDriver, trial: str, view: ClusterView) -> Looked:
    plan = driver.plan(driver.records[trial])
    if group_request(plan)["bundles"] not in view.asked:
        return Looked(trial, None, "")
    absent = find_shortfall(plan, driver.services.room(view.live))
    if absent is not None:
        never = shortfall(plan, driver.services.room(view.possible))
        return Looked(trial, never, f"new nodes: {absent.what}", False)
    busy = find_shortfall(plan, view.free)
    return Looked(trial, None, f"room: {busy.what}" if busy else "room")
