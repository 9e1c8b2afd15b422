"""Short names and numbers for tables and plots."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rlhf_core.errors import nearest
from rlhf_core.metrics import entry

DASH = "-"


def shorten(keys: Iterable[str]) -> dict[str, str]:
    """The last parts of each dotted key that tell it from the others and say what it is.

    A last part of one word (``coef``, ``interval``) says too little without its group.

    Example:
        >>> shorten(["ppo.kl.coef", "optim.policy.lr", "ppo.clip_range_low"])
        {'ppo.kl.coef': 'kl.coef', 'optim.policy.lr': 'policy.lr', 'ppo.clip_range_low': 'clip_range_low'}
    """
    parts = {key: key.split(".") for key in keys}
    short = {}
    for key, own in parts.items():
        others = [other for name, other in parts.items() if name != key]
        length = 1 if "_" in own[-1] else min(2, len(own))
        while length < len(own) and any(own[-length:] == other[-length:] for other in others):
            length += 1
        short[key] = ".".join(own[-length:])
    return short


def axis_label(metric: str) -> str:
    """The metric with its unit from the catalogue; a name it does not know stands for itself."""
    known = entry(metric)
    return known.label if known else metric


def no_such(what: str, name: str, known: Iterable[str]) -> str:
    """One line about a metric or parameter that a sweep does not have: near misses, else all there are."""
    offered = list(known)
    hint = nearest(name, offered) or f"; there are {', '.join(offered) or 'none'}"
    return f"no {what} {name!r} in this sweep{hint}"


def number(value: object, digits: int = 3) -> str:
    """A value for a table: ``digits`` significant ones, a dash where there is none."""
    if value is None or value != value:
        return DASH
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return _float(value, digits)
    return str(value)


def _float(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-3 or size >= 1e6:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        tidy = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{tidy}e{int(exponent)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that matter: ``42 s``, ``3 min 5 s``, ``2 h 10 min``."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, part in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"
