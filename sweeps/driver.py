"""The sweep as Tune's plug-ins see it: what to run next, what to record, whom to stop, what to tell the searcher.

One object on the driver. Tune's searcher, scheduler and callback (``tuning``) are thin and only call it.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rlhf_core.errors import ConfigError
from rlhf_core.runtime.placement import Node, PlacementPlan, shortfall
from sweeps import pausing, places
from sweeps.choice import Choice
from sweeps.control import Inbox
from sweeps.decide.failures import SameFailure
from sweeps.decide.leftovers import Leftovers
from sweeps.decide.scheduling import Exploit, GoOn, SavePoints, Stop
from sweeps.decide.waiting import Waiting
from sweeps.load import SEED, Loaded
from sweeps.outcomes import Outcome, State
from sweeps.places import ClusterView
from sweeps.record import RunDirectory
from sweeps.schedulers import make_guards, make_scheduler, pauses, report
from sweeps.services import NoServices, Services
from sweeps.trial_record import TrialRecord

BY_COMMAND = "stopped by `rlhf-sweep stop`"
NUMBER = (int, float)
# Of the journal of the study as well, which the run directory does not write itself.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class SweepDriver:
    """State of a running sweep.

    Args:
        loaded: The sweep.
        directory: Where it is recorded.
        study: Proposes parameters.
        nodes: What the cluster offers, for the check that a trial can ever be placed.
        max_concurrent: Trials that may run at the same time.
        services: Serve the roles that trials share; by default nobody does.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        loaded: Loaded,
        directory: RunDirectory,
        study: Any,
        nodes: list[Node],
        max_concurrent: int,
        services: Services | None = None,
        clock: Callable[[], float] = lambda: time.time(),
    ) -> None:
        self.loaded, self.directory, self.study, self.nodes = loaded, directory, study, nodes
        self.max_concurrent = max_concurrent
        self.services = services or NoServices()
        self.records: dict[str, TrialRecord] = {}
        self.again: list[str] = []
        self.called_back = False
        self.inbox = Inbox(directory.path)
        self.interrupted = False
        self.cluster_lost = False
        self.crash: Exception | None = None
        self.clock = clock
        self.started = clock()
        self.problems: list[str] = []
        self.given_up: str | None = None
        self.choice = Choice(loaded)
        # Trials that the scheduler lets wait.
        self.paused: dict[str, TrialRecord] = {}
        self.scheduler = make_scheduler(loaded, max_concurrent)
        self._same = SameFailure()
        self._guards = make_guards(loaded.config.guards, loaded.program.iterations(loaded.base))
        self.waiting = Waiting()
        self.leftovers = Leftovers()
        # What processes have reserved that wait for another trial.
        self.idle: Mapping[str, float] = {}
        self.first_placement: tuple[str, Mapping[str, Any]] | None = None
        self._live: dict[str, TrialRecord] = {}
        self._plans: dict[str, PlacementPlan] = {}
        self._fits: tuple[PlacementPlan, list[Node]] | None = None
        self._lock = threading.RLock()

    # What to run

    @property
    def live(self) -> list[TrialRecord]:
        return list(self._live.values())

    @property
    def at_rest(self) -> list[str]:
        """Trials of which nothing runs or waits."""
        return [trial for trial in self.records if trial not in self._live]

    @property
    def has_work(self) -> bool:
        """Whether a trial is to start."""
        return not self.interrupted and (bool(self.again) or not self.exhausted)

    def states(self) -> dict[str, tuple[State, Outcome | None]]:
        """State and outcome of each trial."""
        return {trial: (record.state, record.outcome) for trial, record in self.records.items()}

    @property
    def broken(self) -> OSError | None:
        """Why nothing can be recorded any more, or None."""
        return self.directory.broken

    def broke(self, error: BaseException) -> bool:
        """Whether an error says that nothing can be recorded any more; the sweep then ends in order."""
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            self.directory.broken = self.directory.broken or error
        return self.broken is not None

    @property
    def exhausted(self) -> bool:
        """Whether no further trial is to start."""
        if self.interrupted or self.given_up is not None:
            return True
        self.choice.ran_out = self.study.spent
        elapsed = self.clock() - self.started
        return self.choice.done(self.records.values(), elapsed, bool(self.paused))

    @property
    def may_go_on(self) -> bool:
        """Whether trials may be handed out, now or once running ones give up their place or end."""
        if self.interrupted:
            return False
        return self.has_work or (self.given_up is None and pauses(self.loaded.config.scheduler))

    @property
    def to_begin(self) -> int:
        """Trials of the search that have not begun and may."""
        records, elapsed = self.records.values(), self.clock() - self.started
        if self.interrupted or self.given_up is not None or self.choice.over(records, elapsed):
            return 0
        begun = sum(record.of is None for record in records)
        return max(0, self.loaded.config.search.trials - begun)

    def next_trial(self) -> TrialRecord | None:
        """A trial to run now, or None: wait for a running one. Infeasible ones are recorded and passed over.

        Those that began and have not ended come first; they go on from their own checkpoints.
        """
        with self._lock:
            while self._has_slot() and self.may_go_on:
                if pauses(self.loaded.config.scheduler):
                    pausing.release(self)
                    if not self.has_work:
                        return None
                record = self._queued_again() if self.again else self._begun()
                if record is None:
                    return None
                refusal = self._refusal(record) or self._serve(record)
                if refusal is None:
                    return record
                self.end(record.trial, Outcome.INFEASIBLE, refusal)
            return None

    def _begun(self) -> TrialRecord | None:
        """A new trial: of the search, after its end a finalist on a fresh seed; None: nothing may start yet."""
        record = self._next_record()
        if record is not None:
            self.records[record.trial] = record
            if record.of is None:
                self.scheduler.join(record.trial, record.params)
            self._enter(record)
        return record

    def _next_record(self) -> TrialRecord | None:
        trial = f"t{len(self.records):04d}"
        records, elapsed = self.records.values(), self.clock() - self.started
        self.choice.ran_out = self.study.spent
        tested = self.choice.next_run(records, elapsed)
        if tested is not None:
            finalist, seed = tested
            return TrialRecord(trial, None, {**finalist.params, SEED: seed}, of=finalist.trial)
        if self.choice.over(records, elapsed) or not self.choice.may_search(records, elapsed):
            return None
        asked = self.study.ask()
        if asked is None:
            return None
        number, params = asked
        return TrialRecord(trial, number, self.loaded.program.absolute(params))

    def _queued_again(self) -> TrialRecord:
        record = self.records[self.again.pop(0)]
        record.held = None
        record.requeue(self.clock())
        self._change(record, State.QUEUED)
        return record

    def _has_slot(self) -> bool:
        """Trials whose nodes are not there hold no slot, up to as many as may run."""
        absent = min(self.waiting.absent, self.max_concurrent)
        return len(self.live) - absent < self.max_concurrent

    def _enter(self, record: TrialRecord) -> None:
        record.times["queued"] = self.clock()
        self.directory.write_trial(record.trial, self.resolved(record), record.params)
        self._change(record, State.QUEUED)

    def resolved(self, record: TrialRecord) -> dict[str, Any]:
        """``config.json`` of a trial; empty where its parameters make no configuration."""
        try:
            return self.loaded.program.resolve(self.loaded.base, record.params)
        except ConfigError:
            return {}

    def plan(self, record: TrialRecord) -> PlacementPlan:
        """Where the processes of a trial go; worked out once as long as it is not at rest."""
        found = self._plans.get(record.trial)
        if found is None:
            found = self.loaded.program.placement(self.loaded.base, record.params)
            if record.trial in self._live:
                self._plans[record.trial] = found
        return found

    def _refusal(self, record: TrialRecord) -> str | None:
        found = self.loaded.broken(record.params)
        if found:
            return found[0]
        # Most trials of a sweep have the same plan.
        asked = (self.plan(record), self.services.room(self.nodes))
        lack = None if asked == self._fits else shortfall(*asked)
        self._fits = asked if lack is None else self._fits
        return lack

    def _serve(self, record: TrialRecord) -> str | None:
        """Finds or starts the services of a trial, or says why it cannot have them."""
        asked = self.loaded.program.services(self.loaded.base, record.params)
        try:
            record.services = self.services.seats(asked, self.plan(record))
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
            return places.watch(self, pending, look, now)

    def free_again(self, view: ClusterView) -> bool:
        """Whether all resources are as free as before the sweep; all its trials have ended."""
        return places.free_again(self, view)

    def left_over(self, view: ClusterView) -> None:
        """Records what is not free long after the last trial."""
        places.left_over(self, view)

    # What happens to trials

    def placed(self, trial: str) -> None:
        """Its placement group is there and its process is starting."""
        record = self.records[trial]
        record.times["placed"] = self.clock()
        # Of a trial that is tried again the last attempt counts.
        record.times.pop("started", None)
        self._change(record, State.PLACED)

    def result(self, trial: str, result: Mapping[str, Any]) -> None:
        """Records what a trial reported; called for every result, the last one included."""
        record = self.records[trial]
        if record.ended:
            return
        if result.get("full"):
            # Not the trial's fault: it goes on from its checkpoint once there is room.
            self.broke(OSError(errno.ENOSPC, f"{trial}: {result['full']}"))
            return
        if record.state is not State.STARTED:
            record.times["started"] = self.clock()
            self._change(record, State.STARTED)
        if result.get("placement"):
            self.directory.write_placement(trial, result["placement"])
            self.first_placement = self.first_placement or (trial, result["placement"])
        for event in result.get("events", ()):
            self._line(record, event=event)
        metrics, iteration = numbers(result), int(result.get("iteration", record.iteration))
        # What was saved or kept before it was told comes again after a restart; it may not have been heard.
        known = bool(result.get("again")) and iteration <= record.reported
        if metrics and not known:
            self.directory.metrics(trial, iteration, metrics)
            self.absorb(record, iteration, metrics)
        if result.get("traceback"):
            self.directory.error(trial, str(result["traceback"]))
        if result.get("durations"):
            record.durations.update(result["durations"])
        if result.get("outcome"):
            record.outcome = Outcome(result["outcome"])
            record.reason = str(result.get("reason", ""))

    def absorb(
        self, record: TrialRecord, iteration: int, metrics: Mapping[str, float], told: bool = False
    ) -> None:
        """Takes over what a trial reported; ``told``: the study knows it already."""
        record.iteration, record.reported = iteration, max(iteration, record.reported)
        record.finals.update(metrics)
        objective = metrics.get(self.loaded.config.search.objective)
        if objective is not None:
            record.value = objective
        if objective is not None and not told and record.number is not None:
            self.study.report(record.number, iteration, objective)

    def decide(self, trial: str, result: Mapping[str, Any]) -> bool:
        """Whether the trial goes on after this result.

        Each iteration is judged once: of a trial that goes on from a checkpoint some come again.
        """
        record, config = self.records[trial], self.loaded.config
        metrics, iteration = numbers(result), int(result.get("iteration", 0))
        if record.wish is not None and record.wish.action == "stop":
            record.outcome, record.reason = Outcome.STOPPED, BY_COMMAND
            return False
        if iteration <= record.judged:
            # What was decided then may not have been carried out.
            return record.held is None
        record.judged = iteration
        diverged = self._guards.decide(trial, iteration, metrics)
        if diverged is not None:
            record.outcome, record.reason = Outcome.DIVERGED, diverged
            if record.of is None:
                self.scheduler.forget(trial)
            return False
        if record.of is not None:
            return True
        points = self.save_points(record)
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
                # What it reports from there on is new.
                record.judged, record.passed = action.step, action.passed
                self._guards.fork(trial, action.source, action.step)
        return isinstance(action, GoOn)

    def save_points(self, record: TrialRecord) -> SavePoints | None:
        """Where a trial is to save for the scheduler, which knows no test runs."""
        return self.scheduler.save_points(record.trial) if record.of is None else None

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
            leaves = outcome is Outcome.COMPLETED and record.outcome is None
            if leaves and record.held is not None:
                pausing.pause(self, record)
                return
            if leaves and self.wants_pause(trial):
                self._pause(record)
                return
            record.outcome = record.outcome or outcome or Outcome.LOST
            record.reason = record.reason or reason
            record.times["ended"] = self.clock()
            self._change(record, State.ENDED)
            if record.number is not None:
                self.study.tell(record.number, record.outcome, record.value, record.finals)
            self.ended(record)

    def ended(self, record: TrialRecord) -> None:
        """What follows for the sweep from a trial that ended."""
        if record.wish is not None:
            answered, record.wish = record.wish, None
            done = answered.action == "stop" and record.reason == BY_COMMAND
            why = "" if done else f"{record.trial} ended before, as {record.outcome}"
            self.answer(answered.command, why)
        if record.number is None:
            return
        failed = record.outcome is Outcome.FAILED
        found = self._same.decide(record.number, failed, record.reason)
        self.given_up = self.given_up or found

    def wants_pause(self, trial: str) -> bool:
        """Whether the trial is to save a checkpoint and give its place back."""
        wish = self.records[trial].wish
        return wish is not None and wish.action == "pause"

    def _pause(self, record: TrialRecord) -> None:
        assert record.wish is not None
        answered, record.wish = record.wish, None
        record.times["ended"] = self.clock()
        self._change(record, State.PAUSED)
        self.answer(answered.command)

    def answer(self, command: str, refused: str = "") -> None:
        """Records that a command was carried out, or why not."""
        self.directory.event("command", id=command, done=not refused, reason=refused)

    def interrupt(self) -> None:
        """The sweep was stopped: what still ran is recorded as interrupted, and stays open in the study."""
        self.interrupted = True
        if self.broken is not None:
            return
        for record in self.live:
            record.times["ended"] = self.clock()
            self._change(record, State.INTERRUPTED)
        self.directory.event("interrupted")

    # The ledger

    def note(self, record: TrialRecord, state: State | None = None, **extra: Any) -> None:
        """Writes a line of a trial, in a new state where one is given."""
        self._change(record, state or record.state, **extra)

    def _change(self, record: TrialRecord, state: State, **extra: Any) -> None:
        record.state = state
        if record.ended:
            self._live.pop(record.trial, None)
            self._plans.pop(record.trial, None)
        else:
            self._live[record.trial] = record
        self._line(record, **extra)

    def _line(self, record: TrialRecord, **extra: Any) -> None:
        line = {
            "trial": record.trial,
            "number": record.number,
            "state": str(record.state),
            "outcome": str(record.outcome) if record.state is State.ENDED else None,
            "reason": record.reason,
            "purpose": record.purpose,
            "of": record.of,
            "parent_id": record.fork and record.fork["source"],
            "fork_iteration": record.fork and record.fork["step"],
            "iteration": record.iteration,
            "value": record.value,
            "durations": record.phases,
            **extra,
        }
        # With these lines the trial leaves its place: what came of it so far outlives a loss of power.
        self.directory.ledger(line, durable=record.ended)


class _Named(dict[str, bool]):
    """Whether a name is one of a metric: asked for the same names again with each result."""

    def __missing__(self, key: str) -> bool:
        self[key] = found = "/" in key and not key.startswith("config/")
        return found


_IS_METRIC = _Named()


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a Tune result: numbers whose name has a group."""
    return {
        key: float(value)
        for key, value in result.items()
        if _IS_METRIC[key]
        and (type(value) is float or (isinstance(value, NUMBER) and not isinstance(value, bool)))
    }
