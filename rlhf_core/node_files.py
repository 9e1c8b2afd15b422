"""Files that the processes of a run share on a node; they are gone when those are, however they ended.

Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


def node_root() -> Path:
    """Where this user's files lie on this node."""
    return Path(tempfile.gettempdir()) / f"rlhf-sweeps-warm-{os.getuid()}"


def claim(folder: Path) -> int:
    """Makes the folder and locks it for as long as this process lives; returns the lock's descriptor."""
    while True:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if _is_open(folder / "lock", lock):
                return lock
            # Another process removed the folder in between.
            os.close(lock)


def sweep(root: Path | None = None) -> None:
    """Removes the folders below ``root`` whose processes are gone, however those ended."""
    for lock in (root or node_root()).glob("*/lock"):
        with contextlib.suppress(OSError):
            handle = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(handle)


def _is_open(path: Path, handle: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False
