"""The types of what readers use in the documents of a run directory; what lies behind may rely on them.

A shape is a function of a value and its key that says what is wrong, or None. Keys that no shape names are the
writer's own and stay as they are; null is allowed wherever a key may be missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rlhf_core.errors import shown

Shape = Callable[[Any, str], str | None]

MOST_ITERATIONS = 10_000_000
MOST_TRIALS = 1_000_000
_MOST_BYTES_OF_A_NAME = 255


def _wrong(key: str, rule: str, value: Any) -> str:
    return f"{key or 'it'} must be {rule}, but is {shown(value)}"


def anything(value: Any, key: str) -> str | None:
    """No rule."""
    return None


def text(value: Any, key: str) -> str | None:
    return None if isinstance(value, str) else _wrong(key, "text", value)


def flag(value: Any, key: str) -> str | None:
    return None if isinstance(value, bool) else _wrong(key, "true or false", value)


def number(value: Any, key: str) -> str | None:
    """A number that a float can hold, or one of the floats that are not finite."""
    sound = isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    )
    return None if sound else _wrong(key, "a number", value)


def folder_name(value: Any, key: str) -> str | None:
    """The name of a folder, never a way to another one."""
    sound = isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\0"} & {*value}
    short = sound and len(value.encode(errors="replace")) <= _MOST_BYTES_OF_A_NAME
    return None if short else _wrong(key, "the name of a folder", value)


def within(low: float, high: float, whole: bool = False) -> Shape:
    """A number from ``low`` to ``high``."""
    kinds = int if whole else int | float
    rule = f"a {'whole ' * whole}number from {low:g} to {high:g}"

    def check(value: Any, key: str) -> str | None:
        sound = isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high
        return None if sound else _wrong(key, rule, value)

    return check


def listed(item: Shape) -> Shape:
    """A list of such items."""

    def check(value: Any, key: str) -> str | None:
        if not isinstance(value, list):
            return _wrong(key, "a list", value)
        found = (item(part, f"{key}[{place}]") for place, part in enumerate(value))
        return next(filter(None, found), None)

    return check


def mapped(item: Shape) -> Shape:
    """A mapping from any name to such items, or to null."""

    def check(value: Any, key: str) -> str | None:
        if not isinstance(value, Mapping):
            return _wrong(key, "a mapping", value)
        found = (item(v, f"{key}.{k}" if key else k) for k, v in value.items() if v is not None)
        return next(filter(None, found), None)

    return check


def record(shapes: Mapping[str, Shape], needed: Collection[str] = ()) -> Shape:
    """A mapping whose keys have shapes of their own, of which some must be there."""

    def check(value: Any, key: str) -> str | None:
        if not isinstance(value, Mapping):
            return _wrong(key, "a mapping", value)
        for name, shape in shapes.items():
            part, below = value.get(name), f"{key}.{name}" if key else name
            if part is None and name not in needed:
                continue
            fault = f"{below} is missing" if part is None else shape(part, below)
            if fault is not None:
                return fault
        return None

    return check


def either(*shapes: Shape) -> Shape:
    """The first of the shapes that fits; what is wrong is said of the last."""

    def check(value: Any, key: str) -> str | None:
        faults = [shape(value, key) for shape in shapes]
        return None if None in faults else faults[-1]

    return check


def setting(value: Any, key: str) -> str | None:
    """The value of a parameter: anything, but a number that a table can hold."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _INTEGER(value, key)
    return None


_INTEGER = within(-(2**63), 2**63 - 1, whole=True)
_COUNT = within(0, MOST_ITERATIONS, whole=True)
# Seconds since the epoch, up to a year that calendars still know.
_TIME = within(0, 1e11)
_AMOUNT = within(0, 1_000_000)
_AMOUNTS = {"cpus": _AMOUNT, "gpus": _AMOUNT, "memory_gb": _AMOUNT, "custom": mapped(_AMOUNT)}
_LABELS = mapped(anything)

_NODE = record({"name": text, "id": text, "labels": _LABELS, "store_gb": _AMOUNT, **_AMOUNTS})
_GROUPS = ("search", "scheduler", "guards", "selection", "budget", "cluster")
_CONFIG = record(
    {
        **{name: mapped(anything) for name in _GROUPS},
        "search": record({"objectives": mapped(text)}),
        "scheduler": record({"kind": text, "grace": _COUNT}),
        "base": either(text, mapped(anything)),
    }
)
SWEEP = record(
    {
        "name": text,
        "created": _TIME,
        "command": listed(text),
        "versions": mapped(text),
        "cluster": record({"nodes": listed(_NODE)}),
        "config": _CONFIG,
        "objective": record({"metric": text, "direction": text}),
        "objectives": mapped(text),
        "constraints": either(text, listed(text)),
        "trials": within(0, MOST_TRIALS, whole=True),
        "passed_over": _COUNT,
        "rehearsed": flag,
    }
)
_PARAMETER = record({"type": text, "low": number, "high": number, "values": listed(setting)})
SPACE = record({"parameters": either(mapped(_PARAMETER), listed(_PARAMETER))})
PARAMS = mapped(setting)
LEDGER = record(
    {
        "time": _TIME,
        "trial": folder_name,
        "number": within(0, 2**63 - 1, whole=True),
        "state": text,
        "outcome": text,
        "reason": text,
        "purpose": text,
        "of": text,
        "parent_id": text,
        "fork_iteration": _COUNT,
        "iteration": _COUNT,
        "value": number,
        "durations": mapped(number),
    }
)
EVENT = record({"time": _TIME, "event": text}, needed=("time", "event"))
METRICS = record({"iteration": _COUNT, "timestamp": _TIME}, needed=("iteration",))
_BUNDLE = record(
    {"index": _INTEGER, "owner": text, "node": text, "labels": _LABELS, **_AMOUNTS},
    needed=("index",),
)
_WORKER = record(
    {
        "name": text,
        "roles": either(text, listed(text)),
        "index": _INTEGER,
        "bundle": _INTEGER,
        "share": record(_AMOUNTS),
        "gpus": listed(anything),
    },
    needed=("name", "bundle"),
)
PLACEMENT = record(
    {
        "layout": text,
        "strategy": text,
        "bundles": listed(_BUNDLE),
        "workers": listed(_WORKER),
        "services": mapped(text),
    }
)
_MEASURED = ("before", "after", "gain", "stderr", "standard_errors", "kl_response", "prompts")
JUDGED = record({"trial": text, "judgement": record(dict.fromkeys(_MEASURED, number))})
CHOSEN = record({"trial": text, "objective": text, "objectives": mapped(number)})
