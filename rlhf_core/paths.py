"""A path or an address as a user writes it. Torch-free."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from rlhf_core.errors import ConfigError, shown

KNOCK_S = 5.0


def malformed_url(written: str) -> str | None:
    """What keeps ``written`` from being an address, as the tail of a line, or None."""
    try:
        parts = urlsplit(written)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if sound:
        return None
    return f"must be an http or https address with a host, but is {shown(written)}; write http://HOST:PORT/PATH"


def problem_of_url(url: str, key: str) -> str | None:
    """Why nobody answers at ``url``, as one line, or None; a connection is made, and nothing is sent."""
    wrong = malformed_url(url)
    if wrong is not None:
        return f"{key} {wrong}"
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), KNOCK_S).close()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        return f"{key}: nobody answers at {url} ({reason}); start the server, or name another"
    return None


def user_path(written: str | Path, name: str = "") -> Path:
    """``written`` with ``~`` in full; whether something is there is the caller's question.

    Args:
        written: The path.
        name: Option or key that holds it; starts the line of the error.

    Raises:
        ConfigError: No file can have that path: its user is unknown, it is too long, it holds a NUL, its
            links lead in a circle, or a folder on its way is closed.
    """
    start = f"{name}: " if name else ""
    try:
        path = Path(written).expanduser()
    except RuntimeError:
        rule = f"{shown(str(written))} begins with the home folder of an unknown user"
        raise ConfigError(f"{start}{rule}; write the path in full") from None
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "a file's name cannot hold its characters"
        raise ConfigError(
            f"{start}{shown(str(written))} cannot be a path: {reason}; name another"
        ) from None
    return path
