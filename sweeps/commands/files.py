"""Files that a command line names: read them as paths, and write to none that is there already."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_core.errors import ConfigError
from rlhf_core.paths import user_path


def path_argument(text: str) -> Path:
    """The ``type`` of an option or argument that is a path."""
    try:
        return user_path(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_overwrite_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--overwrite`` to a subcommand that writes ``--out FILE``."""
    parser.add_argument("--overwrite", action="store_true", help="replace the file --out names")


def check_target(out: Path, overwrite: bool) -> None:
    """Refuses a place that is no new file before any work is done for it.

    Args:
        out: Where ``--out`` writes.
        overwrite: Whether an ordinary file may stand there.

    Raises:
        ConfigError: A folder, a device or a pipe is there, or a file that may not be replaced.
    """
    if out.is_dir():
        raise ConfigError(f"--out: {out} is a folder; name a file in it")
    if not out.exists():
        return
    if not out.is_file():
        raise ConfigError(f"--out: {out} is a device or a pipe; name an ordinary file")
    if not overwrite:
        raise ConfigError(f"--out: {out} is there already; add --overwrite, or name another file")


@contextmanager
def writing(out: str | Path) -> Iterator[None]:
    """Turns a place that cannot be written into one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"--out: {out} cannot be written: {reason}") from None
