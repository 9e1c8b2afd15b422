"""The words of a placement: bundles, workers with their shares, and the plan that holds them.

One placement group per trial: a head bundle for the coordinator, then one bundle range per role group. A
*process is not a role*: a worker names the roles it hosts, and a bundle holds one worker or several, each with
a share of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

GB = 10**9
# Labels that the nodes of a trial agree in, by ``resources.affinity``.
AFFINITY_LABELS = {"gpu_domain": "ray.io/gpu-domain", "zone": "ray.io/availability-zone"}
Label = tuple[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class Share:
    """What a worker is given of its bundle.

    Attributes:
        cpus, gpus: Amounts as Ray counts them; below 1 GPU also the part of the device's memory.
        memory_gb: Memory in GB (10^9 bytes).
        custom: Further resources, ``(name, amount)``.
    """

    cpus: float
    gpus: float
    memory_gb: float
    custom: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Bundle:
    """Resources that lie together on one node.

    Attributes:
        owner: What the bundle is for, in words: ``head``, ``critic 0``, ``learner+rollout 1``.
        cpus, gpus: Amounts as Ray counts them; a GPU amount of at most 1 is on one device.
        memory_gb: Memory in GB (10^9 bytes).
        custom: Further resources, ``(name, amount)``, by name.
        labels: What the node's labels must be, ``(key, value)``, by key; of several values one, and ``!value``
            is any but this.
        asked_by: The option that asks for each label, ``(key, option)``, for words.
    """

    owner: str
    cpus: float
    gpus: float
    memory_gb: float
    custom: tuple[tuple[str, float], ...] = ()
    labels: tuple[Label, ...] = ()
    asked_by: tuple[tuple[str, str], ...] = ()

    def amounts(self) -> dict[str, float]:
        """``{unit in words: amount}``; zero amounts stand there too, custom ones only where asked for."""
        fixed = {"CPUs": self.cpus, "GPUs": self.gpus, "GB memory": self.memory_gb}
        return {**fixed, **dict(self.custom)}


@dataclass(frozen=True)
class WorkerPlace:
    """One process of the trial.

    Attributes:
        name: Role group, or ``trial`` for the process of layout fused.
        roles: The roles it hosts.
        index: Position in its group.
        bundle: Index of its bundle.
        share: What it has of the bundle; None: all of it.
    """

    name: str
    roles: tuple[str, ...]
    index: int
    bundle: int
    share: Share | None = None


@dataclass(frozen=True)
class PlacementPlan:
    """Bundles of one trial and who sits where."""

    layout: str
    strategy: str
    bundles: tuple[Bundle, ...]
    workers: tuple[WorkerPlace, ...]
    affinity: str = "none"

    def group(self, name: str) -> tuple[WorkerPlace, ...]:
        """Workers that host the role ``name``, in order."""
        return tuple(worker for worker in self.workers if name in worker.roles)

    def sits_apart(self, role: str, others: Collection[str]) -> bool:
        """Whether no role but ``others`` has a part of the bundles of ``role``; it may have none itself."""
        own = {worker.bundle for worker in self.group(role)}
        return all(set(w.roles) <= {*others} for w in self.workers if w.bundle in own)

    def share(self, worker: WorkerPlace) -> Share:
        """What ``worker`` is given."""
        bundle = self.bundles[worker.bundle]
        whole = Share(bundle.cpus, bundle.gpus, bundle.memory_gb, bundle.custom)
        return worker.share or whole

    def total(self, what: str) -> float:
        """Sum over bundles of ``cpus``, ``gpus`` or ``memory_gb``."""
        return float(sum(getattr(bundle, what) for bundle in self.bundles))

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form, as written to ``placement.json`` (nodes are added where they are known)."""
        return {
            "layout": self.layout,
            "strategy": self.strategy,
            "affinity": self.affinity,
            "bundles": [_bundle(i, bundle) for i, bundle in enumerate(self.bundles)],
            "workers": [self._worker(worker) for worker in self.workers],
        }

    def _worker(self, worker: WorkerPlace) -> dict[str, Any]:
        share = self.share(worker)
        return {
            **asdict(worker),
            "roles": list(worker.roles),
            "share": {**asdict(share), "custom": dict(share.custom)},
        }


def in_words(amounts: Mapping[str, float], between: str = ", ") -> str:
    """``4 CPUs, 1 GPU, 14.31 GB memory`` of ``{unit: amount}``; zero amounts are left out."""
    return between.join(_amount(value, unit) for unit, value in amounts.items() if value)


def _amount(value: float, unit: str) -> str:
    # To two places, as far as that leaves something.
    number = f"{round(value, 2) or value:.10g}"
    return f"{number} {unit[:-1] if number == '1' and unit in ('CPUs', 'GPUs') else unit}"


def _bundle(index: int, bundle: Bundle) -> dict[str, Any]:
    plain = {"custom": dict(bundle.custom), "labels": _plain(bundle.labels)}
    record = {"index": index, **asdict(bundle), **plain}
    del record["asked_by"]
    return record


def _plain(labels: tuple[Label, ...]) -> dict[str, str | list[str]]:
    return {key: value if isinstance(value, str) else list(value) for key, value in labels}


def matches(labels: tuple[Label, ...], has: Mapping[str, str]) -> bool:
    """Whether a node with the labels ``has`` is one that is asked for."""
    return all(_accepts(value, has.get(key)) for key, value in labels)


def _accepts(value: str | tuple[str, ...], found: str | None) -> bool:
    if isinstance(value, tuple):
        return found in value
    # As Ray does: a node without the label is not the one that is ruled out.
    return found != value[1:] if value.startswith("!") else found == value


def bundle_resources(part: Bundle | Share) -> dict[str, float]:
    """A bundle as Ray counts it; memory in bytes, zero amounts left out."""
    amounts = {"CPU": part.cpus, "GPU": part.gpus, "memory": int(part.memory_gb * GB)}
    return {name: amount for name, amount in (amounts | dict(part.custom)).items() if amount}


def group_request(plan: PlacementPlan) -> dict[str, Any]:
    """Arguments of Ray's ``placement_group`` and of Tune's ``PlacementGroupFactory`` for this plan."""
    request: dict[str, Any] = {
        "bundles": [bundle_resources(bundle) for bundle in plan.bundles],
        "strategy": plan.strategy,
    }
    if any(bundle.labels for bundle in plan.bundles):
        request["bundle_label_selector"] = [selector(bundle.labels) for bundle in plan.bundles]
    label = AFFINITY_LABELS.get(plan.affinity)
    if label is not None:
        # Ray takes the strategy among nodes either alone or beside that of the label.
        request["strategy"] = None
        request["topology_strategy"] = {label: "STRICT_PACK", "ray.io/node-id": plan.strategy}
    return request


def selector(labels: tuple[Label, ...]) -> dict[str, str]:
    """Labels as Ray writes a selector."""
    # Ray takes a space after a comma for part of the value.
    return {
        key: value if isinstance(value, str) else f"in({','.join(value)})" for key, value in labels
    }
