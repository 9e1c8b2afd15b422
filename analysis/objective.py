"""The objective and the constraints of a sweep, as its ``sweep.json`` states them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from analysis.names import number
from rlhf_core.errors import ConfigError

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONSTRAINT = re.compile(r"\s*(\S+?)\s*(<=|>=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True)
class Objective:
    """What a sweep optimises.

    Attributes:
        metric: Name of the metric.
        direction: ``maximize`` or ``minimize``.
    """

    metric: str
    direction: Literal["maximize", "minimize"]

    @property
    def ascending(self) -> bool:
        """Whether the best value is the smallest one."""
        return self.direction == "minimize"

    @classmethod
    def read(cls, stored: object) -> Objective:
        """The ``objective`` of ``sweep.json``.

        Raises:
            ConfigError: It names no metric, or a direction other than maximise or minimise.
        """
        if stored is None:
            raise ConfigError(
                "the sweep states no objective; name it, as in "
                'analysis.load(..., metric="eval/heldout", direction="maximize")'
            )
        found = stored if isinstance(stored, Mapping) else {}
        metric, direction = found.get("metric"), str(found.get("direction", "")).lower()
        if not isinstance(metric, str) or direction[:3] not in ("max", "min"):
            raise ConfigError(
                "objective of sweep.json must hold metric and direction (maximize or minimize), "
                f"got {stored!r}; restore the file"
            )
        return cls(metric, "maximize" if direction.startswith("max") else "minimize")

    def __str__(self) -> str:
        return f"{self.direction} {self.metric}"


def named_objective(
    info: Mapping[str, Any], metric: str | None, direction: str | None
) -> Objective:
    """The objective that somebody names for a sweep; what is left out is what the sweep states.

    Raises:
        ConfigError: No metric, or no direction that is known.
    """
    goals = read_objectives(info) if info.get("objective") else ()
    wanted = metric or (goals[0].metric if goals else None)
    way = direction or next((g.direction for g in goals if g.metric == wanted), None)
    if wanted is None:
        raise ConfigError("metric: the sweep states no objective; name its metric, too")
    if way is None:
        raise ConfigError(f'direction: name it beside {wanted!r}, "maximize" or "minimize"')
    if way.lower()[:3] not in ("max", "min"):
        raise ConfigError(f'direction: must be "maximize" or "minimize", but is {way!r}')
    return Objective.read({"metric": wanted, "direction": way})


def read_objectives(info: Mapping[str, Any]) -> tuple[Objective, ...]:
    """All objectives of ``sweep.json``, the one that ranks first.

    They stand in ``objectives``, else in the settings of the search, as ``{metric: direction}``.

    Raises:
        ConfigError: There is none, or one of them cannot be read.
    """
    first = Objective.read(info.get("objective"))
    search = (info.get("config") or {}).get("search") or {}
    stored = info.get("objectives") or search.get("objectives") or {}
    if not isinstance(stored, Mapping):
        raise ConfigError(
            f"objectives of sweep.json must be {{metric: direction}}, got {stored!r}; restore the file"
        )
    named = [{"metric": metric, "direction": way} for metric, way in stored.items()]
    others = [Objective.read(one) for one in named if one["metric"] != first.metric]
    return (first, *others)


@dataclass(frozen=True)
class Constraint:
    """A bound on the final value of a metric: ``metric operator bound``."""

    metric: str
    operator: str
    bound: float

    @classmethod
    def parse(cls, text: object) -> Constraint:
        """Read ``"eval/kl_response <= 20"``.

        Raises:
            ConfigError: The text is not a metric, one of ``<= >= < >``, and a finite number.
        """
        match = _CONSTRAINT.fullmatch(text) if isinstance(text, str) else None
        try:
            bound = float(match[3]) if match else math.nan
        except ValueError:
            bound = math.nan
        if match is None or not math.isfinite(bound):
            raise ConfigError(
                f"a constraint is a metric, one of <= >= < >, and a number, got {text!r}; "
                'write "eval/kl_response <= 20"'
            )
        return cls(match[1], match[2], bound)

    def holds(self, value: float) -> bool:
        """Whether a value satisfies it; one that was never measured does not."""
        return _OPERATORS[self.operator](value, self.bound)

    def broken_by(self, value: float) -> str:
        """Why ``value`` breaks it, in words."""
        if math.isnan(value):
            return f"{self.metric} was not measured, needs {self.operator} {number(self.bound)}"
        return f"{self.metric} is {number(value)}, needs {self.operator} {number(self.bound)}"

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {number(self.bound)}"


def read_constraints(stored: Any) -> tuple[Constraint, ...]:
    """The ``constraints`` of ``sweep.json``: a list of texts, one text, or null.

    Raises:
        ConfigError: One of them cannot be read.
    """
    listed = [stored] if isinstance(stored, str) else (stored or [])
    return tuple(Constraint.parse(text) for text in listed)
