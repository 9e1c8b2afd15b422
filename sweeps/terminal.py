"""The console of the command line."""

from __future__ import annotations

import shutil
import sys

from rich.console import Console

WIDTH = 100


def make_console() -> Console:
    """Standard output; a pipe or a file gets 100 columns instead of rich's 80."""
    width = (
        None if sys.stdout.isatty() else max(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    )
    return Console(highlight=False, width=width)
