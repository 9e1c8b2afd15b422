"""Roles x resource template -> ``PlacementPlan``, and whether nodes can hold it. Pure; no Ray.

One placement group per trial: a head bundle for the coordinator, then one bundle range per role group. A
*process is not a role*: a worker of the plan names the one to five roles it hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlhf_core.config.trial import ROLES, ResourcesConfig, TrialConfig, WorkerResources

EPS = 1e-9
GIVE_UP = 50_000


@dataclass(frozen=True)
class Bundle:
    """Resources that lie together on one node.

    Attributes:
        owner: What the bundle is for, in words: ``head`` or ``critic 0``.
        cpus, gpus: Amounts as Ray counts them.
        memory_gb: Memory in GB (10^9 bytes).
    """

    owner: str
    cpus: float
    gpus: float
    memory_gb: float

    def amounts(self) -> dict[str, float]:
        return {"CPUs": self.cpus, "GPUs": self.gpus, "GB memory": self.memory_gb}


@dataclass(frozen=True)
class WorkerPlace:
    """One process of the trial.

    Attributes:
        name: Role group, or ``trial`` for the process of layout fused.
        roles: The roles it hosts.
        index: Position in its group.
        bundle: Index of its bundle.
    """

    name: str
    roles: tuple[str, ...]
    index: int
    bundle: int


@dataclass(frozen=True)
class PlacementPlan:
    """Bundles of one trial and who sits where."""

    layout: str
    strategy: str
    bundles: tuple[Bundle, ...]
    workers: tuple[WorkerPlace, ...]

    def group(self, name: str) -> tuple[WorkerPlace, ...]:
        """Workers that host the role ``name``, in order."""
        return tuple(worker for worker in self.workers if name in worker.roles)

    def total(self, what: str) -> float:
        """Sum over bundles of ``cpus``, ``gpus`` or ``memory_gb``."""
        return float(sum(getattr(bundle, what) for bundle in self.bundles))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form, as written to ``placement.json`` (nodes are added where they are known)."""
        return {
            "layout": self.layout,
            "strategy": self.strategy,
            "bundles": [{"index": i, **asdict(b)} for i, b in enumerate(self.bundles)],
            "workers": [{**asdict(w), "roles": list(w.roles)} for w in self.workers],
        }


def plan_trial(config: TrialConfig) -> PlacementPlan:
    """The placement of ``config``: roles that its algorithm does not use are not placed."""
    kl = config.ppo.kl
    return plan_placement(
        config.resources, critic=config.ppo.needs_critic, reference=kl.coef > 0 or kl.measure
    )


def plan_placement(
    resources: ResourcesConfig, *, critic: bool = True, reference: bool = True
) -> PlacementPlan:
    """The placement of one trial.

    Args:
        resources: The trial's resources.
        critic: False for estimators that train no critic; none is placed then.
        reference: False where no KL is measured.
    """
    absent = {"critic": not critic, "reference": not reference}
    roles = [role for role in ROLES if not absent.get(role, False)]
    if resources.layout == "fused":
        bundle = _bundle("fused", resources.roles.fused, resources.cpus_per_gpu)
        worker = WorkerPlace("trial", tuple(roles), 0, 0)
        return PlacementPlan("fused", resources.strategy, (bundle,), (worker,))
    bundles = [Bundle("head", resources.head_cpus, 0.0, 0.0)]
    workers = []
    for role in roles:
        template = getattr(resources.roles, role)
        for index in range(template.workers):
            workers.append(WorkerPlace(role, (role,), index, len(bundles)))
            bundles.append(_bundle(f"{role} {index}", template, resources.cpus_per_gpu))
    return PlacementPlan("split", resources.strategy, tuple(bundles), tuple(workers))


def _bundle(owner: str, template: WorkerResources, cpus_per_gpu: float | None) -> Bundle:
    cpus = template.cpus
    if cpus_per_gpu is not None and template.gpus > 0:
        cpus = cpus_per_gpu * template.gpus
    return Bundle(owner, cpus, template.gpus, template.memory_gb)


@dataclass(frozen=True)
class Node:
    """What a node offers in total."""

    name: str
    cpus: float
    gpus: float
    memory_gb: float


Free = tuple[float, float, float]


def _size(bundle: Bundle) -> Free:
    return (bundle.cpus, bundle.gpus, bundle.memory_gb)


def _fits(need: Free, free: Free) -> bool:
    return all(n <= f + EPS for n, f in zip(need, free, strict=True))


def _minus(free: Free, need: Free) -> Free:
    return (free[0] - need[0], free[1] - need[1], free[2] - need[2])


def assign(plan: PlacementPlan, free: Sequence[Free]) -> list[int] | None:
    """A node for every bundle, or None if there is none.

    Exact for the sizes that occur: depth-first over bundles, largest first; of equal free nodes one is tried,
    and no dead end twice. Gives up (None) after ``GIVE_UP`` dead ends.

    Args:
        plan: The trial.
        free: Free CPUs, GPUs and memory of each node.
    """
    one_node = plan.strategy == "STRICT_PACK"
    apart = plan.strategy == "STRICT_SPREAD"
    order = sorted(range(len(plan.bundles)), key=lambda i: _weight(plan.bundles[i]), reverse=True)
    sizes = [_size(plan.bundles[i]) for i in order]
    need = [sum(amounts) for amounts in zip(*sizes, strict=True)]
    have = [sum(amounts) for amounts in zip(*free, strict=True)]
    if any(n > h + EPS for n, h in zip(need, have, strict=False)):
        return None
    place: list[int] = [-1] * len(plan.bundles)
    dead: set[tuple[int, tuple[tuple[Free, bool], ...]]] = set()

    def descend(depth: int, room: list[Free], used: frozenset[int]) -> bool:
        if depth == len(order):
            return True
        # What is left does not depend on which of several equal nodes was filled how.
        state = (depth, tuple(sorted((room[n], n in used) for n in range(len(room)))))
        if state in dead or len(dead) > GIVE_UP:
            return False
        tried: set[tuple[Free, bool]] = set()
        for node in sorted(range(len(room)), key=lambda n: (n not in used, n)):
            if (one_node and used and node not in used) or (apart and node in used):
                continue
            kind = (room[node], node in used)
            if kind in tried or not _fits(sizes[depth], room[node]):
                continue
            tried.add(kind)
            place[order[depth]] = node
            after = [*room[:node], _minus(room[node], sizes[depth]), *room[node + 1 :]]
            if descend(depth + 1, after, used | {node}):
                return True
        dead.add(state)
        return False

    return place if descend(0, list(free), frozenset()) else None


def _weight(bundle: Bundle) -> tuple[float, float, float]:
    return (bundle.gpus, bundle.memory_gb, bundle.cpus)


def shortfall(plan: PlacementPlan, nodes: Sequence[Node]) -> str | None:
    """Why the empty nodes cannot hold the plan, in one line, or None if they can."""
    if not nodes:
        return "placement: there are no nodes; start Ray or name cluster.rehearse nodes"
    for index, bundle in enumerate(plan.bundles):
        if not any(_fits(_size(bundle), (n.cpus, n.gpus, n.memory_gb)) for n in nodes):
            return _misfit(index, bundle, nodes)
    if assign(plan, [(n.cpus, n.gpus, n.memory_gb) for n in nodes]) is None:
        need = ", ".join(
            f"{plan.total(key):g} {unit}"
            for key, unit in (("cpus", "CPUs"), ("gpus", "GPUs"), ("memory_gb", "GB memory"))
        )
        have = (
            f"{sum(n.cpus for n in nodes):g} CPUs, {sum(n.gpus for n in nodes):g} GPUs, "
            f"{sum(n.memory_gb for n in nodes):g} GB memory"
        )
        return (
            f"placement: {len(plan.bundles)} bundles with {need} do not fit together on "
            f"{len(nodes)} nodes with {have} (strategy {plan.strategy}); use fewer workers or "
            "smaller shares"
        )
    return None


def _misfit(index: int, bundle: Bundle, nodes: Sequence[Node]) -> str:
    def lacks(node: Node) -> dict[str, float]:
        have = {"CPUs": node.cpus, "GPUs": node.gpus, "GB memory": node.memory_gb}
        return {k: v - have[k] for k, v in bundle.amounts().items() if v > have[k] + EPS}

    def distance(node: Node) -> float:
        return sum(v / max(bundle.amounts()[k], EPS) for k, v in lacks(node).items())

    closest = min(nodes, key=distance)
    need = ", ".join(f"{v:g} {k}" for k, v in bundle.amounts().items() if v)
    short = " and ".join(f"{v:g} {k}" for k, v in lacks(closest).items())
    role = bundle.owner.split()[0]
    key = "resources.head_cpus" if role == "head" else f"resources.roles.{role}"
    if "CPUs" in lacks(closest) and bundle.gpus:
        key += " or resources.cpus_per_gpu"
    return (
        f"placement: no node can hold bundle {index} ({bundle.owner}: {need}); the closest, "
        f"{closest.name}, lacks {short}; lower {key}, or add a larger node"
    )


def trials_at_once(plan: PlacementPlan, nodes: Sequence[Node], at_most: int = 64) -> int:
    """How many equal trials the empty nodes hold at the same time, placed one after the other."""
    free: list[Free] = [(n.cpus, n.gpus, n.memory_gb) for n in nodes]
    for count in range(at_most):
        place = assign(plan, free)
        if place is None:
            return count
        for bundle, node in zip(plan.bundles, place, strict=True):
            free[node] = _minus(free[node], _size(bundle))
    return at_most


def stranded_gpus(plan: PlacementPlan, nodes: Sequence[Node]) -> float:
    """GPUs that stay unused when the nodes hold as many equal trials as they can."""
    need, have = plan.total("gpus"), sum(n.gpus for n in nodes)
    if need == 0:
        return have
    return max(0.0, have - trials_at_once(plan, nodes, int(have / need) + 1) * need)
