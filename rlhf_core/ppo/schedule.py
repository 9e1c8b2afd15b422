"""Learning-rate schedules as a pure function of the step."""

from __future__ import annotations

import math
from typing import Literal

from rlhf_core.errors import ConfigError, nearest

ScheduleKind = Literal["constant", "linear", "cosine"]

KINDS: tuple[ScheduleKind, ...] = ("constant", "linear", "cosine")


def lr_scale(
    kind: str, step: float, *, horizon: float, warmup: float = 0, min_ratio: float = 0.0
) -> float:
    r"""Factor on the learning rate at ``step``.

    Warm-up: $(s + 1) / (w + 1)$ for $s < w$, so that the first step already learns. Then, with
    $p = (s - w) / (h - w)$ in 0 .. 1: constant 1; linear $1 - (1 - m) p$;
    cosine $m + (1 - m)(1 + \cos \pi p) / 2$. Past the horizon linear and cosine stay at m.

    Args:
        kind: constant, linear or cosine.
        step: s, from 0, in the unit of the horizon: optimiser steps or episodes.
        horizon: h, where the decay ends. It is given, never derived from a budget: trials with
            different budgets share one curve and can be compared.
        warmup: w, below the horizon.
        min_ratio: m, 0 to 1.

    Returns:
        Factor, 0 to 1.

    Raises:
        ConfigError: A rule above is broken; all problems are reported together.
    """
    _check(kind, step, horizon, warmup, min_ratio)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if kind == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / (horizon - warmup))
    remaining = 1 - progress if kind == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return min_ratio + (1 - min_ratio) * remaining


def _check(kind: str, step: float, horizon: float, warmup: float, min_ratio: float) -> None:
    problems = []
    if kind not in KINDS:
        problems.append(
            f"schedule must be one of {list(KINDS)}, got {kind!r}"
            f"{nearest(kind, KINDS) or '; use one of these'}"
        )
    if not step >= 0:
        problems.append(f"step must be at least 0, got {step!r}; count from 0")
    if not 0 <= warmup < horizon:
        problems.append(
            f"0 <= warmup < horizon must hold, got warmup={warmup!r} and horizon={horizon!r}; "
            "lower the warm-up or raise the horizon"
        )
    if not 0 <= min_ratio <= 1:
        problems.append(f"min_ratio must lie in 0 .. 1, got {min_ratio!r}; 0.1 is usual")
    if problems:
        raise ConfigError(problems)
