"""Writes the run directory (docs/run_directory.md). Only the driver of a sweep writes here."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import ConfigError
from rlhf_core.store import LocalStore
from search_spaces import codec
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
            f"--out: {directory} already holds a sweep; name another folder, or remove this one"
        )
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--out: {directory} is a file; name a folder")
    if directory.is_dir() and any(directory.iterdir()):
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


def storage_root(directory: Path, configured: str | None) -> str:
    """URI below which each trial has its store."""
    if configured is None:
        return str((directory / "trials").absolute())
    return configured.rstrip("/")


class RunDirectory:
    """The files of one sweep."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.store = LocalStore(directory)

    def write_sweep(self, loaded: Loaded, nodes: list[dict[str, Any]]) -> None:
        """``sweep.json`` and ``space.json``."""
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
            "trials": config.search.trials,
            "config": {
                **config.model_dump(mode="json", exclude={"base", "space"}),
                "base": dict(loaded.base),
                "space": codec.to_dict(loaded.space),
            },
        }
        self._put("space.json", codec.to_dict(loaded.space))
        self._put("sweep.json", document)

    def write_passed_over(self, count: int) -> None:
        """``passed_over`` of ``sweep.json``: proposals that broke a rule of the space."""
        document = json.loads(self.store.get("sweep.json"))
        self._put("sweep.json", {**document, "passed_over": count})

    def write_trial(self, trial: str, config: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """``config.json`` and ``params.json`` of a trial."""
        self._put(f"trials/{trial}/config.json", config)
        self._put(f"trials/{trial}/params.json", params)

    def write_placement(self, trial: str, placement: Mapping[str, Any]) -> None:
        self._put(f"trials/{trial}/placement.json", placement)

    def write_service(self, name: str, record: Mapping[str, Any]) -> None:
        """``placement.json`` of a service that trials share."""
        self._put(f"services/{name}/placement.json", record)

    def service_event(self, line: Mapping[str, Any]) -> None:
        """Appends to ``services.jsonl``."""
        self.store.append("services.jsonl", strict_json({"time": time.time(), **line}))

    def ledger(self, line: Mapping[str, Any]) -> None:
        """Appends to ``trials.jsonl``."""
        self.store.append("trials.jsonl", strict_json({"time": time.time(), **line}))

    def metrics(self, trial: str, iteration: int, values: Mapping[str, float]) -> None:
        """Appends to the trial's ``metrics.jsonl``."""
        line = {"iteration": iteration, "timestamp": time.time(), **values}
        self.store.append(f"trials/{trial}/metrics.jsonl", strict_json(line))

    def error(self, trial: str, traceback: str) -> None:
        """``error.txt`` of a trial: the whole traceback of what the ledger names in a line."""
        self.store.put(f"trials/{trial}/error.txt", traceback.encode())

    def _put(self, key: str, value: Any) -> None:
        text = json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False)
        self.store.put(key, text.encode())
