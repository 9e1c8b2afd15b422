"""What values one parameter may take. Plain data: bounds are inclusive, and nothing here samples.

Every domain is validated on construction, compares by value, pickles, and answers ``contains``.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TypeGuard

from search_spaces.errors import SpaceError

Scalar = str | int | float | bool | None
"""A value as JSON and YAML know it."""

_GRID_TOLERANCE = 1e-9
"""Slack, in steps, for a float grid: 0.1 + 2 * 0.1 is not 0.3 in binary."""


@dataclass(frozen=True, slots=True)
class Float:
    """Real numbers from ``low`` to ``high``, both included.

    Args:
        low: Smallest value.
        high: Largest value; above ``low``.
        log: Whether ratios rather than differences matter; needs ``low > 0``.
        step: Grid ``low, low + step, ..., high``; must divide the range; not together with ``log``.

    Raises:
        SpaceError: A rule above is broken.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        bounds = {"low": self.low, "high": self.high}
        if self.step is not None:
            bounds["step"] = self.step
        bad = [n for n, v in bounds.items() if not is_number(v)]
        if bad:
            raise SpaceError(
                f"a float domain needs finite numbers, got {n}={bounds[n]!r}; write {n} as a number"
                for n in bad
            )
        for name, value in bounds.items():
            object.__setattr__(self, name, float(value))
        _raise_if(
            [*_range_problems(self.low, self.high, self.log, self.step), *self._log_problems()]
        )

    def _log_problems(self) -> list[str]:
        if not self.log:
            return []
        problems = []
        if self.low <= 0:
            problems.append(
                f"a log domain needs low > 0, got low={self.low!r}; raise low or drop log"
            )
        if self.step is not None:
            problems.append(
                f"a log domain takes no step, got step={self.step!r}; drop one or list a choice"
            )
        return problems

    def contains(self, value: object) -> bool:
        """Whether ``value`` is a number of this domain; integers count, booleans do not."""
        if not is_number(value) or not self.low <= value <= self.high:
            return False
        return self.step is None or _on_grid(value - self.low, self.step)


@dataclass(frozen=True, slots=True)
class Int:
    """Integers ``low, low + step, ..., high``, both ends included.

    Args:
        low: Smallest value.
        high: Largest value; above ``low``.
        log: Whether ratios matter; needs ``low >= 1`` and ``step == 1``.
        step: Distance of neighbours; must divide the range.

    Raises:
        SpaceError: A rule above is broken.
    """

    low: int
    high: int
    log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        _raise_if(
            [
                f"an int domain needs integers, got {name}={value!r}; "
                f"write {name} as an integer or use float"
                for name, value in (("low", self.low), ("high", self.high), ("step", self.step))
                if not _is_int(value)
            ]
        )
        problems = _range_problems(self.low, self.high, self.log, self.step)
        if self.log and self.low < 1:
            problems.append(
                f"a log domain needs low >= 1, got low={self.low!r}; raise low or drop log"
            )
        if self.log and self.step != 1:
            problems.append(
                f"a log domain takes no step, got step={self.step!r}; drop one or list a choice"
            )
        _raise_if(problems)

    def contains(self, value: object) -> bool:
        """Whether ``value`` is an integer of this domain; ``2.0`` and ``True`` are not."""
        return (
            _is_int(value)
            and self.low <= value <= self.high
            and (value - self.low) % self.step == 0
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few listed values, without order.

    Args:
        values: At least one, no two the same; ``1`` and ``True`` differ, ``1`` and ``1.0`` do not.

    Raises:
        SpaceError: A rule above is broken.
    """

    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", scalars(self.values, "a choice"))

    def contains(self, value: object) -> bool:
        """Whether ``value`` is one of the listed values."""
        return any(same(value, v) for v in self.values)


@dataclass(frozen=True, slots=True)
class Constant:
    """A single value: it takes part in conditions and reaches the trial, but is never searched.

    Args:
        value: The value.

    Raises:
        SpaceError: The value is not a string, number, boolean or None.
    """

    value: Scalar

    def __post_init__(self) -> None:
        scalars((self.value,), "a constant")

    def contains(self, value: object) -> bool:
        """Whether ``value`` is the constant."""
        return same(value, self.value)


Domain = Float | Int | Choice | Constant


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether ``value`` is a finite int or float; booleans are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def same(left: object, right: object) -> bool:
    """Equality of scalars that keeps ``True`` apart from ``1``."""
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return left == right


def scalars(values: object, owner: str) -> tuple[Scalar, ...]:
    """``values`` as a non-empty tuple of distinct scalars, or a SpaceError that names ``owner``."""
    if not isinstance(values, list | tuple) or not values:
        raise SpaceError(f"{owner} needs at least one value, got {values!r}; list the values")
    problems = []
    for index, value in enumerate(values):
        if not (value is None or isinstance(value, str | bool) or is_number(value)):
            problems.append(
                f"{owner} holds strings, finite numbers, booleans or None, got {value!r}; "
                "replace it by one of these"
            )
        elif any(same(value, earlier) for earlier in values[:index]):
            problems.append(f"{owner} needs distinct values, got {value!r} twice; remove one")
    _raise_if(problems)
    return tuple(values)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _on_grid(distance: float, step: float) -> bool:
    steps = distance / step
    return abs(steps - round(steps)) <= _GRID_TOLERANCE * max(1.0, abs(steps))


def _range_problems(low: float, high: float, log: object, step: float | None) -> list[str]:
    problems = []
    if not isinstance(log, bool):
        problems.append(f"log must be true or false, got {log!r}; write one of these")
    if low >= high:
        problems.append(
            f"low < high must hold, got low={low!r} and high={high!r}; "
            "swap them, or use a constant for a single value"
        )
    if step is None:
        return problems
    if step <= 0:
        problems.append(f"step must be above 0, got step={step!r}; use a positive step")
    elif low < high and not _on_grid(high - low, step):
        last = low + math.floor((high - low) / step) * step
        problems.append(
            f"step must divide high - low, got low={low!r}, high={high!r} and step={step!r}; "
            f"use high={last!r} or another step"
        )
    return problems


def _raise_if(problems: list[str]) -> None:
    if problems:
        raise SpaceError(problems)
