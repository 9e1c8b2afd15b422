"""Where files of a sweep live: one small interface, keys with slashes below a root.

``LocalStore`` is the first case; an object store needs the same seven methods.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlparse

from rlhf_core.errors import ConfigError


class Store(Protocol):
    """Files by key. Writing is atomic: a reader sees the old content or the new, never a part."""

    @property
    def uri(self) -> str:
        """What ``open_store`` needs to reach the same place from another process."""
        ...

    def put(self, key: str, data: bytes, durable: bool = True) -> None:
        """``durable`` False: what was lost with the machine's power can be made again."""
        ...

    def get(self, key: str) -> bytes:
        """Raises FileNotFoundError where there is no such key."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """Keys below ``prefix``, sorted."""
        ...

    def delete(self, prefix: str) -> None:
        """Removes a key, or everything below it; a missing one is no error."""
        ...

    def take(self, other: Store, key: str, name: str) -> None:
        """Makes ``key`` of another store its own ``name``, without moving bytes where the place can."""
        ...

    def append(self, key: str, line: str) -> None:
        """Adds a line to a log that only this process writes."""
        ...


class LocalStore:
    """A folder."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    def path(self, key: str) -> Path:
        """The file of ``key``; a key that would leave the root is an error."""
        path = (self.root / key).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise ConfigError(f"store: a key must stay below {self.root}, but is {key!r}")
        return path

    def put(self, key: str, data: bytes, durable: bool = True) -> None:
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def get(self, key: str) -> bytes:
        return self.path(key).read_bytes()

    def list(self, prefix: str = "") -> list[str]:
        base = self.path(prefix)
        files = base.rglob("*") if base.is_dir() else [base]
        return sorted(
            f.relative_to(self.root.resolve()).as_posix()
            for f in files
            if f.is_file() and not f.name.startswith(".")
        )

    def delete(self, prefix: str) -> None:
        path = self.path(prefix)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def take(self, other: Store, key: str, name: str) -> None:
        if not isinstance(other, LocalStore):
            self.put(name, other.get(key))
            return
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            # Files are replaced and never changed, so two names can share one.
            path.hardlink_to(other.path(key))
        except FileNotFoundError:
            raise
        except OSError:
            self.put(name, other.get(key))

    def append(self, key: str, line: str) -> None:
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            # After a crash the last line may be torn; the next one must not continue it.
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
            else:
                torn = False
            file.write((b"\n" if torn else b"") + line.encode() + b"\n")
            file.flush()


def open_store(uri: str) -> Store:
    """The store at a ``file://`` URI or a plain path."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return LocalStore(unquote(parsed.path))
    if parsed.scheme == "":
        return LocalStore(uri)
    raise ConfigError(
        f"storage: a URI starts with file:// or is a path, but is {uri!r}; no store for "
        f"{parsed.scheme!r} is installed"
    )
