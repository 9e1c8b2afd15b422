"""Nodes for bundles: exact, in Ray's ten-thousandths, labels and strategies included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlhf_core.runtime.placement.plan import AFFINITY_LABELS, Bundle, Label, PlacementPlan, matches

GIVE_UP = 20_000
ENOUGH = 1e9
FIXED = {"CPUs": "cpus", "GPUs": "gpus", "GB memory": "memory_gb"}
# Nodes of a declared type bear this label, whose value is the type's name.
TYPE_LABEL = "ray.io/node-group"
Room = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """What a node offers, in total or at the moment.

    Attributes:
        name: For words.
        cpus, gpus: Amounts as Ray counts them.
        memory_gb: Memory in GB (10^9 bytes).
        labels: As Ray knows them.
        custom: Further resources.
        store_gb: Size of its object store in GB; 0: not known.
    """

    name: str
    cpus: float
    gpus: float
    memory_gb: float
    labels: Mapping[str, str] = field(default_factory=dict)
    custom: Mapping[str, float] = field(default_factory=dict)
    store_gb: float = 0.0

    def amounts(self) -> dict[str, float]:
        """As ``Bundle.amounts``."""
        fixed = {"CPUs": self.cpus, "GPUs": self.gpus, "GB memory": self.memory_gb}
        return {**fixed, **self.custom}

    def without(self, bundle: Bundle) -> Node:
        """What is left beside ``bundle``."""
        custom = dict(self.custom)
        for name, amount in bundle.custom:
            custom[name] = round(custom.get(name, 0.0) - amount, 4)
        return replace(
            self,
            cpus=round(self.cpus - bundle.cpus, 4),
            gpus=round(self.gpus - bundle.gpus, 4),
            memory_gb=round(self.memory_gb - bundle.memory_gb, 4),
            custom=custom,
        )


@dataclass(frozen=True)
class NodeType:
    """Nodes that an autoscaler can add: ``max`` like ``node``, those that live already among them."""

    node: Node
    max: int


def with_node_types(
    nodes: Sequence[Node], types: Sequence[NodeType], at_most: int = 64
) -> list[Node]:
    """The live nodes and those that could still come, at most ``at_most`` of each type."""
    found = list(nodes)
    for kind in types:
        name = kind.node.name
        alive = sum(node.labels.get(TYPE_LABEL) == name for node in nodes)
        for number in range(min(at_most, max(0, kind.max - alive))):
            labels = {TYPE_LABEL: name, **kind.node.labels}
            found.append(replace(kind.node, name=f"{name} (new {number})", labels=labels))
    return found


@dataclass(frozen=True)
class Found:
    """Outcome of a search: a node for every bundle or None, and whether None is certain."""

    place: tuple[int, ...] | None
    sure: bool = True


def assign(plan: PlacementPlan, nodes: Sequence[Node]) -> list[int] | None:
    """A node for every bundle, or None if none was found.

    Args:
        plan: The trial.
        nodes: What each node has free.
    """
    found = search(plan, nodes)
    return None if found.place is None else list(found.place)


def search(plan: PlacementPlan, nodes: Sequence[Node]) -> Found:
    """As ``assign``, and tells whether there certainly is none."""
    label = AFFINITY_LABELS.get(plan.affinity)
    if label is None:
        return _search(plan, nodes, range(len(nodes)))
    sure = True
    for value in sorted({node.labels[label] for node in nodes if label in node.labels}):
        found = _search(
            plan, nodes, [i for i, n in enumerate(nodes) if n.labels.get(label) == value]
        )
        if found.place is not None:
            return found
        sure = sure and found.sure
    return Found(None, sure)


def _search(plan: PlacementPlan, nodes: Sequence[Node], among: Sequence[int]) -> Found:
    """The search among the nodes with the given indices."""
    names = sorted({name for bundle in plan.bundles for name, _ in bundle.custom})
    sizes = [_room(bundle.amounts(), names) for bundle in plan.bundles]
    rooms = [_room(nodes[i].amounts(), names) for i in among]
    suits = _suits(plan.bundles, [nodes[i] for i in among])
    if plan.strategy == "STRICT_PACK":
        found = Found(_one_node(sizes, rooms, suits))
    elif plan.strategy == "STRICT_SPREAD":
        found = Found(_apart(sizes, rooms, suits))
    else:
        found = _Packing(sizes, rooms, suits).run()
    if found.place is None:
        return found
    return Found(tuple(among[i] for i in found.place))


def _room(amounts: Mapping[str, float], custom: Sequence[str]) -> Room:
    """Amounts as whole ten-thousandths: fixed ones first."""
    keys = ("CPUs", "GPUs", "GB memory", *custom)
    return tuple(round(amounts.get(key, 0.0) * 10_000) for key in keys)


def _suits(bundles: Sequence[Bundle], nodes: Sequence[Node]) -> list[tuple[bool, ...]]:
    """Of each bundle: which nodes bear its labels."""
    known: dict[tuple[Label, ...], tuple[bool, ...]] = {}
    for bundle in bundles:
        if bundle.labels not in known:
            known[bundle.labels] = tuple(matches(bundle.labels, node.labels) for node in nodes)
    return [known[bundle.labels] for bundle in bundles]


def _fits(need: Room, free: Room) -> bool:
    return all(n <= f for n, f in zip(need, free, strict=True))


def _one_node(
    sizes: Sequence[Room], rooms: Sequence[Room], suits: Sequence[tuple[bool, ...]]
) -> tuple[int, ...] | None:
    need = tuple(sum(amounts) for amounts in zip(*sizes, strict=True))
    for node, room in enumerate(rooms):
        if _fits(need, room) and all(allowed[node] for allowed in suits):
            return (node,) * len(sizes)
    return None


def _apart(
    sizes: Sequence[Room], rooms: Sequence[Room], suits: Sequence[tuple[bool, ...]]
) -> tuple[int, ...] | None:
    """A node of its own for every bundle: a matching by augmenting paths."""
    fitting = [
        [n for n, room in enumerate(rooms) if allowed[n] and _fits(size, room)]
        for size, allowed in zip(sizes, suits, strict=True)
    ]
    if len(sizes) > len(rooms):
        return None
    holder: dict[int, int] = {}

    def settle(bundle: int, asked: set[int]) -> bool:
        for node in fitting[bundle]:
            if node not in asked:
                asked.add(node)
                if node not in holder or settle(holder[node], asked):
                    holder[node] = bundle
                    return True
        return False

    if not all(settle(bundle, set()) for bundle in range(len(sizes))):
        return None
    place = {bundle: node for node, bundle in holder.items()}
    return tuple(place[bundle] for bundle in range(len(sizes)))


class _Packing:
    """Depth-first over bundles, largest first; of equal nodes one is tried, and no dead end twice.

    Not recursive: a trial may have more bundles than Python has frames. Gives up after ``GIVE_UP`` dead ends.
    """

    def __init__(
        self, sizes: Sequence[Room], rooms: Sequence[Room], suits: Sequence[tuple[bool, ...]]
    ) -> None:
        self.order = sorted(range(len(sizes)), key=lambda i: _weight(sizes[i]), reverse=True)
        self.sizes, self.suits = sizes, suits
        self.rooms = list(rooms)
        kinds = sorted(set(suits))
        # Nodes that every bundle may or may not use alike are equal where their rooms are.
        self.kinds = [tuple(kind[n] for kind in kinds) for n in range(len(rooms))]
        self.used = [0] * len(rooms)
        self.place = [-1] * len(sizes)
        self.dead: set[tuple[int, tuple[tuple[tuple[bool, ...], Room], ...]]] = set()

    def run(self) -> Found:
        need = [sum(amounts) for amounts in zip(*self.sizes, strict=True)]
        have = [sum(amounts) for amounts in zip(*self.rooms, strict=True)] or [0] * len(need)
        if any(n > h for n, h in zip(need, have, strict=True)) or self._too_many():
            return Found(None)
        stack = [self._nodes(0)]
        while len(stack) <= len(self.order):
            depth = len(stack) - 1
            self._leave(depth)
            node = next(stack[-1], None) if len(self.dead) <= GIVE_UP else None
            if node is not None:
                self._enter(depth, node)
                stack.append(self._nodes(depth + 1))
                continue
            self.dead.add(self._state(depth))
            stack.pop()
            if not stack:
                return Found(None, sure=len(self.dead) <= GIVE_UP)
        return Found(tuple(self.place))

    def _too_many(self) -> bool:
        """Whether some bundle, and all that need as much or more, are more than the nodes hold of it alone."""
        bundles = list(zip(self.sizes, self.suits, strict=True))
        for size, allowed in set(bundles):
            larger = sum(
                _fits(size, other) and all(a or not b for a, b in zip(allowed, suits, strict=True))
                for other, suits in bundles
            )
            held = sum(
                min((r // s for r, s in zip(room, size, strict=True) if s), default=larger)
                for room, suits in zip(self.rooms, allowed, strict=True)
                if suits
            )
            if larger > held:
                return True
        return False

    def _nodes(self, depth: int) -> Iterator[int]:
        """Nodes to try for the bundle at ``depth``, those in use first."""
        if depth == len(self.order) or self._state(depth) in self.dead:
            return
        bundle = self.order[depth]
        tried: set[tuple[tuple[bool, ...], Room]] = set()
        for node in sorted(range(len(self.rooms)), key=lambda n: (not self.used[n], n)):
            kind = (self.kinds[node], self.rooms[node])
            if kind in tried or not self.suits[bundle][node]:
                continue
            tried.add(kind)
            if _fits(self.sizes[bundle], self.rooms[node]):
                yield node

    def _state(self, depth: int) -> tuple[int, tuple[tuple[tuple[bool, ...], Room], ...]]:
        # What is left does not depend on which of several equal nodes was filled how.
        return depth, tuple(sorted(zip(self.kinds, self.rooms, strict=True)))

    def _enter(self, depth: int, node: int) -> None:
        self.place[self.order[depth]] = node
        self._move(depth, node, -1)

    def _leave(self, depth: int) -> None:
        bundle = self.order[depth]
        node, self.place[bundle] = self.place[bundle], -1
        if node >= 0:
            self._move(depth, node, 1)

    def _move(self, depth: int, node: int, sign: int) -> None:
        size = self.sizes[self.order[depth]]
        pairs = zip(self.rooms[node], size, strict=True)
        self.rooms[node] = tuple(room + sign * amount for room, amount in pairs)
        self.used[node] -= sign


def _weight(size: Room) -> Room:
    """GPUs before memory before CPUs: the scarce first."""
    cpus, gpus, memory, *custom = size
    return (gpus, *custom, memory, cpus)


def trials_at_once(plan: PlacementPlan, nodes: Sequence[Node], at_most: int = 64) -> int:
    """How many equal trials the nodes hold at the same time, placed one after the other."""
    return len(placed_together(plan, nodes, at_most))


def placed_together(
    plan: PlacementPlan, nodes: Sequence[Node], at_most: int = 64
) -> list[list[int]]:
    """The node of every bundle, of each of the equal trials that the nodes hold at the same time."""
    free, places = list(nodes), []
    while len(places) < at_most:
        place = assign(plan, free)
        if place is None:
            break
        places.append(place)
        for bundle, node in zip(plan.bundles, place, strict=True):
            free[node] = free[node].without(bundle)
    return places


def scarce(plan: PlacementPlan, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Units that run out when the nodes hold as many equal trials as they can; none where a rule is in the way.

    They are those of which more, of each alone or else of all together, would let another trial in.
    """
    free = _after(plan, nodes)
    if assign(plan, free) is not None:
        # More fit than are looked at.
        return ()
    units = [unit for unit in _totals(plan) if _totals(plan)[unit] > 0]
    alone = tuple(u for u in units if assign(plan, _boundless(free, [u])) is not None)
    if alone or assign(plan, _boundless(free, units)) is None:
        return alone
    return tuple(
        u for u in units if assign(plan, _boundless(free, [v for v in units if v != u])) is None
    )


def _after(plan: PlacementPlan, nodes: Sequence[Node]) -> list[Node]:
    """What as many equal trials as fit leave of the nodes."""
    free = list(nodes)
    for place in placed_together(plan, nodes):
        for bundle, node in zip(plan.bundles, place, strict=True):
            free[node] = free[node].without(bundle)
    return free


def _totals(plan: PlacementPlan) -> dict[str, float]:
    """The amounts of all bundles together, by unit."""
    sums: dict[str, float] = {}
    for bundle in plan.bundles:
        for unit, amount in bundle.amounts().items():
            sums[unit] = sums.get(unit, 0.0) + amount
    return sums


def _boundless(nodes: Sequence[Node], units: Sequence[str]) -> list[Node]:
    """The nodes with more of the units than any trial needs."""
    fixed = {FIXED[unit]: ENOUGH for unit in units if unit in FIXED}
    custom = {unit: ENOUGH for unit in units if unit not in FIXED}
    return [replace(node, **fixed, custom={**node.custom, **custom}) for node in nodes]


def stranded_gpus(plan: PlacementPlan, nodes: Sequence[Node]) -> float:
    """GPUs that stay unused when the nodes hold as many equal trials as they can."""
    need, have = plan.total("gpus"), sum(n.gpus for n in nodes)
    if need == 0:
        return have
    return max(0.0, have - trials_at_once(plan, nodes, int(have / need) + 1) * need)
