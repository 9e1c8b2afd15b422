"""Writes the run directory (docs/run_directory.md). Only the driver of a sweep writes here."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import ConfigError
from rlhf_core.store import LocalStore
from search_spaces import codec
from sweeps.claim import LOCK
from sweeps.load import Loaded

SCHEMA_VERSION = 1
PACKAGES = ("rlhf-sweeps", "ray", "torch", "transformers", "optuna", "numpy", "pandas")


def strict_json(value: Any) -> str:
    """JSON that every reader takes: a number that is not finite becomes null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def versions() -> dict[str, str]:
    """Versions of the packages that decide what comes out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def check_target(directory: Path) -> None:
    """Refuses a folder that holds another sweep or other files.

    Raises:
        ConfigError: With what is there and what to do.
    """
    if (directory / "sweep.json").exists():
        raise ConfigError(
            f"--out: {directory} already holds a sweep; name another folder, or add --resume to go on with it"
        )
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--out: {directory} is a file; name a folder")
    if directory.is_dir() and any(not _is_early(path) for path in directory.iterdir()):
        raise ConfigError(
            f"--out: {directory} is not empty and holds no sweep; name another folder"
        )
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
        # What is never run leaves no empty folder behind.
        for folder in made:
            folder.rmdir()
    except OSError as error:
        raise ConfigError(
            f"--out: {directory} cannot be written: {error.strerror}; name another folder"
        ) from None


def _is_early(path: Path) -> bool:
    """Whether a driver that was killed before it wrote ``sweep.json`` may have left this file."""
    return path.is_file() and (path.name in (LOCK, "space.json") or path.name.startswith("."))


def storage_root(directory: Path, configured: str | None) -> str:
    """URI below which each trial has its store."""
    if configured is None:
        return str((directory / "trials").absolute())
    return configured.rstrip("/")


class RunDirectory:
    """The files of one sweep.

    Once a file cannot be written, nothing is: what is there stays a beginning of what happened.

    Attributes:
        broken: Why nothing can be written any more, or None.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.store = LocalStore(directory)
        self.broken: OSError | None = None
        self._known_as: dict[str, str] = {}
        self._document: dict[str, Any] = {}

    def write_sweep(
        self,
        loaded: Loaded,
        nodes: list[dict[str, Any]],
        before: Mapping[str, Any] | None = None,
    ) -> None:
        """``sweep.json`` and ``space.json``.

        Args:
            loaded: The sweep.
            nodes: What its cluster has now.
            before: ``sweep.json`` of the sweep that goes on; it keeps how it began, and its nodes.
        """
        config = loaded.config
        document = {
            "schema_version": SCHEMA_VERSION,
            "name": config.name,
            "created": time.time(),
            "command": [Path(sys.argv[0]).stem, *sys.argv[1:]],
            "versions": versions(),
            "cluster": {"nodes": nodes},
            "rehearsed": config.cluster.rehearse is not None,
            "objective": {"metric": config.search.objective, "direction": config.search.direction},
            "constraints": list(config.search.constraints),
            **settings(loaded),
        }
        if before is not None:
            document |= {key: before[key] for key in _FIRST if key in before}
            document["cluster"] = {"nodes": self._joined(before, nodes)}
        self._put("space.json", codec.to_dict(loaded.space))
        self._put("sweep.json", document)
        self._document = document

    def rewrite_sweep(self, loaded: Loaded) -> None:
        """``sweep.json`` after its settings changed while it ran."""
        self._document |= settings(loaded)
        self._put("sweep.json", self._document)

    def write_passed_over(self, count: int) -> None:
        """``passed_over`` of ``sweep.json``: proposals that broke a rule of the space."""
        document = json.loads(self.store.get("sweep.json"))
        self._put("sweep.json", {**document, "passed_over": count})

    def write_trial(self, trial: str, config: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """``config.json`` and ``params.json`` of a trial; the former follows from the latter (``has_config``)."""
        self._put(f"trials/{trial}/config.json", config, durable=False)
        self._put(f"trials/{trial}/params.json", params)

    def has_config(self, trial: str) -> bool:
        """Whether ``config.json`` of a trial is whole; where the power failed it may not be."""
        try:
            json.loads(self.store.get(f"trials/{trial}/config.json"))
        except (FileNotFoundError, ValueError):
            return False
        return True

    def write_placement(self, trial: str, placement: Mapping[str, Any]) -> None:
        self._put(f"trials/{trial}/placement.json", self._placed(placement), durable=False)

    def write_service(self, name: str, record: Mapping[str, Any]) -> None:
        """``placement.json`` of a service that trials share."""
        self._put(f"services/{name}/placement.json", self._placed(record))

    def service_event(self, line: Mapping[str, Any]) -> None:
        """Appends to ``services.jsonl``."""
        self._append("services.jsonl", {"time": time.time(), **line})

    def event(self, event: str, **more: Any) -> None:
        """Appends to ``events.jsonl``: what happened to the sweep as a whole."""
        self._append("events.jsonl", {"time": time.time(), "event": event, **more})

    def ledger(self, line: Mapping[str, Any], durable: bool = False) -> None:
        """Appends to ``trials.jsonl``.

        ``durable``: this line, those before it, and before them what its trial reported, outlive a loss of power.
        """
        if durable:
            self._sync(f"trials/{line['trial']}/metrics.jsonl")
        self._append("trials.jsonl", {"time": time.time(), **line})
        if durable:
            self._sync("trials.jsonl")

    def metrics(self, trial: str, iteration: int, values: Mapping[str, float]) -> None:
        """Appends to the trial's ``metrics.jsonl``."""
        line = {"iteration": iteration, "timestamp": time.time(), **values}
        self._append(f"trials/{trial}/metrics.jsonl", line)

    def error(self, trial: str, traceback: str) -> None:
        """``error.txt`` of a trial: the whole traceback of what the ledger names in a line."""
        with self._writing():
            self.store.put(f"trials/{trial}/error.txt", traceback.encode())

    def _put(self, key: str, value: Any, durable: bool = True) -> None:
        text = json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False)
        with self._writing():
            self.store.put(key, text.encode(), durable)

    def _append(self, key: str, line: Mapping[str, Any]) -> None:
        with self._writing():
            self.store.append(key, strict_json(line))

    def _sync(self, key: str) -> None:
        path = self.path / key
        # A trial that never reported has no metrics.
        if path.exists():
            with self._writing(), path.open("rb") as file:
                os.fsync(file.fileno())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        if self.broken is not None:
            raise self.broken
        try:
            yield
        except OSError as error:
            self.broken = error
            raise

    def _joined(
        self, before: Mapping[str, Any], nodes: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The nodes from before and those that are new; one that came back keeps the id it was known by."""
        known = list((before.get("cluster") or {}).get("nodes") or [])
        free = list(known)
        for node in nodes:
            same = next((old for old in free if _looks(old) == _looks(node)), None)
            if same is None:
                known.append(node)
            else:
                free.remove(same)
                self._known_as[str(node.get("id"))] = str(same.get("id"))
        return known

    def _placed(self, placement: Mapping[str, Any]) -> dict[str, Any]:
        """A placement whose nodes have the ids of ``sweep.json``."""
        if not self._known_as:
            return dict(placement)
        bundles = [
            {**bundle, "node": self._known_as.get(str(bundle.get("node")), bundle.get("node"))}
            for bundle in placement.get("bundles", ())
        ]
        return {**placement, "bundles": bundles}


def settings(loaded: Loaded) -> dict[str, Any]:
    """``trials`` and ``config`` of ``sweep.json``."""
    config, checkpoints = loaded.config, loaded.config.storage.checkpoints
    if checkpoints is not None and "://" not in checkpoints:
        # The sweep may go on from another working directory.
        storage = config.storage.model_copy(
            update={"checkpoints": str(Path(checkpoints).absolute())}
        )
        config = config.model_copy(update={"storage": storage})
    return {
        "trials": config.search.trials,
        "config": {
            **config.model_dump(mode="json", exclude={"base", "space"}),
            "base": dict(loaded.base),
            "space": codec.to_dict(loaded.space),
        },
    }


# What of ``sweep.json`` tells how a sweep began.
_FIRST = ("created", "command", "versions")


def _looks(node: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a node from another one; Ray gives it a new id whenever it starts."""
    name = str(node.get("name")).removesuffix(":" + str(node.get("id"))[:6])
    return name, *(node.get(key) for key in ("cpus", "gpus", "labels", "custom"))
