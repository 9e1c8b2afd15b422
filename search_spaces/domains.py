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

    @property
    def steps(self) -> int | None:
        """Steps of the grid from ``low`` to ``high``; None where there is no grid."""
        return None if self.step is None else round((self.high - self.low) / self.step)

    def at(self, share: float) -> float:
        """The value below which ``share`` of the domain lies; 0 gives ``low``, 1 gives ``high``."""
        if not 0 < share < 1:
            return self.low if share <= 0 else self.high
        if self.steps is not None and self.step is not None:
            index = _index(share, self.steps + 1)
            return self.high if index == self.steps else self.low + index * self.step
        if self.log:
            return _between(self, math.exp(_mix(math.log(self.low), math.log(self.high), share)))
        return _between(self, _mix(self.low, self.high, share))


@dataclass(frozen=True, slots=True)
class Logit:
    """Real numbers strictly between 0 and 1, in which the odds ``x / (1 - x)`` matter.

    For what is tuned near 1 or near 0: 0.9, 0.99 and 0.999 are about equally far from each other.

    Args:
        low: Smallest value, above 0.
        high: Largest value, above ``low`` and below 1.

    Raises:
        SpaceError: A rule above is broken.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        plain = Float(self.low, self.high)
        object.__setattr__(self, "low", plain.low)
        object.__setattr__(self, "high", plain.high)
        _raise_if(
            [
                f"a logit domain lies within (0, 1), got {name}={value!r}; move it inside or drop logit"
                for name, value in (("low", self.low), ("high", self.high))
                if not 0 < value < 1
            ]
        )

    def contains(self, value: object) -> bool:
        """Whether ``value`` is a number of this domain."""
        return is_number(value) and self.low <= value <= self.high

    def at(self, share: float) -> float:
        """The value below which ``share`` of the domain lies, in log odds."""
        if not 0 < share < 1:
            return self.low if share <= 0 else self.high
        return self.from_log_odds(_mix(log_odds(self.low), log_odds(self.high), share))

    def from_log_odds(self, log_odds: float) -> float:
        """The value with these log odds; the nearest bound for one outside."""
        return _between(self, 1 / (1 + math.exp(-log_odds)))


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

    def at(self, share: float) -> int:
        """The value below which ``share`` of the domain lies; 0 gives ``low``, 1 gives ``high``."""
        if self.log:
            return int(_between(self, round(Float(self.low, self.high, log=True).at(share))))
        return self.low + self.step * _index(share, (self.high - self.low) // self.step + 1)


@dataclass(frozen=True, slots=True)
class Pow2:
    """Powers of two from ``low`` to ``high``, both included; each is as likely as the next.

    Args:
        low: Smallest value; a power of two.
        high: Largest value; a power of two above ``low``.

    Raises:
        SpaceError: A rule above is broken.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        Int(self.low, self.high)
        _raise_if(
            [
                f"a pow2 domain needs powers of two, got {name}={value!r}; "
                f"use {name}={1 << max(0, value.bit_length() - 1)} or drop pow2"
                for name, value in (("low", self.low), ("high", self.high))
                if not _is_power(value)
            ]
        )

    @property
    def exponents(self) -> tuple[int, int]:
        """Exponents of the bounds."""
        return self.low.bit_length() - 1, self.high.bit_length() - 1

    @property
    def values(self) -> tuple[int, ...]:
        """All values, ascending."""
        first, last = self.exponents
        return tuple(1 << exponent for exponent in range(first, last + 1))

    def contains(self, value: object) -> bool:
        """Whether ``value`` is a power of two of this domain."""
        return _is_int(value) and self.low <= value <= self.high and _is_power(value)

    def at(self, share: float) -> int:
        """The value below which ``share`` of the powers lies."""
        return self.values[_index(share, len(self.values))]


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

    def at(self, share: float) -> Scalar:
        """The value at ``share`` of the list; 0 gives the first, 1 the last."""
        return self.values[_index(share, len(self.values))]


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

    def at(self, share: float) -> Scalar:
        """The constant."""
        return self.value


Domain = Float | Logit | Int | Pow2 | Choice | Constant
# Those with bounds.
Range = Float | Logit | Int | Pow2


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether ``value`` is a finite int or float; booleans are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def log_odds(value: float) -> float:
    """``log(x / (1 - x))`` of a number strictly between 0 and 1."""
    return math.log(value) - math.log1p(-value)


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


def _is_power(value: int) -> bool:
    return value >= 1 and value & (value - 1) == 0


def _mix(low: float, high: float, share: float) -> float:
    return low + (high - low) * share


def _between(domain: Float | Logit | Int, value: float) -> float:
    """``value``, which rounding may have carried over a bound."""
    return min(max(value, domain.low), domain.high)


def _index(share: float, count: int) -> int:
    return min(int(share * count), count - 1)


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
    elif math.isinf(high - low):
        problems.append(
            f"high - low must be a number, got low={low!r} and high={high!r}; narrow the range"
        )
    if step is None:
        return problems
    if step <= 0:
        problems.append(f"step must be above 0, got step={step!r}; use a positive step")
    elif 0 < high - low < math.inf and not _on_grid(high - low, step):
        last = low + math.floor((high - low) / step) * step
        problems.append(
            f"step must divide high - low, got low={low!r}, high={high!r} and step={step!r}; "
            f"use high={last!r} or another step"
        )
    return problems


def _raise_if(problems: list[str]) -> None:
    if problems:
        raise SpaceError(problems)
