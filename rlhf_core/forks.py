"""A checkpoint that several trials own: marked by its trial, staged for another one, installed there. Torch-free.

A trial marks the points at which it can be copied, and keeps the last two of them: whoever decides on a copy has
seen all reports of the trial but the newest. The copy is staged beside the checkpoints of the trial that is to
have it, and takes their place when that trial starts; whatever breaks off in between is done again from there.
"""

from __future__ import annotations

import json
from typing import Any

from rlhf_core.errors import CheckpointError
from rlhf_core.store import Store

CHECKPOINTS, STAGED = "checkpoints", "fork"
_MARKS, _DONE = f"{CHECKPOINTS}/marks.json", "forked.json"


def mark(store: Store, step: int) -> None:
    """Notes that step ``step`` is a finished checkpoint that can be copied."""
    before = [s for s in marks(store) if s != step]
    store.put(_MARKS, json.dumps({"steps": [*before[-1:], step]}).encode())


def marks(store: Store) -> list[int]:
    """The last two steps that are marked."""
    try:
        return [int(step) for step in json.loads(store.get(_MARKS))["steps"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"checkpoint: {_MARKS} in {store.uri} is unreadable") from None


def stage(source: Store, target: Store, step: int) -> None:
    """Gives a trial a copy of a checkpoint of another one, without touching its own.

    Raises:
        CheckpointError: The source has no such checkpoint.
    """
    folder = f"{CHECKPOINTS}/{step:08d}"
    keys = source.list(folder)
    if f"{folder}/manifest.json" not in keys:
        raise CheckpointError(f"checkpoint: step {step} has no manifest in {source.uri}")
    target.delete(STAGED)
    for key in keys:
        target.take(source, key, f"{STAGED}/{key}")


def install(store: Store, fork: dict[str, Any]) -> bool:
    """Puts what was staged in the place of the trial's own checkpoints; once for each fork.

    Args:
        store: The trial's store.
        fork: What tells this fork from others, with its ``step``.

    Returns:
        Whether it was done now.
    """
    if _done(store) == fork:
        return False
    step = int(fork["step"])
    folder = f"{CHECKPOINTS}/{step:08d}"
    keys = store.list(f"{STAGED}/{folder}")
    if f"{STAGED}/{folder}/manifest.json" not in keys:
        raise CheckpointError(f"checkpoint: no copy of step {step} is staged in {store.uri}")
    store.delete(CHECKPOINTS)
    for key in keys:
        store.take(store, key, key.removeprefix(f"{STAGED}/"))
    mark(store, step)
    for pointer in ("best", "latest"):
        store.put(f"{CHECKPOINTS}/{pointer}.json", json.dumps({"step": step}).encode())
    store.put(_DONE, json.dumps(fork).encode())
    store.delete(STAGED)
    return True


def _done(store: Store) -> Any:
    try:
        return json.loads(store.get(_DONE))
    except FileNotFoundError:
        return None
