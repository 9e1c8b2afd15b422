"""What a replayed sweep has in the place of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeps.record import RunDirectory


class MemoryStore:
    """Files in memory; what is appended is not kept."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    @property
    def uri(self) -> str:
        return "memory:"

    def put(self, key: str, data: bytes, durable: bool = True) -> None:
        self._files[key] = data

    def get(self, key: str) -> bytes:
        if key not in self._files:
            raise FileNotFoundError(key)
        return self._files[key]

    def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self._files if key.startswith(prefix))

    def delete(self, prefix: str) -> None:
        for key in self.list(prefix):
            del self._files[key]

    def append(self, key: str, line: str) -> None:
        return None


class MemoryDirectory(RunDirectory):
    """A run directory of which only the ledger is kept.

    Attributes:
        lines: The ledger.
    """

    def __init__(self) -> None:
        super().__init__(Path("memory:"))
        self.store = MemoryStore()  # type: ignore[assignment]
        self.lines: list[dict[str, Any]] = []

    def write_trial(self, trial: str, config: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """The driver's record holds the parameters."""

    def metrics(self, trial: str, iteration: int, values: Mapping[str, float]) -> None:
        """The table holds the metrics."""

    def event(self, event: str, **values: Any) -> None:
        """Nobody reads it."""

    def ledger(self, line: Mapping[str, Any], durable: bool = False) -> None:
        self.lines.append(dict(line))
