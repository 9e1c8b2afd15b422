"""The sweep as Tune's plug-ins see it: what to run next, what to record, whom to stop, what to tell the searcher.

One object on the driver. Tune's searcher, scheduler and callback (``tuning``) are thin and only call it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.errors import ConfigError
from rlhf_core.runtime.placement import Node, find_shortfall, group_request, shortfall
from sweeps import pausing
from sweeps.decide.failures import SameFailure
from sweeps.decide.leftovers import Leftovers, beyond, in_words, total
from sweeps.decide.scheduling import Exploit, GoOn, Pause, Stop
from sweeps.decide.waiting import GiveUp, Look, Looked, Pending, Tell, Waiting, decide
from sweeps.load import Loaded
from sweeps.outcomes import Outcome, State
from sweeps.record import RunDirectory
from sweeps.schedulers import make_guards, make_scheduler, pauses, report
from sweeps.services import NoServices, Services

# Keys of Tune's result that belong to the protocol between trial and driver, not to the metrics.
PROTOCOL = ("outcome", "reason", "traceback", "placement", "durations", "iteration", "events")


@dataclass
class TrialRecord:
    """What the driver knows of a trial."""

    trial: str
    number: int
    params: dict[str, Any]
    state: State = State.QUEUED
    outcome: Outcome | None = None
    reason: str = ""
    iteration: int = 0
    value: float | None = None
    finals: dict[str, float] = field(default_factory=dict)
    retries: int = 0
    times: dict[str, float] = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)
    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Why the scheduler took it from its place, as long as it has none; whose copy it is, for forks.install.
    held: Pause | Exploit | None = None
    # How often the scheduler wanted that.
    holds: int = 0
    # Save points that its reports told of.
    passed: int = 0
    fork: dict[str, Any] | None = None

    @property
    def began(self) -> float | None:
        """When its processes were placed, in seconds since the epoch."""
        return self.times.get("placed")

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs or waits for a place; a paused one goes on later."""
        return self.state in (State.ENDED, State.INTERRUPTED, State.PAUSED)


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


class SweepDriver:
    """State of a running sweep.

    Args:
        loaded: The sweep.
        directory: Where it is recorded.
        study: Proposes parameters.
        nodes: What the cluster offers, for the check that a trial can ever be placed.
        max_concurrent: Trials that may run at the same time.
        services: Serve the roles that trials share; by default nobody does.
    """

    def __init__(
        self,
        loaded: Loaded,
        directory: RunDirectory,
        study: Any,
        nodes: list[Node],
        max_concurrent: int,
        services: Services | None = None,
    ) -> None:
        self.loaded, self.directory, self.study, self.nodes = loaded, directory, study, nodes
        self.max_concurrent = max_concurrent
        self.services = services or NoServices()
        self.records: dict[str, TrialRecord] = {}
        self.interrupted = False
        self.cluster_lost = False
        self.started = time.time()
        self.problems: list[str] = []
        self.given_up: str | None = None
        # Trials that are to be queued again, and those that the scheduler lets wait.
        self.again: list[str] = []
        self.paused: dict[str, TrialRecord] = {}
        self.scheduler = make_scheduler(loaded, max_concurrent)
        self._same = SameFailure()
        self._guards = make_guards(loaded.config.guards)
        self.waiting = Waiting()
        self.leftovers = Leftovers()
        self.first_placement: tuple[str, Mapping[str, Any]] | None = None
        self._lock = threading.RLock()

    # What to run

    @property
    def live(self) -> list[TrialRecord]:
        return [record for record in self.records.values() if not record.ended]

    @property
    def exhausted(self) -> bool:
        """Whether no further trial is to start."""
        minutes = self.loaded.config.budget.minutes
        over = minutes is not None and time.time() - self.started > 60 * minutes
        handed_out = len(self.records) >= self.loaded.config.search.trials
        return self.interrupted or over or handed_out or self.given_up is not None

    @property
    def may_go_on(self) -> bool:
        """Whether trials may be handed out once running ones give up their place or end."""
        if self.interrupted or self.given_up is not None:
            return False
        return not self.exhausted or bool(self.again) or pauses(self.loaded.config.scheduler)

    def next_trial(self) -> TrialRecord | None:
        """A trial to run now, or None: wait for a running one. Infeasible ones are recorded and passed over."""
        with self._lock:
            while self.may_go_on and self._has_slot():
                pausing.release(self)
                if self.exhausted and not self.again:
                    return None
                record = self._queued_again() if self.again else self._asked()
                refusal = self._refusal(record.params) or self._serve(record)
                if refusal is None:
                    return record
                self.end(record.trial, Outcome.INFEASIBLE, refusal)
            return None

    def _asked(self) -> TrialRecord:
        number, params = self.study.ask()
        params = self.loaded.program.absolute(params)
        record = TrialRecord(f"t{len(self.records):04d}", number, params)
        self.records[record.trial] = record
        self.scheduler.join(record.trial, params)
        self._enter(record)
        return record

    def _queued_again(self) -> TrialRecord:
        record = self.records[self.again.pop(0)]
        record.held, record.durations, record.times = None, {}, {"queued": time.time()}
        self._change(record, State.QUEUED)
        return record

    def _has_slot(self) -> bool:
        """Trials whose nodes are not there hold no slot, up to as many as may run."""
        absent = min(self.waiting.absent, self.max_concurrent)
        return len(self.live) - absent < self.max_concurrent

    def _enter(self, record: TrialRecord) -> None:
        program, base = self.loaded.program, self.loaded.base
        try:
            config = program.resolve(base, record.params)
        except ConfigError:
            config = {}
        record.times["queued"] = time.time()
        self.directory.write_trial(record.trial, config, record.params)
        self._line(record)

    def _refusal(self, params: Mapping[str, Any]) -> str | None:
        found = self.loaded.program.check(self.loaded.base, params)
        if found:
            return found[0]
        plan = self.loaded.program.placement(self.loaded.base, params)
        return shortfall(plan, self.services.room(self.nodes))

    def _serve(self, record: TrialRecord) -> str | None:
        """Finds or starts the services of a trial, or says why it cannot have them."""
        program, base = self.loaded.program, self.loaded.base
        asked = program.services(base, record.params)
        try:
            plan = program.placement(base, record.params)
            record.services = self.services.seats(asked, plan)
        except ConfigError as error:
            return error.problems[0]
        return None

    # What waits for a place

    def watch(
        self, pending: Collection[str], look: Callable[[], ClusterView], now: float
    ) -> list[str]:
        """Looks after trials that wait for their placement group; returns those that were ended.

        Args:
            pending: The trials that wait now.
            look: Asks the cluster.
            now: Seconds on a clock that only goes forward.
        """
        with self._lock:
            actions = decide(self.waiting, Pending(frozenset(pending)), now)
            settling = self.leftovers.settling(
                [r.trial for r in self.records.values() if r.ended], now
            )
            due = self.leftovers.due(now)
            view = look() if actions or due else None
            if due and view is not None:
                self._warn(self.leftovers.looked(view.used, self._held(settling, view), now))
            ended = []
            while actions:
                action = actions.pop(0)
                if isinstance(action, Look) and view is not None:
                    actions += decide(self.waiting, self._looked(action.trial, view), now)
                elif isinstance(action, Tell):
                    self._tell(action)
                elif isinstance(action, GiveUp):
                    self.end(action.trial, Outcome.INFEASIBLE, action.reason)
                    ended.append(action.trial)
            return ended

    def free_again(self, view: ClusterView) -> bool:
        """Whether all resources are as free as before the sweep; all its trials have ended."""
        return not beyond(view.used, self.leftovers.before or view.used, {})

    def left_over(self, view: ClusterView) -> None:
        """Records what is not free long after the last trial."""
        last = max(self.records.values(), key=lambda record: record.times.get("ended", 0.0))
        missing = beyond(view.used, self.leftovers.before or view.used, {})
        self._warn((last.trial, in_words(missing)))

    def _held(self, settling: Collection[str], view: ClusterView) -> dict[str, float]:
        """What trials hold at most; one whose placement group waits holds nothing."""
        asked, parts = list(view.asked), []
        for record in self.records.values():
            if record.ended and record.trial not in settling:
                continue
            plan = self.loaded.program.placement(self.loaded.base, record.params)
            bundles = group_request(plan)["bundles"]
            if record.state in (State.QUEUED, State.WAITING, State.RETRIED) and bundles in asked:
                asked.remove(bundles)
            else:
                parts += [bundle.amounts() for bundle in plan.bundles]
        return total(parts)

    def _warn(self, found: tuple[str, str] | None) -> None:
        if found is not None:
            trial, warning = found
            self._line(self.records[trial], warning=warning)

    def _looked(self, trial: str, view: ClusterView) -> Looked:
        plan = self.loaded.program.placement(self.loaded.base, self.records[trial].params)
        if group_request(plan)["bundles"] not in view.asked:
            return Looked(trial, None, "")
        absent = find_shortfall(plan, self.services.room(view.live))
        if absent is not None:
            never = shortfall(plan, self.services.room(view.possible))
            return Looked(trial, never, f"new nodes: {absent.what}", False)
        busy = find_shortfall(plan, view.free)
        return Looked(trial, None, f"room: {busy.what}" if busy else "room")

    def _tell(self, action: Tell) -> None:
        record = self.records[action.trial]
        reason = f"has waited {action.seconds:.0f} s for {action.missing}"
        self._change(record, State.WAITING, reason=reason)

    # What happens to trials

    def placed(self, trial: str) -> None:
        """Its placement group is there and its process is starting."""
        record = self.records[trial]
        record.times["placed"] = time.time()
        # Of a trial that is tried again the last attempt counts.
        record.times.pop("started", None)
        self._change(record, State.PLACED)

    def result(self, trial: str, result: Mapping[str, Any]) -> None:
        """Records what a trial reported; called for every result, the last one included."""
        record = self.records[trial]
        if record.ended:
            return
        if record.state is not State.STARTED:
            record.times["started"] = time.time()
            self._change(record, State.STARTED)
        if result.get("placement"):
            self.directory.write_placement(trial, result["placement"])
            self.first_placement = self.first_placement or (trial, result["placement"])
        for event in result.get("events", ()):
            self._line(record, event=event)
        metrics = numbers(result)
        if metrics:
            record.iteration = int(result.get("iteration", record.iteration))
            self.directory.metrics(trial, record.iteration, metrics)
            record.finals.update(metrics)
            objective = metrics.get(self.loaded.config.search.objective)
            if objective is not None:
                record.value = objective
                self.study.report(record.number, record.iteration, objective)
        if result.get("traceback"):
            self.directory.error(trial, str(result["traceback"]))
        if result.get("durations"):
            record.durations.update(result["durations"])
        if result.get("outcome"):
            record.outcome = Outcome(result["outcome"])
            record.reason = str(result.get("reason", ""))

    def decide(self, trial: str, result: Mapping[str, Any]) -> bool:
        """Whether the trial goes on after this result."""
        record, config = self.records[trial], self.loaded.config
        metrics, iteration = numbers(result), int(result.get("iteration", 0))
        diverged = self._guards.decide(trial, iteration, metrics)
        if diverged is not None:
            record.outcome, record.reason = Outcome.DIVERGED, diverged
            self.scheduler.forget(trial)
            return False
        points = self.scheduler.save_points(trial)
        if points is not None:
            record.passed = points.due(iteration, metrics, record.passed) or record.passed
        action = self.scheduler.decide(report(config, trial, iteration, metrics))
        if isinstance(action, GoOn):
            record.held = None
        elif isinstance(action, Stop):
            record.outcome, record.reason = Outcome.STOPPED, action.reason
        else:
            record.held = action
            record.holds += 1
            if isinstance(action, Exploit):
                record.passed = action.passed
                self._guards.fork(trial, action.source, action.step)
        return isinstance(action, GoOn)

    def retried(self, trial: str, reason: str) -> None:
        """Its processes were lost; it starts again from its last checkpoint."""
        record = self.records[trial]
        record.retries += 1
        self._change(record, State.RETRIED, reason=reason)

    def end(self, trial: str, outcome: Outcome | None = None, reason: str = "") -> None:
        """The trial is over; ending it twice changes nothing."""
        with self._lock:
            record = self.records[trial]
            if record.state in (State.ENDED, State.INTERRUPTED):
                return
            if record.held is not None and outcome is Outcome.COMPLETED and record.outcome is None:
                pausing.pause(self, record)
                return
            record.outcome = record.outcome or outcome or Outcome.LOST
            record.reason = record.reason or reason
            record.times["ended"] = time.time()
            self._change(record, State.ENDED)
            self.study.tell(record.number, record.outcome, record.value, record.finals)
            failed = record.outcome is Outcome.FAILED
            found = self._same.decide(record.number, failed, record.reason)
            self.given_up = self.given_up or found

    def interrupt(self) -> None:
        """The sweep was stopped: what still ran is recorded as interrupted."""
        self.interrupted = True
        for record in self.live:
            record.times["ended"] = time.time()
            self._change(record, State.INTERRUPTED)
        self.study.close_open()

    # The ledger

    def note(self, record: TrialRecord, state: State, **extra: Any) -> None:
        """Writes a line of a trial in a new state."""
        self._change(record, state, **extra)

    def _change(self, record: TrialRecord, state: State, **extra: Any) -> None:
        record.state = state
        self._line(record, **extra)

    def _line(self, record: TrialRecord, **extra: Any) -> None:
        self.directory.ledger(
            {
                "trial": record.trial,
                "number": record.number,
                "state": str(record.state),
                "outcome": str(record.outcome) if record.state is State.ENDED else None,
                "reason": record.reason,
                "parent_id": record.fork and record.fork["source"],
                "fork_iteration": record.fork and record.fork["step"],
                "iteration": record.iteration,
                "value": record.value,
                "durations": self._durations(record),
                **extra,
            }
        )

    def _durations(self, record: TrialRecord) -> dict[str, float]:
        times, steps = record.times, ("queued", "placed", "started", "ended")
        names = dict(zip(steps[1:], ("queue", "start", "run"), strict=True))
        spans = {
            names[later]: times[later] - times[earlier]
            for earlier, later in itertools.pairwise(steps)
            if earlier in times and later in times
        }
        return {**spans, **record.durations}


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a Tune result: numbers whose name has a group."""
    return {
        key: float(value)
        for key, value in result.items()
        if "/" in key
        and not key.startswith("config/")
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }
