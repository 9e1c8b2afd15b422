"""The errors this project raises on purpose. Read this before catching anything.

Each class also is the standard-library type a caller would expect, and each survives pickling, because
errors cross process borders. A message states the rule, the value that broke it, and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RlhfError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(RlhfError, ValueError):
    """A configuration, file or command-line value breaks a rule. All problems found are reported together.

    Args:
        problems: One line for each problem.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: tuple[str, ...] = (
            (problems,) if isinstance(problems, str) else tuple(problems)
        )
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class PlacementError(ConfigError):
    """No node can hold a bundle of the plan, or a worker was given no place."""


class ClusterError(RlhfError, RuntimeError):
    """Ray does not start, or the cluster lost all its nodes."""


class StorageError(RlhfError, OSError):
    """A file of a sweep cannot be written."""


class CheckpointError(RlhfError, OSError):
    """A checkpoint is missing, torn, or belongs to another configuration."""


class DivergedError(RlhfError, ArithmeticError):
    """A role produced a number that is not finite.

    Args:
        role: Name of the role.
        tensor: Name of the tensor or metric.
        detail: What was seen.
    """

    def __init__(self, role: str, tensor: str, detail: str = "is not finite") -> None:
        self.role, self.tensor, self.detail = role, tensor, detail
        super().__init__(f"{role}: {tensor} {detail}")

    def __reduce__(self) -> tuple[type[DivergedError], tuple[str, str, str]]:
        return type(self), (self.role, self.tensor, self.detail)


class WarmError(RlhfError, RuntimeError):
    """What a process kept from the last trial is not what a new process would read."""


class RankError(RlhfError, RuntimeError):
    """Another rank of a group failed, ended or did not answer; that rank's own error is the cause."""


class ServiceError(RlhfError, RuntimeError):
    """A service that trials share does not answer, or is not the one that was asked for."""


def shown(value: object, longest: int = 80) -> str:
    """``value`` as it stands in an error line: whole where it is short, else its beginning."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # A whole number of thousands of digits, or a value that holds itself.
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Near misses of ``name`` as the tail of an error line, or an empty string."""
    known = list(known)
    last = name.rsplit(".", 1)[-1]
    # A known name below another group is a likelier slip than another name.
    same = [k for k in known if k.rsplit(".", 1)[-1] == last]
    found = (
        difflib.get_close_matches(name, same, n=count, cutoff=0.5)
        or difflib.get_close_matches(name, known, n=count, cutoff=0.6)
        or [k for k in known if k in same or last in k.split(".")][:count]
    )
    return f"; did you mean {' or '.join(repr(f) for f in found)}?" if found else ""
