"""Checkpoints: whole or ignored, and pruned without losing what a pointer names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core import checkpoint
from rlhf_core.errors import CheckpointError
from rlhf_core.store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def _save(store: LocalStore, step: int, *, best: bool = False) -> None:
    tensors = {"w": torch.full((3,), float(step)), "t": torch.arange(4).view(2, 2).T}
    part = checkpoint.save_part(store, step, "learner", tensors)
    checkpoint.commit(store, step, {"parts": {"learner": part}}, best=best)


def _entry(store: LocalStore, step: int) -> dict[str, object]:
    return dict(checkpoint.read_manifest(store, step)["parts"]["learner"])


def test_a_part_comes_back_exactly(store: LocalStore) -> None:
    _save(store, 3)
    tensors = checkpoint.load_part(store, _entry(store, 3))
    assert torch.equal(tensors["w"], torch.full((3,), 3.0))
    assert torch.equal(tensors["t"], torch.tensor([[0, 2], [1, 3]]))
    assert checkpoint.pointed(store, "latest") == 3
    assert checkpoint.pointed(store, "best") is None


def test_a_missing_part_is_named(store: LocalStore) -> None:
    _save(store, 3)
    entry = _entry(store, 3)
    store.delete(str(entry["key"]))
    with pytest.raises(CheckpointError, match=r"checkpoints/00000003/learner\.safetensors is miss"):
        checkpoint.load_part(store, entry)


def test_an_altered_part_is_named(store: LocalStore) -> None:
    _save(store, 3)
    entry = _entry(store, 3)
    data = bytearray(store.get(str(entry["key"])))
    data[-1] ^= 1
    store.put(str(entry["key"]), bytes(data))
    with pytest.raises(CheckpointError, match=r"learner\.safetensors in .* differs from its check"):
        checkpoint.load_part(store, entry)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 99}'])
def test_an_unreadable_manifest_is_named(store: LocalStore, text: str) -> None:
    _save(store, 3)
    store.put("checkpoints/00000003/manifest.json", text.encode())
    with pytest.raises(CheckpointError, match="3"):
        checkpoint.read_manifest(store, 3)


def test_a_missing_manifest_is_named(store: LocalStore) -> None:
    with pytest.raises(CheckpointError, match="step 7 has no manifest"):
        checkpoint.read_manifest(store, 7)


@pytest.mark.parametrize("text", ["", "{}", '{"step": null}', "[1]"])
def test_an_unreadable_pointer_is_named(store: LocalStore, text: str) -> None:
    store.put("checkpoints/latest.json", text.encode())
    with pytest.raises(CheckpointError, match=r"latest\.json in .* names no step"):
        checkpoint.pointed(store, "latest")


def test_a_half_written_step_is_ignored(store: LocalStore) -> None:
    _save(store, 3)
    checkpoint.save_part(store, 4, "learner", {"w": torch.zeros(1)})
    store.put("checkpoints/notes/manifest.json", b"{}")
    assert checkpoint.steps(store) == [3]
    assert checkpoint.pointed(store, "latest") == 3


def test_a_number_that_is_not_finite_is_not_written(store: LocalStore) -> None:
    with pytest.raises(ValueError, match="JSON"):
        checkpoint.commit(store, 3, {"metrics": {"x": float("nan")}})
    assert checkpoint.steps(store) == []


@pytest.mark.parametrize(
    ("keep", "left"), [(0, [2, 6]), (1, [2, 6]), (2, [2, 5, 6]), (9, [1, 2, 3, 4, 5, 6])]
)
def test_prune_keeps_latest_best_and_the_newest(
    store: LocalStore, keep: int, left: list[int]
) -> None:
    for step in range(1, 7):
        _save(store, step, best=step == 2)
    checkpoint.prune(store, keep)
    assert checkpoint.steps(store) == left
    assert (checkpoint.pointed(store, "best"), checkpoint.pointed(store, "latest")) == (2, 6)
    for step in left:
        checkpoint.load_part(store, _entry(store, step))
    folders = {key.split("/")[1] for key in store.list("checkpoints") if key.count("/") == 2}
    assert folders == {f"{step:08d}" for step in left}


def test_prune_clears_what_crashes_left_but_not_what_is_being_written(store: LocalStore) -> None:
    checkpoint.save_part(store, 1, "learner", {"w": torch.zeros(1)})
    _save(store, 2)
    checkpoint.save_part(store, 3, "learner", {"w": torch.zeros(1)})
    checkpoint.prune(store, 2)
    folders = {key.split("/")[1] for key in store.list("checkpoints") if key.count("/") == 2}
    assert folders == {"00000002", "00000003"}


def test_pointers_are_plain_json(store: LocalStore) -> None:
    _save(store, 5, best=True)
    assert json.loads(store.get("checkpoints/best.json")) == {"step": 5}


@pytest.mark.parametrize("entry", [None, {}, "text", {"key": "x"}])
def test_a_part_that_is_described_wrongly_is_a_checkpoint_error(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(CheckpointError, match="is described by"):
        checkpoint.load_part(LocalStore(tmp_path), entry)


def test_a_part_without_tensors_is_a_checkpoint_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("part", b"no tensors")
    entry = {"key": "part", "sha256": hashlib.sha256(b"no tensors").hexdigest()}
    with pytest.raises(CheckpointError, match="holds no tensors"):
        checkpoint.load_part(store, entry)
