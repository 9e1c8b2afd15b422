"""The console of the command line, and what several commands print."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100


def make_console() -> Console:
    """Standard output; a pipe or a file gets 100 columns instead of rich's 80."""
    from rich.console import Console

    width = (
        None if sys.stdout.isatty() else max(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    )
    return Console(highlight=False, width=width)


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Notes, a paragraph each; without a terminal a line each."""
    from rich.markup import escape

    for note in notes:
        console.print(f"[yellow]note:[/yellow] {escape(note)}", soft_wrap=not console.is_terminal)


def print_judgement(console: Console, trial: str, judgement: Mapping[str, Any]) -> None:
    """The last judgement of a trial, with two of its answers before and after."""
    from rich.text import Text

    from sweeps.verdict import conditions_line, sample_lines, verdict_line

    console.print(f"\n[bold]{trial}[/bold]: {verdict_line(judgement)}")
    console.print(f"       {conditions_line(judgement)}")
    for line in sample_lines(judgement):
        console.print(Text(f"  {line}"), no_wrap=True, overflow="ellipsis")


def print_samples(console: Console, trial: str, judgement: Mapping[str, Any]) -> None:
    """All answers that a last judgement holds, whole, after what was measured on them and the rest."""
    from rich.text import Text

    from sweeps.verdict import conditions_line, sample_lines, texts_lines, verdict_line

    lines = [f"{trial}: {verdict_line(judgement)}", f"       {conditions_line(judgement)}"]
    lines += [f"       {line}" for line in texts_lines(judgement)]
    for index, line in enumerate(sample_lines(judgement, count=None)):
        lines += ["", line] if index % 3 == 0 else [line]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
