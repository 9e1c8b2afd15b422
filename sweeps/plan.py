"""What a sweep would do: bundles of a trial, where they fit, how many run at once, what it costs. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.runtime.object_store import StoreNeed
from rlhf_core.runtime.placement import (
    GB,
    Node,
    PlacementPlan,
    assign,
    scarce,
    shortfall,
    stranded_gpus,
    trials_at_once,
)
from sweeps.load import Loaded
from sweeps.services import asked_at_corners, left, refusal


@dataclass(frozen=True)
class Shape:
    """One placement that trials of the sweep can ask for.

    Attributes:
        params: Parameters that give it (those that move it).
        plan: Its bundles.
        place: The node of each bundle where such a trial comes first, or None where it fits nowhere.
        at_once: Trials of this shape that the nodes hold together.
        stranded: GPUs left over then.
        scarce: What runs out then, in words; empty where it is a rule.
        shortfall: Why it fits nowhere, or None.
    """

    params: dict[str, object]
    plan: PlacementPlan
    place: tuple[int, ...] | None
    at_once: int
    stranded: float
    scarce: tuple[str, ...]
    shortfall: str | None

    @property
    def gpus(self) -> float:
        """GPUs of such a trial."""
        return sum(bundle.gpus for bundle in self.plan.bundles)


@dataclass(frozen=True)
class ServiceShape:
    """A service that trials of the sweep ask for; fields as in ``Shape``."""

    role: str
    plan: PlacementPlan
    place: tuple[int, ...] | None
    shortfall: str | None


@dataclass(frozen=True)
class SweepPlan:
    """The sweep in numbers.

    Attributes:
        shapes: Every placement found at the corners of the space.
        max_concurrent: Trials that will run at the same time; 0 where none fits.
        limit: Why no more of them, in words.
        trials: Trials asked for.
        iterations: Budget of a trial, or None where the program has none.
        nodes: What was planned against, services included.
        services: What serves the roles that trials share.
        store: What a trial keeps in the object store; None: not known yet.
        gpus: GPUs that trials may have in use at once; None: no limit.
        must_fit: Whether points that fit nowhere are drawn again, so that one shape that fits is enough.
    """

    shapes: tuple[Shape, ...]
    max_concurrent: int
    limit: str
    trials: int
    iterations: int | None
    nodes: tuple[Node, ...] = ()
    services: tuple[ServiceShape, ...] = ()
    store: StoreNeed | None = None
    gpus: float | None = None
    must_fit: bool = False

    @property
    def store_gb(self) -> float:
        """Object store that a node needs where all trials that run at once lie on it, in GB."""
        return 0.0 if self.store is None else self.max_concurrent * self.store.total / GB

    @property
    def problems(self) -> list[str]:
        """Placements that fit nowhere as far as a trial could ask for them, or not into the budget."""
        lacks = [service.shortfall for service in self.services]
        shapes = [shape.shortfall for shape in self.shapes]
        lacks += [] if self.must_fit and None in shapes else shapes
        widest = max((shape.gpus for shape in self.shapes), default=0.0)
        if self.gpus is not None and widest > self.gpus:
            lacks.append(
                f"budget.gpus: a trial takes {widest:g} GPUs, but {self.gpus:g} may be in use at once; raise it"
            )
        return [lack for lack in lacks if lack is not None]


def plan_sweep(loaded: Loaded, nodes: Sequence[Node]) -> SweepPlan:
    """Plans against the given nodes."""
    services, rest = _services(loaded, nodes)
    shapes = tuple(_shapes(loaded, rest))
    at_once, limit = _concurrency(loaded, shapes, sum(len(s.plan.workers) for s in services))
    if any(service.shortfall for service in services):
        at_once, limit = 0, "a shared role fits nowhere"
    return SweepPlan(
        shapes=shapes,
        max_concurrent=at_once,
        limit=limit,
        trials=loaded.config.search.trials,
        iterations=loaded.program.iterations(loaded.base),
        nodes=tuple(nodes),
        services=tuple(services),
        store=loaded.program.store_need(loaded.base, loaded.corners[0]),
        must_fit=loaded.must_fit,
        gpus=loaded.config.budget.gpus,
    )


def unfit(loaded: Loaded, plan: SweepPlan, params: Mapping[str, Any]) -> str | None:
    """Why the nodes of ``plan`` hold no trial with these parameters beside its services, or None."""
    rest = left(plan.nodes, [service.plan for service in plan.services])
    return shortfall(loaded.program.placement(loaded.base, params), rest)


def fit_note(plan: SweepPlan) -> str | None:
    """How many of the placements found are not proposed because they fit nowhere, in a line, or None."""
    lacking = sum(shape.shortfall is not None for shape in plan.shapes)
    if not lacking or plan.problems:
        return None
    return (
        f"placement: {lacking} of the {len(plan.shapes)} placements found fit nowhere; rule fits_cluster keeps "
        "trials with them from being proposed"
    )


def spill_note(plan: SweepPlan) -> str | None:
    """Which node's object store is too small for the trials, in a line, or None."""
    known = [node for node in plan.nodes if node.store_gb]
    small = min(known, key=lambda node: node.store_gb, default=None)
    need = plan.store
    if need is None or small is None or plan.store_gb <= small.store_gb:
        return None
    return (
        f"object store: {small.name} has {small.store_gb:.2g} GB, but {plan.max_concurrent} trials at once can "
        f"need {plan.store_gb:.2g} GB there ({need.versions} weight versions of {need.weights / GB:.2g} GB and "
        f"batches of {(need.batch + need.ahead) / GB:.2g} GB each, with a margin): older weights would spill to "
        "disk; start Ray with a larger --object-store-memory, or lower search.max_concurrent"
    )


def _services(loaded: Loaded, nodes: Sequence[Node]) -> tuple[list[ServiceShape], list[Node]]:
    """The services, which come first, and what they leave of the nodes."""
    found, rest = [], list(nodes)
    for shared in asked_at_corners(loaded):
        lack = refusal(shared, rest, None)
        place = None if lack else assign(shared.plan, rest)
        found.append(ServiceShape(shared.role, shared.plan, tuple(place) if place else None, lack))
        rest = left(rest, [shared.plan])
    return found, rest


def _shapes(loaded: Loaded, nodes: Sequence[Node]) -> list[Shape]:
    seen: dict[PlacementPlan, Shape] = {}
    for point in loaded.corners:
        plan = loaded.program.placement(loaded.base, point)
        if plan in seen:
            continue
        params = {k: v for k, v in point.items() if k.startswith("resources.")}
        lack = shortfall(plan, nodes)
        place = None if lack else assign(plan, nodes)
        seen[plan] = Shape(
            params,
            plan,
            tuple(place) if place else None,
            at_once=0 if lack else trials_at_once(plan, nodes),
            stranded=0.0 if lack else stranded_gpus(plan, nodes),
            scarce=() if lack else scarce(plan, nodes),
            shortfall=lack,
        )
    return sorted(seen.values(), key=_order)


def _order(shape: Shape) -> list[tuple[str, bool, float, str]]:
    """Numbers by size, texts after them."""
    return [
        (key, False, float(value), "")
        if isinstance(value, int | float)
        else (key, True, 0.0, str(value))
        for key, value in shape.params.items()
    ]


def runs_out(shape: Shape) -> str:
    """``CPUs run out``, ``CPUs and memory run out``."""
    words = [unit.removeprefix("GB ") for unit in shape.scarce]
    return f"{' and '.join(words)} run{'s' if words == ['memory'] else ''} out"


def _concurrency(loaded: Loaded, shapes: Sequence[Shape], replicas: int) -> tuple[int, str]:
    """How many trials run at once beside the replicas of services, and what sets that number."""
    trials, asked = loaded.config.search.trials, loaded.config.search.max_concurrent
    widest = max(shapes, key=lambda shape: shape.at_once)
    if widest.shortfall is not None:
        return 0, "the nodes hold none"
    scarcity = f", {runs_out(widest)}" if widest.scarce else ""
    limits = [
        (trials, "there are no more"),
        (widest.at_once, f"the nodes hold no more{scarcity}"),
    ]
    gpus, most = loaded.config.budget.gpus, max(shape.gpus for shape in shapes)
    if gpus is not None and most > 0:
        # Whichever of the shapes run together, they stay within it.
        limits.append((int(gpus // most), f"budget.gpus is {gpus:g}, and a trial has {most:g}"))
    if asked is not None:
        limits.append((asked, f"search.max_concurrent is {asked}"))
    elif loaded.config.cluster.rehearse is not None:
        # Logical GPUs share real cores: more processes than cores would only slow each other down.
        cores, each = os.cpu_count() or 1, max(1, loaded.program.processes(loaded.base, {}))
        reason = f"{cores} real cores compute, {each} busy for each trial (search.max_concurrent changes it)"
        limits.append(((cores - replicas) // each, reason))
    count, reason = min(limits, key=lambda limit: limit[0])
    return max(1, count), reason
