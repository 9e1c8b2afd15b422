"""Checkpoints: tensors as safetensors, everything else as JSON, made visible by one atomic manifest.

Layout below the trial's store: ``checkpoints/00000005/{PART.safetensors, manifest.json}``, and the
pointers ``checkpoints/latest.json`` and ``checkpoints/best.json``. Roles write their own parts; a step without a
manifest was never finished and is ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as decode
from safetensors.torch import save as encode
from torch import Tensor, nn

from rlhf_core import forks
from rlhf_core.errors import CheckpointError
from rlhf_core.store import Store

VERSION = 1
ROOT = forks.CHECKPOINTS


def step_key(step: int) -> str:
    return f"{ROOT}/{step:08d}"


def save_part(store: Store, step: int, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Writes one part; returns its entry for the manifest."""
    data = encode({key: tensor.contiguous() for key, tensor in tensors.items()})
    key = f"{step_key(step)}/{name}.safetensors"
    store.put(key, data)
    return {"key": key, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def load_part(store: Store, entry: dict[str, Any]) -> dict[str, Tensor]:
    """Reads a part back.

    Raises:
        CheckpointError: If it is missing or altered.
    """
    if not (isinstance(entry, dict) and {"key", "sha256"} <= entry.keys()):
        raise CheckpointError(f"checkpoint: a part in {store.uri} is described by {entry!r}")
    try:
        data = store.get(entry["key"])
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint: {entry['key']} is missing in {store.uri}") from None
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise CheckpointError(
            f"checkpoint: {entry['key']} in {store.uri} differs from its checksum"
        )
    try:
        return decode(data)
    except SafetensorError as error:
        raise CheckpointError(f"checkpoint: {entry['key']} holds no tensors: {error}") from None


@torch.no_grad()
def copy_into(
    model: nn.Module, tensors: dict[str, Tensor], entry: dict[str, Any], role: str
) -> None:
    """Copies a part into the parameters of ``model`` that can change, all or none.

    Raises:
        CheckpointError: If a parameter is missing or has another shape.
    """
    changing = {name: p for name, p in model.named_parameters() if p.requires_grad}
    check_fit({name: p.shape for name, p in changing.items()}, tensors, entry, role)
    for name, parameter in changing.items():
        parameter.copy_(tensors[name])


def check_fit(
    shapes: Mapping[str, torch.Size],
    tensors: Mapping[str, Tensor],
    entry: dict[str, Any],
    role: str,
    prefix: str = "",
) -> None:
    """Refuses a part that lacks one of the shapes, ``prefix`` and a name of the role's parameters each.

    Raises:
        CheckpointError: With the first that is missing or has another shape.
    """
    for name, shape in shapes.items():
        found = tensors.get(prefix + name)
        if found is None or found.shape != shape:
            raise CheckpointError(f"checkpoint: {entry['key']} does not fit {role} at {name}")


def commit(store: Store, step: int, manifest: dict[str, Any], *, best: bool = False) -> None:
    """Makes the parts of ``step`` a checkpoint, the latest one and, if asked, the best one."""
    text = json.dumps({"version": VERSION, "step": step, **manifest}, indent=1, allow_nan=False)
    store.put(f"{step_key(step)}/manifest.json", text.encode())
    # `latest` goes last: what is found there says that the step was the best, so `best` must know.
    if best:
        point(store, "best", step)
    point(store, "latest", step)


def point(store: Store, name: str, step: int) -> None:
    """Lets the pointer ``name`` (``latest`` or ``best``) name ``step``."""
    store.put(f"{ROOT}/{name}.json", json.dumps({"step": step}).encode())


def pointed(store: Store, name: str) -> int | None:
    """The step that ``name`` points to, or None.

    Raises:
        CheckpointError: If the pointer is unreadable.
    """
    key = f"{ROOT}/{name}.json"
    try:
        return int(json.loads(store.get(key))["step"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"checkpoint: {key} in {store.uri} names no step") from None


def read_manifest(store: Store, step: int) -> dict[str, Any]:
    """The manifest of ``step``.

    Raises:
        CheckpointError: If there is none, or it is unreadable or of another version.
    """
    key = f"{step_key(step)}/manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(store.get(key))
        version = manifest["version"]
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint: step {step} has no manifest in {store.uri}") from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"checkpoint: {key} in {store.uri} is no manifest") from None
    if version != VERSION:
        raise CheckpointError(
            f"checkpoint: step {step} has version {version}, this code reads {VERSION}"
        )
    return manifest


def steps(store: Store) -> list[int]:
    """Finished checkpoints, oldest first."""
    return sorted(step for step, files in _folders(store).items() if "manifest.json" in files)


def _folders(store: Store) -> dict[int, list[str]]:
    """Files of every step, finished or not."""
    folders: dict[int, list[str]] = {}
    for key in store.list(ROOT):
        _, step, *rest = key.split("/")
        if step.isdecimal() and len(rest) == 1:
            folders.setdefault(int(step), []).append(rest[0])
    return folders


def prune(store: Store, keep: int) -> None:
    """Deletes all but the newest ``keep`` checkpoints and those that a pointer or a mark names.

    What a crash left of older steps goes as well.
    """
    finished = steps(store)
    latest = pointed(store, "latest")
    held = {
        latest,
        pointed(store, "best"),
        *forks.marks(store),
        *finished[max(0, len(finished) - keep) :],
    }
    torn = [step for step in _folders(store) if step not in finished and step < (latest or 0)]
    for step in [*finished, *torn]:
        if step not in held:
            # The manifest goes first: a half-deleted checkpoint must not look whole.
            store.delete(f"{step_key(step)}/manifest.json")
            store.delete(step_key(step))
