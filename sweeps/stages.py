"""Progress of work in stages: a status line on a terminal, a plain line for each stage elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console

from rlhf_core.tasks.recipe import Progress


@contextlib.contextmanager
def stages(console: Console, what: str) -> Iterator[Progress]:
    """Yields the callback that work reports its stages to.

    Args:
        console: Where they are shown. Without a terminal the beginning of each stage is a line, and so is the
            end of the work, with its seconds; work that reports no stage prints nothing.
        what: The work, such as ``preparing the task``.
    """
    if console.is_terminal:
        with console.status(what) as status:
            yield lambda stage, done, total: status.update(f"{what}: {stage} {done}/{total}")
        return
    seen: set[str] = set()
    start = time.perf_counter()

    def note(stage: str, done: int, total: int) -> None:
        if stage not in seen:
            seen.add(stage)
            console.print(f"{what}: {stage}, {total} steps", soft_wrap=True)

    yield note
    if seen:
        console.print(f"{what}: done after {time.perf_counter() - start:.0f} s", soft_wrap=True)
