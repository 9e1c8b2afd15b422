"""One driver for a run directory: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from rlhf_core.errors import ConfigError

LOCK = "driver.lock"
# Commands look whether a driver lives by taking the lock for a moment.
PATIENCE_S = 2.0


@contextlib.contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Holds the directory for this process.

    Raises:
        ConfigError: Another driver holds it.
    """
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=PATIENCE_S)
    except Timeout:
        raise ConfigError(
            f"{directory}: another driver runs this sweep now; `rlhf-sweep status {directory}` shows it"
        ) from None
    try:
        yield
    finally:
        lock.release()


def is_claimed(directory: Path) -> bool:
    """Whether a driver runs the sweep of this directory at the moment."""
    if not (directory / LOCK).exists():
        return False
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False
