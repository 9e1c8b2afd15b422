"""Why nodes cannot hold a plan: the bundle, the resource, how much of it lacks, and the closest node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.errors import nearest
from rlhf_core.runtime.placement.fit import Node, search
from rlhf_core.runtime.placement.plan import (
    AFFINITY_LABELS,
    Bundle,
    PlacementPlan,
    in_words,
    matches,
)

EPS = 1e-9


@dataclass(frozen=True)
class Shortfall:
    """What lacks, and what to do about it; one clause each."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"placement: {self.what}; {self.remedy}"


def shortfall(plan: PlacementPlan, nodes: Sequence[Node]) -> str | None:
    """Why the empty nodes cannot hold the plan, in one line, or None if they can."""
    found = find_shortfall(plan, nodes)
    return None if found is None else str(found)


def find_shortfall(plan: PlacementPlan, nodes: Sequence[Node]) -> Shortfall | None:
    """As ``shortfall``, in two parts."""
    if not nodes:
        return Shortfall("there are no nodes", "start Ray or name cluster.rehearse nodes")
    for index, bundle in enumerate(plan.bundles):
        suitable = [node for node in nodes if matches(bundle.labels, node.labels)]
        if not suitable:
            return _no_label(index, bundle, nodes)
        if all(_lacks(bundle, node) for node in suitable):
            return _misfit(index, bundle, suitable)
    label = AFFINITY_LABELS.get(plan.affinity)
    if label is not None and not any(label in node.labels for node in nodes):
        return Shortfall(
            f"resources.affinity {plan.affinity!r} keeps a trial on nodes of one {label}, but no node has "
            "that label",
            "label the nodes, or set resources.affinity to node or none",
        )
    found = search(plan, nodes)
    if found.place is None and found.sure:
        return _together(plan, nodes)
    return _uneven(plan, nodes)


def _lacks(bundle: Bundle, node: Node) -> dict[str, float]:
    """What of the bundle exceeds the node, by unit."""
    has = node.amounts()
    short = {k: round(v - has.get(k, 0.0), 4) for k, v in bundle.amounts().items()}
    return {unit: amount for unit, amount in short.items() if amount > EPS}


def _closest(bundle: Bundle, nodes: Sequence[Node]) -> Node:
    def distance(node: Node) -> float:
        need = bundle.amounts()
        return sum(amount / max(need[k], EPS) for k, amount in _lacks(bundle, node).items())

    return min(nodes, key=distance)


def _named(index: int, bundle: Bundle) -> str:
    where = "".join(f", {key} {_value(value)}" for key, value in bundle.labels)
    return f"bundle {index} ({bundle.owner}: {in_words(bundle.amounts())}{where})"


def _value(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else " or ".join(value)


def _keys(bundle: Bundle, lacks: Mapping[str, float]) -> list[str]:
    """Configuration keys that make the bundle, as far as what lacks follows from them."""
    roles = bundle.owner.split()[0]
    if roles == "head":
        return ["resources.head_cpus"]
    keys = [f"resources.roles.{role}" for role in roles.split("+")]
    return keys + ["resources.cpus_per_gpu"] * ("CPUs" in lacks and bundle.gpus > 0)


def _misfit(index: int, bundle: Bundle, nodes: Sequence[Node]) -> Shortfall:
    closest = _closest(bundle, nodes)
    lacks = _lacks(bundle, closest)
    return Shortfall(
        f"no node can hold {_named(index, bundle)}; the closest, {closest.name}, lacks "
        f"{in_words(lacks, ' and ')}",
        f"lower {' or '.join(_keys(bundle, lacks))}, or add a larger node",
    )


def _no_label(index: int, bundle: Bundle, nodes: Sequence[Node]) -> Shortfall:
    """No node bears all labels: the first that none bears, or the combination."""
    for key, value in bundle.labels:
        if any(matches(((key, value),), node.labels) for node in nodes):
            continue
        known = sorted({node.labels[key] for node in nodes if key in node.labels})
        if not known:
            names = sorted({name for node in nodes for name in node.labels})
            return Shortfall(
                f"no node has the label {key} of {_named(index, bundle)}: nodes have "
                f"{', '.join(names) or 'no labels'}",
                _other_label(bundle, [key], nearest(key, names)),
            )
        asked = value if isinstance(value, str) else value[0]
        return Shortfall(
            f"no node has the label {key} {_value(value)} of {_named(index, bundle)}: nodes have "
            f"{', '.join(known)}",
            _other_label(bundle, [key], nearest(asked, known)),
        )
    wanted = " and ".join(f"{key} {_value(value)}" for key, value in bundle.labels)
    return Shortfall(
        f"no node has {wanted} together, as {_named(index, bundle)} asks",
        _other_label(bundle, [key for key, _ in bundle.labels]),
    )


def _other_label(bundle: Bundle, keys: Sequence[str], meant: str = "") -> str:
    """The remedy: the options that ask for these labels; ``meant`` as ``nearest`` words it."""
    options = dict.fromkeys(option for key, option in bundle.asked_by if key in keys)
    hint = f" ({meant.removeprefix('; ')})" if meant else ""
    return f"change {' and '.join(options) or 'its labels'}{hint}, or add such a node"


def _together(plan: PlacementPlan, nodes: Sequence[Node]) -> Shortfall:
    """Each bundle fits somewhere, but not all of them at the same time."""
    need = in_words({k: plan.total(v) for k, v in _TOTALS.items()})
    have = in_words({k: sum(getattr(n, v) for n in nodes) for k, v in _TOTALS.items()})
    left_over, keys = _left_over(plan, nodes)
    what = (
        f"{_count(plan.bundles, 'bundle')} with {need} do not fit together on {_count(nodes, 'node')} with "
        f"{have} (strategy {plan.strategy}{_bound(plan)})"
    )
    remedy = "use fewer workers or smaller shares"
    if keys:
        remedy += f", or lower {' or '.join(keys)}"
    if plan.strategy.startswith("STRICT"):
        remedy += f", or resources.strategy {plan.strategy.removeprefix('STRICT_')}"
    if plan.affinity in AFFINITY_LABELS:
        remedy += ", or another resources.affinity"
    return Shortfall(f"{what}; {left_over}", remedy)


def _count(things: Sequence[object], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


_TOTALS = {"CPUs": "cpus", "GPUs": "gpus", "GB memory": "memory_gb"}


def _bound(plan: PlacementPlan) -> str:
    return "" if plan.affinity == "none" else f", affinity {plan.affinity}"


def _left_over(plan: PlacementPlan, nodes: Sequence[Node]) -> tuple[str, list[str]]:
    """The node that comes closest to the whole, or the first bundle that finds no room beside the others.

    With it the options that what lacks follows from, beside the numbers of workers.
    """
    if plan.strategy == "STRICT_PACK":
        custom: dict[str, float] = {}
        for bundle in plan.bundles:
            for name, amount in bundle.custom:
                custom[name] = custom.get(name, 0.0) + amount
        sums = (plan.total("cpus"), plan.total("gpus"), plan.total("memory_gb"))
        whole = Bundle("all", *sums, custom=tuple(custom.items()))
        closest = _closest(whole, nodes)
        short = _lacks(whole, closest)
        lacks = in_words(short, " and ") or "a label"
        return f"the closest, {closest.name}, lacks {lacks}", _cpu_keys(plan, short)
    free, spread = list(nodes), plan.strategy == "STRICT_SPREAD"
    order = sorted(range(len(plan.bundles)), key=lambda i: _size(plan.bundles[i]), reverse=True)
    for index in order:
        bundle = plan.bundles[index]
        room = [node for node in free if matches(bundle.labels, node.labels)]
        target = next((node for node in room if not _lacks(bundle, node)), None)
        if target is None:
            if not room:
                return f"no node is left for {_named(index, bundle)}", []
            closest = _closest(bundle, room)
            short = _lacks(bundle, closest)
            what = (
                f"beside the others {_named(index, bundle)} lacks {in_words(short, ' and ')} on the closest, "
                f"{closest.name}"
            )
            return what, _cpu_keys(plan, short)
        number = next(i for i, node in enumerate(free) if node is target)
        free[number : number + 1] = [] if spread else [target.without(bundle)]
    return "each finds room alone, but not all of them under these rules", []


def _cpu_keys(plan: PlacementPlan, lacks: Mapping[str, float]) -> list[str]:
    """Options that CPUs of several bundles follow from, where CPUs lack."""
    if "CPUs" not in lacks:
        return []
    ratio = any(bundle.gpus for bundle in plan.bundles)
    head = any(bundle.owner == "head" for bundle in plan.bundles)
    return ["resources.cpus_per_gpu"] * ratio + ["resources.head_cpus"] * head


def _size(bundle: Bundle) -> tuple[float, float, float]:
    return (bundle.gpus, bundle.memory_gb, bundle.cpus)


def _uneven(plan: PlacementPlan, nodes: Sequence[Node]) -> Shortfall | None:
    """GPU shares that Ray counts by node but cannot give by device: such a group would wait for ever.

    Ray takes a node by the sum of its free GPUs and only then looks for devices, without another try elsewhere.
    The sum is right where the shares divide a GPU, and each other, evenly.
    """
    parts = {
        bundle.gpus: (i, bundle) for i, bundle in enumerate(plan.bundles) if 0 < bundle.gpus < 1
    }
    most = max((int(node.gpus) for node in nodes), default=0)
    for part, (index, bundle) in sorted(parts.items()):
        a_gpu = int(1 / part + EPS)
        if int(most / part + EPS) > most * a_gpu:
            return Shortfall(
                f"{_named(index, bundle)}: Ray counts {int(most / part + EPS)} shares of {part:g} on "
                f"{in_words({'GPUs': most})}, but only {most * a_gpu} lie on one device each, so that the trial "
                "could wait for ever",
                f"use a share that divides a GPU evenly, such as {1 / a_gpu:.4g}, or whole GPUs",
            )
    for small, large in zip(sorted(parts), sorted(parts)[1:], strict=False):
        if abs(large / small - round(large / small)) > 1e-2:
            index, bundle = parts[large]
            return Shortfall(
                f"{_named(index, bundle)} and shares of {small:g} GPUs leave gaps that Ray counts as free, so "
                "that the trial could wait for ever",
                f"use shares that divide each other evenly, such as {small:g} and {small * 2:g}",
            )
    return None
