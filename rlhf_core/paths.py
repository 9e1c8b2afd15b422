"""A path as a user writes it. Torch-free."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.errors import ConfigError, shown


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
