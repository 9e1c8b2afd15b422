"""The study's journal in the run directory: several entries in one write, and whole lines only."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

# A driver that was killed can leave the lock behind: it is taken over after so long without a new line.
GRACE_S = 3


class Journal(JournalFileBackend):
    """An Optuna journal file.

    Optuna writes and syncs each parameter by itself; ``together`` makes one write of all that a trial is asked or
    told. A trial whose asking was cut off is then not in the file at all. Only asking syncs, and with it all that
    was written before: what was reported and told stands in the ledger and the metrics as well.

    Args:
        path: The file; a last line without its end, of a process that was killed, is cut off.
    """

    def __init__(self, path: Path) -> None:
        _cut(path)
        self._lock_of_file = JournalFileSymlinkLock(str(path), grace_period=GRACE_S)
        super().__init__(str(path), lock_obj=self._lock_of_file)
        self._path = path
        self._pending: list[str] | None = None
        self._first: int | None = None
        self._failed: OSError | None = None

    @contextmanager
    def together(self, durable: bool) -> Iterator[None]:
        """Entries of the block are read back at once, and written at its end; others wait so long to write.

        ``durable``: the file then outlives a loss of power, up to here.
        """
        self._lock_of_file.acquire()
        self._pending, self._first = [], None
        try:
            yield
        finally:
            pending, self._pending = self._pending, None
            try:
                self._write(pending, durable)
            finally:
                self._lock_of_file.release()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = [json.dumps(log, separators=(",", ":")) + "\n" for log in logs]
        if self._pending is not None:
            self._pending += lines
            return
        self._lock_of_file.acquire()
        try:
            self._write(lines)
        finally:
            self._lock_of_file.release()

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        pending = self._pending
        if pending is None:
            yield from super().read_logs(log_number_from)
            return
        if self._first is None:
            # Nobody else writes during the block: what is not in the file now comes after it.
            there = list(super().read_logs(log_number_from))
            self._first = log_number_from + len(there)
            yield from there
        for line in pending[max(0, log_number_from - self._first) :]:
            yield json.loads(line)

    def _write(self, lines: list[str], durable: bool = False) -> None:
        if self._failed is not None:
            raise self._failed
        if not lines:
            return
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                data = memoryview("".join(lines).encode())
                while data:
                    data = data[file.write(data) :]
                if durable:
                    os.fsync(file.fileno())
            except OSError as error:
                # The storage in memory is ahead of the file from here on.
                self._failed = error
                file.truncate(size)
                raise


def _cut(path: Path) -> None:
    """Removes a last line without its end: what is appended to it would make the journal unreadable."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        start = end = file.seek(0, os.SEEK_END)
        whole = 0
        while start > 0 and not whole:
            start = max(0, start - 65536)
            file.seek(start)
            last = file.read(65536).rfind(b"\n")
            whole = start + last + 1 if last >= 0 else 0
        if whole < end:
            file.truncate(whole)
