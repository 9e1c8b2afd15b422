"""What a sweep would do: bundles of a trial, where they fit, how many run at once, what it costs. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core.runtime.placement import (
    Node,
    PlacementPlan,
    shortfall,
    stranded_gpus,
    trials_at_once,
)
from sweeps.load import Loaded, corner_points


@dataclass(frozen=True)
class Shape:
    """One placement that trials of the sweep can ask for.

    Attributes:
        params: Parameters that give it (those that move it).
        plan: Its bundles.
        at_once: Trials of this shape that the nodes hold together.
        stranded: GPUs left over then.
        shortfall: Why it fits nowhere, or None.
    """

    params: dict[str, object]
    plan: PlacementPlan
    at_once: int
    stranded: float
    shortfall: str | None


@dataclass(frozen=True)
class SweepPlan:
    """The sweep in numbers.

    Attributes:
        shapes: Every placement found at the corners of the space.
        max_concurrent: Trials that will run at the same time.
        limit: Why no more of them, in words.
        trials: Trials asked for.
        iterations: Budget of a trial, or None where the program has none.
    """

    shapes: tuple[Shape, ...]
    max_concurrent: int
    limit: str
    trials: int
    iterations: int | None

    @property
    def problems(self) -> list[str]:
        """Placements that fit nowhere."""
        return [shape.shortfall for shape in self.shapes if shape.shortfall is not None]


def plan_sweep(loaded: Loaded, nodes: Sequence[Node]) -> SweepPlan:
    """Plans against the given nodes."""
    shapes = tuple(_shapes(loaded, nodes))
    at_once, limit = _concurrency(loaded, shapes)
    return SweepPlan(
        shapes=shapes,
        max_concurrent=at_once,
        limit=limit,
        trials=loaded.config.search.trials,
        iterations=loaded.program.iterations(loaded.base),
    )


def _shapes(loaded: Loaded, nodes: Sequence[Node]) -> list[Shape]:
    seen: dict[PlacementPlan, Shape] = {}
    for point in corner_points(loaded.space) or [{}]:
        plan = loaded.program.placement(loaded.base, point)
        if plan in seen:
            continue
        params = {k: v for k, v in point.items() if k.startswith("resources.")}
        lack = shortfall(plan, nodes)
        at_once = 0 if lack else trials_at_once(plan, nodes)
        seen[plan] = Shape(params, plan, at_once, stranded_gpus(plan, nodes), lack)
    return sorted(seen.values(), key=_order)


def _order(shape: Shape) -> list[tuple[str, bool, float, str]]:
    """Numbers by size, texts after them."""
    return [
        (key, False, float(value), "")
        if isinstance(value, int | float)
        else (key, True, 0.0, str(value))
        for key, value in shape.params.items()
    ]


def _concurrency(loaded: Loaded, shapes: Sequence[Shape]) -> tuple[int, str]:
    """How many trials run at once, and what sets that number."""
    trials, asked = loaded.config.search.trials, loaded.config.search.max_concurrent
    limits = [
        (trials, "there are no more"),
        (max((shape.at_once for shape in shapes), default=1), "the nodes hold no more"),
    ]
    if asked is not None:
        limits.append((asked, f"search.max_concurrent is {asked}"))
    elif loaded.config.cluster.rehearse is not None:
        # Logical GPUs share real cores: more processes than cores would only slow each other down.
        cores, each = os.cpu_count() or 1, max(1, loaded.program.processes(loaded.base, {}))
        reason = f"{cores} real cores compute, {each} busy for each trial (search.max_concurrent changes it)"
        limits.append((cores // each, reason))
    count, reason = min(limits, key=lambda limit: limit[0])
    return max(1, count), reason
