"""What the files of a run directory tell of a sweep that ran before, for one that goes on."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rlhf_core.errors import ConfigError, nearest
from sweeps.config import BEGIN_AT_RANDOM
from sweeps.load import load_sweep
from sweeps.outcomes import Outcome, State
from sweeps.record import SCHEMA_VERSION, settings

LEDGER, EVENTS, STUDY = "trials.jsonl", "events.jsonl", "study.log"
# Settings that a sweep may go on with in another way: none of them changes what a trial measures.
MAY_CHANGE = ("budget.", "cluster.", "tracking.", "search.trials", "search.max_concurrent")
MUST_STAY = ("cluster.affinity",)


@dataclass
class Past:
    """A trial as its files tell it.

    Attributes:
        trial: Its id.
        number: Its number in the study; None of a finalist's test run.
        of: The finalist that it runs again on a fresh seed, or None.
        params: What was searched.
        state: Of the last ledger line.
        outcome: How it ended, or None.
        reason: In words.
        retries: Times it was lost and started again.
        spent: Seconds of each phase so far, ``{phase: seconds}``.
        ended: When it ended, or None.
        forks: ``(time, iteration)`` of each copy that took its place.
        metrics: Lines of ``metrics.jsonl`` as written, repeated iterations included.
    """

    trial: str
    number: int | None
    params: dict[str, Any]
    of: str | None = None
    state: State = State.QUEUED
    outcome: Outcome | None = None
    reason: str = ""
    retries: int = 0
    spent: dict[str, float] = field(default_factory=dict)
    ended: float | None = None
    forks: list[tuple[float, int]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.state is State.ENDED

    @property
    def last(self) -> int:
        """The latest iteration it reported."""
        return max((line["iteration"] for line in self.metrics), default=-1)


@dataclass(frozen=True)
class Reported:
    """A trial reported metrics; numbers that were not finite are NaN."""

    trial: str
    iteration: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Ended:
    """A trial ended."""

    trial: str


@dataclass(frozen=True)
class History:
    """A sweep so far.

    Attributes:
        trials: In the order in which they were first queued.
        ledger: Its lines, in order.
        answered: Ids of commands that were answered.
        ran_s: Seconds during which a driver ran.
    """

    trials: Mapping[str, Past]
    ledger: Sequence[Mapping[str, Any]]
    answered: frozenset[str]
    ran_s: float

    @property
    def unfinished(self) -> list[Past]:
        return [past for past in self.trials.values() if not past.over]

    def in_order(self) -> Iterator[Reported | Ended]:
        """What happened, in the order in which the driver saw it.

        Of an iteration that came again the first counts; what comes after a copy took the trial's place is new.
        """
        moments: list[tuple[float, int, int, Reported | Ended]] = []
        for past in self.trials.values():
            # The clock may have been set back; within a trial the order of lines is the truth.
            latest, seen, forks = 0.0, -1, list(past.forks)
            for line in past.metrics:
                latest = max(latest, float(line.get("timestamp") or 0.0))
                while forks and latest > forks[0][0]:
                    seen = forks.pop(0)[1]
                if line["iteration"] > seen:
                    seen = line["iteration"]
                    reported = Reported(past.trial, seen, _values(line))
                    moments.append((latest, 0, len(moments), reported))
            if past.ended is not None:
                moments.append((max(latest, past.ended), 1, len(moments), Ended(past.trial)))
        return (moment[-1] for moment in sorted(moments, key=lambda m: m[:3]))


def read_history(directory: Path) -> History:
    """Reads what a sweep left behind.

    Raises:
        ConfigError: The parameters of a trial are missing.
    """
    ledger, events = read_lines(directory / LEDGER), read_lines(directory / EVENTS)
    trials: dict[str, Past] = {}
    spans: dict[str, dict[str, float]] = {}
    for line in ledger:
        trial = line.get("trial")
        if trial not in trials:
            params = _params(directory, trial)
            trials[trial] = Past(trial, line["number"], params, line.get("of"))
        _take(trials[trial], line, spans.setdefault(trial, {}))
    for trial, past in trials.items():
        past.metrics = read_lines(directory / f"trials/{trial}/metrics.jsonl")
        if past.state is State.STARTED:
            _add_run(past, spans[trial])
    return History(trials, ledger, _answered(events), _ran(events, ledger, trials.values()))


def read_states(
    directory: Path,
) -> tuple[dict[str, tuple[State, Outcome | None]], frozenset[str]]:
    """State and outcome of each trial by the ledger, and which commands were answered."""
    states: dict[str, tuple[State, Outcome | None]] = {}
    for line in read_lines(directory / LEDGER):
        outcome = Outcome(line["outcome"]) if line.get("outcome") else None
        states[line["trial"]] = (State(line["state"]), outcome)
    return states, _answered(read_lines(directory / EVENTS))


def _answered(events: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(line["id"] for line in events if line.get("event") == "command")


def _take(past: Past, line: Mapping[str, Any], since: dict[str, float]) -> None:
    past.number, past.state = line["number"], State(line["state"])
    past.reason = line.get("reason") or ""
    past.outcome = Outcome(line["outcome"]) if line.get("outcome") else None
    past.spent |= {k: v for k, v in (line.get("durations") or {}).items() if v is not None}
    past.ended = line["time"] if past.over else None
    if line.get("fork"):
        past.forks.append((float(line["time"]), int(line["fork"]["step"])))
    # An event or a warning is a line of its own in the same state.
    if "event" not in line and "warning" not in line:
        past.retries += past.state is State.RETRIED
        since[past.state] = line["time"]


def _add_run(past: Past, since: Mapping[str, float]) -> None:
    """Counts the time until the last sign of life of a trial whose driver was killed."""
    signs = [line.get("timestamp") or 0.0 for line in past.metrics[-1:]]
    ran = max(0.0, max(signs, default=0.0) - since.get(State.STARTED, 0.0))
    past.spent["run"] = past.spent.get("run", 0.0) + ran


def _ran(events: Sequence[Mapping[str, Any]], ledger: Sequence[Any], trials: Any) -> float:
    """Seconds from each start of a driver to its last sign of life, summed."""
    signs = [line["time"] for line in [*events, *ledger]]
    signs += [line.get("timestamp") or 0.0 for past in trials for line in past.metrics]
    signs.sort()
    began = [line["time"] for line in events if line.get("event") == "began"] or signs[:1]
    total = 0.0
    for start, following in itertools.pairwise([*began, float("inf")]):
        own = [sign for sign in signs if start <= sign < following]
        total += own[-1] - start if own else 0.0
    return total


def _values(line: Mapping[str, Any]) -> dict[str, float]:
    own = ("iteration", "timestamp")
    return {
        key: float("nan") if value is None else float(value)
        for key, value in line.items()
        if key not in own
    }


def _params(directory: Path, trial: str) -> dict[str, Any]:
    place = directory / f"trials/{trial}/params.json"
    try:
        params: dict[str, Any] = orjson.loads(place.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        raise ConfigError(
            f"{place} is missing or damaged; without it the sweep cannot go on: put it back, or start another"
        ) from None
    return params


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a ``.jsonl`` file, torn ones passed over; none where it is not there."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = []
    for text in data[: data.rfind(b"\n") + 1].splitlines():
        with contextlib.suppress(orjson.JSONDecodeError):
            lines.append(orjson.loads(text))
    return [line for line in lines if isinstance(line, dict)]


def mend(directory: Path) -> list[str]:
    """Cuts what a killed driver left half-written; only for whoever holds the directory.

    Returns:
        What was cut, one line each.
    """
    told = []
    logs = [directory / name for name in (LEDGER, EVENTS, STUDY, "services.jsonl")]
    for path in [*logs, *directory.glob("trials/*/metrics.jsonl")]:
        if not path.is_file():
            continue
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.open("rb+") as file:
                file.truncate(whole)
            told.append(f"{path.relative_to(directory)}: cut a torn last line")
    # Its holder is gone; the next one would wait half a minute for it.
    for stale in directory.glob(f"{STUDY}.lock*"):
        stale.unlink(missing_ok=True)
    return told


def read_config(directory: Path) -> dict[str, Any]:
    """The sweep in a run directory, as plain values.

    Raises:
        ConfigError: There is none, or a newer version wrote it.
    """
    path = directory / "sweep.json"
    try:
        document = orjson.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if (directory / "packed.json").exists():
            raise ConfigError(
                f"{directory} is a packed sweep, which can be read and not go on; name the directory it came from"
            ) from None
        raise ConfigError(
            f"{directory} holds no sweep.json; name a directory that `rlhf-sweep run` wrote"
        ) from None
    except orjson.JSONDecodeError:
        raise ConfigError(f"{path} is damaged; the sweep cannot go on without it") from None
    version = document.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema version {version!r}, this code goes on with {SCHEMA_VERSION} at most; use the "
            "version that wrote it, or a newer one"
        )
    _as_it_began(document.get("config", {}))
    return dict(document)


def _as_it_began(config: Mapping[str, Any]) -> None:
    """What a directory does not know of, its sweep began without: ``search.prior`` and ``selection.smooth``."""
    search, parameters = config.get("search", {}), config.get("space", {}).get("parameters", ())
    centres = any(parameter.get("centre") is not None for parameter in parameters)
    if centres and search.get("sampler") in BEGIN_AT_RANDOM:
        search.setdefault("prior", 0.0)
    if isinstance(selection := config.get("selection"), dict):
        selection.setdefault("smooth", False)


def check_changes(overrides: Mapping[str, Any]) -> None:
    """Refuses overrides after which trials could no longer be compared.

    Raises:
        ConfigError: With every such key.
    """
    wrong = [key for key in overrides if not may_change(key)]
    if wrong:
        allowed = ", ".join(f"{key}*" if key.endswith(".") else key for key in MAY_CHANGE)
        raise ConfigError(
            f"--set {key}: a sweep goes on with what its trials share, or they could not be compared; "
            f"only {allowed} may change{nearest(key, ['search.trials', 'budget.minutes'])}"
            for key in wrong
        )


def may_change(key: str) -> bool:
    """Whether a sweep may go on with another value of this key."""
    within = any(key == own or (own.endswith(".") and key.startswith(own)) for own in MAY_CHANGE)
    return within and not key.startswith(MUST_STAY)


def check_same(config: Mapping[str, Any], document: Mapping[str, Any], directory: Path) -> None:
    """Refuses to go on with another sweep.

    Args:
        config: Settings of the sweep that is to go on.
        document: ``sweep.json`` of the directory.
        directory: Where it is.

    Raises:
        ConfigError: What its trials share is not what the directory holds.
    """
    # What an older version did not know has its default now.
    stored = settings(load_sweep(document["config"]))["config"]
    now, then = _flat(config), _flat(stored)
    changed = [k for k in {**then, **now} if now.get(k) != then.get(k) and not may_change(k)]
    if changed:
        raise ConfigError(
            f"--resume: {directory} holds a sweep with another {', '.join(changed[:3])}; set what it was, or name "
            "another folder"
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping) and value
        found |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found
