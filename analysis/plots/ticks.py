"""Ticks that a reader can take in: few, round, and never on top of each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis.names import number

_LONGEST = 24


def log_ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round values within ``[low, high]``, at most ``most`` of them; at least the two bounds.

    Args:
        low: Above 0.
        high: At least ``low``.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    slack = 1 + 1e-9
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{s}e{p}") for p in range(first, last + 1) for s in steps]
        inside = [t for t in ticks if low / slack <= t <= high * slack]
        if len(inside) <= most:
            return inside if len(inside) >= 2 else sorted({low, high})
    keep = np.linspace(0, len(inside) - 1, most).round().astype(int)
    stride = max(1, int(np.diff(keep).min()))
    return inside[::stride] if len(inside[::stride]) <= most else inside[:: stride + 1]


def column_labels(values: Sequence[object]) -> list[str]:
    """Names of columns: without what stands before a slash and, if long, without their middle.

    Names stay distinct; where shortening would make two equal, all keep their length.
    """
    full = [number(value) for value in values]
    bare = _if_distinct([text.rsplit("/", 1)[-1] or text for text in full], full)
    cut = [t if len(t) <= _LONGEST else f"{t[:10]}…{t[-10:]}" for t in bare]
    return _if_distinct(cut, bare)


def _if_distinct(short: list[str], otherwise: list[str]) -> list[str]:
    return short if len(set(short)) == len(short) else otherwise


def wrap(name: str) -> str:
    """A name of more than eight characters in two lines, broken after a separator if any."""
    if len(name) <= 8:
        return name
    breaks = [i + 1 for i, c in enumerate(name[:-1]) if c in "_-/. "]
    if not breaks:
        return name
    cut = min(breaks, key=lambda i: abs(i - len(name) / 2))
    return f"{name[:cut]}\n{name[cut:]}"
