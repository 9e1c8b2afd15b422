"""The one error of this package, and the near-miss helper its messages use."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpaceError(ValueError):
    """A domain, condition, space or file breaks a rule. All problems found are reported together.

    Args:
        problems: One line for each problem: the rule, the value that broke it, the remedy.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: tuple[str, ...] = (
            (problems,) if isinstance(problems, str) else tuple(problems)
        )
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[SpaceError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Near misses of ``name`` as the tail of an error line, or an empty string."""
    known = list(known)
    found = difflib.get_close_matches(name, known, n=count, cutoff=0.6)
    if not found:
        last = name.rsplit(".", 1)[-1]
        found = [k for k in known if last in k.split(".")][:count]
    return f"; did you mean {' or '.join(repr(f) for f in found)}?" if found else ""
