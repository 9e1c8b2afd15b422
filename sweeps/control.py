"""What users ask of a sweep while it runs, or before it goes on: ``control.jsonl``, and whether it can be done.

Commands append to the file, the driver reads it and answers each in ``events.jsonl``.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rlhf_core.errors import ConfigError, nearest
from sweeps.outcomes import Outcome, State
from sweeps.points import outside
from sweeps.record import strict_json

CONTROL = "control.jsonl"
# What is asked of a trial, and the states in which it can be.
RUNS = (State.QUEUED, State.WAITING, State.PLACED, State.STARTED, State.RETRIED)
OPEN = (*RUNS, State.PAUSED, State.INTERRUPTED)
FROM: dict[str, tuple[State, ...]] = {
    "stop": OPEN,
    "pause": (*RUNS, State.INTERRUPTED),
    "resume-trial": (State.PAUSED,),
    "retry": (State.ENDED,),
}
RETRIED = (Outcome.FAILED, Outcome.LOST)


@dataclass(frozen=True)
class Command:
    """One request.

    Attributes:
        action: A key of ``FROM``, or ``add`` or ``extend``.
        trial: Whom it is about, or None.
        values: ``{dotted key: value}`` of a point to add, or ``{"trials": N}``.
        id: By which it is answered.
    """

    action: str
    trial: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


def send(directory: Path, command: Command) -> None:
    """Appends the command; several processes may do so at the same time."""
    line = {"time": time.time(), "id": command.id, "action": command.action}
    line |= {"trial": command.trial, "values": dict(command.values)}
    path = directory / CONTROL
    torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    text = ("\n" if torn else "") + strict_json(line) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class Inbox:
    """The commands of a run directory that were not answered yet.

    Args:
        directory: The run directory.
        answered: Ids of those that were.
    """

    def __init__(self, directory: Path, answered: Collection[str] = ()) -> None:
        self._path, self._seen, self._offset = directory / CONTROL, set(answered), 0

    def read(self) -> list[Command]:
        """What came since the last call; a line that is still being written comes with the next one."""
        try:
            if self._path.stat().st_size == self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = [c for c in map(_parsed, whole.splitlines()) if c and c.id not in self._seen]
        self._seen |= {command.id for command in found}
        return found


def _parsed(text: bytes) -> Command | None:
    try:
        line = orjson.loads(text)
        return Command(line["action"], line["trial"], line["values"], line["id"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def refusal(action: str, trial: str, state: State, outcome: Outcome | None) -> str | None:
    """Why this cannot be asked of a trial in such a state, in a line, or None."""
    is_ = f"{trial} has ended as {outcome}" if state is State.ENDED else f"{trial} is {state}"
    if state not in FROM[action]:
        remedy = {
            "stop": "it needs no stop",
            "pause": "`rlhf-sweep resume-trial` goes on with it"
            if state is State.PAUSED
            else "only one that has not ended can be paused",
            "resume-trial": "only a paused one is resumed so",
            "retry": "only one that failed or was lost is tried again",
        }
        return f"{action}: {is_}; {remedy[action]}"
    if action == "retry" and outcome not in RETRIED:
        return f"retry: {is_}; only one that failed or was lost is tried again"
    return None


def check(
    loaded: Any,
    command: Command,
    trials: Mapping[str, tuple[State, Outcome | None]],
    waiting: Collection[Command],
) -> None:
    """Refuses what can be seen to be impossible.

    Args:
        loaded: The sweep.
        command: What is asked.
        trials: State and outcome of each trial.
        waiting: Commands that nobody has answered yet; they may change what is possible.

    Raises:
        ConfigError: Why, in a line.
    """
    if command.action == "add":
        found = outside(command.values, loaded.space, "add")
        if found:
            raise ConfigError(found)
    elif command.action == "extend":
        asked, least = command.values["trials"], loaded.config.search.trials
        if asked <= least:
            raise ConfigError(
                f"extend: --trials must be above {least}, what the sweep asks for, but is {asked}"
            )
    elif command.trial not in trials:
        raise ConfigError(
            f"{command.action}: there is no trial {command.trial!r}{nearest(str(command.trial), trials)}"
        )
    elif not any(other.trial == command.trial for other in waiting):
        why = refusal(command.action, command.trial, *trials[command.trial])
        if why is not None:
            raise ConfigError(why)
