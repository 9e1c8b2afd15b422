"""Checkpoints: tensors as safetensors, everything else as JSON, made visible by one atomic manifest.

Layout below the trial's store: ``checkpoints/00000005/{PART.safetensors, manifest.json}``, and the
pointers ``checkpoints/latest.json`` and ``checkpoints/best.json``. Roles write their own parts; a step without a
manifest was never finished and is ignored.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from safetensors.torch import load as decode
from safetensors.torch import save as encode
from torch import Tensor

from rlhf_core.errors import CheckpointError
from rlhf_core.store import Store

VERSION = 1
ROOT = "checkpoints"


def step_key(step: int) -> str:
    return f"{ROOT}/{step:08d}"


def save_part(store: Store, step: int, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Writes one part; returns its entry for the manifest."""
    data = encode({key: tensor.contiguous() for key, tensor in tensors.items()})
    key = f"{step_key(step)}/{name}.safetensors"
    store.put(key, data)
    return {"key": key, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def load_part(store: Store, entry: dict[str, Any]) -> dict[str, Tensor]:
    """Reads a part back; a missing or altered one is a ``CheckpointError``."""
    try:
        data = store.get(entry["key"])
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint: {entry['key']} is missing in {store.uri}") from None
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise CheckpointError(
            f"checkpoint: {entry['key']} in {store.uri} differs from its checksum"
        )
    return decode(data)


def commit(store: Store, step: int, manifest: dict[str, Any]) -> None:
    """Makes the parts of ``step`` a checkpoint, and the latest one."""
    text = json.dumps({"version": VERSION, "step": step, **manifest}, indent=1)
    store.put(f"{step_key(step)}/manifest.json", text.encode())
    point(store, "latest", step)


def point(store: Store, name: str, step: int) -> None:
    """Lets the pointer ``name`` (``latest`` or ``best``) name ``step``."""
    store.put(f"{ROOT}/{name}.json", json.dumps({"step": step}).encode())


def pointed(store: Store, name: str) -> int | None:
    """The step that ``name`` points to, or None."""
    try:
        return int(json.loads(store.get(f"{ROOT}/{name}.json"))["step"])
    except FileNotFoundError:
        return None


def read_manifest(store: Store, step: int) -> dict[str, Any]:
    """The manifest of ``step``."""
    try:
        manifest: dict[str, Any] = json.loads(store.get(f"{step_key(step)}/manifest.json"))
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint: step {step} has no manifest in {store.uri}") from None
    if manifest["version"] != VERSION:
        raise CheckpointError(
            f"checkpoint: step {step} has version {manifest['version']}, this code reads {VERSION}"
        )
    return manifest


def steps(store: Store) -> list[int]:
    """Finished checkpoints, oldest first."""
    keys = store.list(ROOT)
    return sorted(int(key.split("/")[1]) for key in keys if key.endswith("/manifest.json"))


def prune(store: Store, keep: int) -> None:
    """Deletes all but the newest ``keep`` checkpoints and those that a pointer names."""
    finished = steps(store)
    held = {
        pointed(store, "latest"),
        pointed(store, "best"),
        *finished[max(0, len(finished) - keep) :],
    }
    for step in finished:
        if step not in held:
            # The manifest goes first: a half-deleted checkpoint must not look whole.
            store.delete(f"{step_key(step)}/manifest.json")
            store.delete(step_key(step))
