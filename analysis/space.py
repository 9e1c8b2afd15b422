"""What analysis needs to know of a search space, read from the plain JSON of ``space.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The parameter in which runs of one configuration differ.
SEED = "seed"


@dataclass(frozen=True)
class Axis:
    """One searched parameter, as tables and plots see it.

    Attributes:
        key: Dotted key into the trial's configuration.
        kind: ``float``, ``logit``, ``int``, ``pow2``, ``choice``, ``constant``, or "" where the space does not
            say.
        log: Whether it is searched on a log scale.
        values: The choices, in the order of the space; empty for a range.
        low: Lower bound of a range, inclusive, or None.
        high: Upper bound of a range, inclusive, or None.
    """

    key: str
    kind: str = ""
    log: bool = False
    values: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None


def axes(space: Mapping[str, Any]) -> dict[str, Axis]:
    """The parameters of a stored space by key, in its order; unknown fields are ignored.

    Args:
        space: Content of ``space.json``. ``parameters`` is a list of entries with a ``key``, or a
            mapping from key to entry. An empty mapping gives no parameters.
    """
    stored = space.get("parameters") or []
    if isinstance(stored, Mapping):
        pairs = [(str(key), entry) for key, entry in stored.items()]
    else:
        pairs = [(str(e["key"]), e) for e in stored if isinstance(e, Mapping) and "key" in e]
    return {key: _axis(key, entry) for key, entry in pairs if isinstance(entry, Mapping)}


def _axis(key: str, entry: Mapping[str, Any]) -> Axis:
    kind = str(entry.get("type", ""))
    listed = entry.get("values") if kind != "constant" else [entry.get("value")]
    return Axis(
        key=key,
        kind=kind,
        log=bool(entry.get("log")) or kind == "pow2",
        values=tuple(listed) if isinstance(listed, list | tuple) else (),
        low=_number(entry.get("low")),
        high=_number(entry.get("high")),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
