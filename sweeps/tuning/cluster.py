"""The Ray cluster a sweep runs on: of its own (real or rehearsed), or one that is running already."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private.state import available_resources_per_node
from ray.autoscaler.sdk import request_resources
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

from rlhf_core.errors import ClusterError, ConfigError, RlhfError
from rlhf_core.runtime.placement import GB, Node, NodeType, with_node_types
from sweeps.config import ClusterConfig, RehearseConfig
from sweeps.places import ClusterView

# What a Ray of its own gets at least for its object store.
STORE_GB = 0.3
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class LiveNode(Node):
    """A node with the id by which Ray and ``placement.json`` know it."""

    id: str = ""


def expected_nodes(config: ClusterConfig) -> list[Node] | None:
    """What the cluster will offer, without starting it; None for a running one."""
    if config.rehearse is not None:
        shape = config.rehearse
        return [
            Node(
                f"node {i}",
                shape.cpus,
                shape.gpus,
                shape.memory_gb,
                _labels(shape, i),
                shape.custom,
            )
            for i in range(shape.nodes)
        ]
    if config.address is not None:
        return None
    cores = float(os.cpu_count() or 1)
    return [Node("this machine", cores, float(_gpus()), psutil.virtual_memory().total * 0.7 / GB)]


def node_types(config: ClusterConfig) -> list[NodeType]:
    """What an autoscaler was declared to add."""
    return [
        NodeType(Node(t.name, t.cpus, t.gpus, t.memory_gb, t.labels, t.resources), t.max)
        for t in config.node_types
    ]


def _labels(shape: RehearseConfig, number: int) -> dict[str, str]:
    return dict(shape.labels[number % len(shape.labels)]) if shape.labels else {}


def _gpus() -> int:
    """NVIDIA devices of this machine, counted without torch."""
    return len([p for p in Path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()])


@contextlib.contextmanager
def running(config: ClusterConfig, store_gb: float = 0.0) -> Iterator[list[Node]]:
    """Starts or joins Ray; yields its nodes; leaves nothing behind that it started.

    Args:
        config: Which Ray.
        store_gb: Object store that the trials need on each node; a Ray of its own is started with it.

    Raises:
        ConfigError: No cluster answers at ``address``.
        ClusterError: Ray does not start, in one line.
    """
    _environment()
    with contextlib.ExitStack() as stack:
        try:
            nodes = _start(config, store_gb, stack)
        except RlhfError:
            raise
        except Exception as error:
            raise ClusterError(_why(error)) from error
        # Logical nodes all bear this machine's name.
        yield list(nodes) if config.rehearse is None else _numbered(nodes)


def _start(
    config: ClusterConfig, store_gb: float, stack: contextlib.ExitStack
) -> Sequence[LiveNode]:
    """Starts or joins Ray; ``stack`` then holds what ends it, in the right order."""
    cluster, ids = None, []
    count = config.rehearse.nodes if config.rehearse is not None else 1
    store = int(own_store_gb(store_gb, count) * GB)
    if config.rehearse is not None and config.rehearse.nodes > 1:
        cluster, ids = _rehearsed(config.rehearse, store)
        stack.callback(cluster.shutdown)
    stack.callback(ray.shutdown)
    if cluster is not None:
        ray.init(address=cluster.address, **_options())
    elif config.address is not None:
        _join(config.address)
    else:
        _own(config, store)
    # Ray lists nodes in no order; those of a rehearsal keep theirs, and their labels with it.
    return sorted(live_nodes(), key=lambda node: ids.index(node.id) if node.id in ids else 0)


def _why(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return (
        f"Ray must start on this machine, but raised {what}; `rlhf-sweep doctor` tries it alone, "
        "and Ray's own logs are in /tmp/ray/session_latest/logs"
    )


def _options() -> dict[str, Any]:
    paths = [str(ROOT), *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)]
    # Workers import this very checkout, wherever they start.
    env = {"PYTHONPATH": os.pathsep.join([*paths, str(Path.cwd())])}
    return {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
        "runtime_env": {"env_vars": env},
        "namespace": "rlhf-sweeps",
    }


def _own(config: ClusterConfig, store: int) -> None:
    sizes: dict[str, Any] = {}
    if config.rehearse is not None:
        shape = config.rehearse
        sizes = {
            "num_cpus": shape.cpus,
            "num_gpus": shape.gpus,
            "_memory": int(shape.memory_gb * GB),
            "labels": _labels(shape, 0),
            "resources": dict(shape.custom),
        }
    # Without "local" Ray joins whatever cluster of the machine it finds first.
    ray.init(address="local", object_store_memory=store, **sizes, **_options())


def _numbered(nodes: Sequence[LiveNode]) -> list[Node]:
    return [replace(node, name=f"node {i}") for i, node in enumerate(nodes)]


def _rehearsed(shape: RehearseConfig, store: int) -> tuple[Cluster, list[str]]:
    """Starts the logical nodes; returns them and their ids in order."""
    args: dict[str, Any] = {
        "num_cpus": shape.cpus,
        "num_gpus": shape.gpus,
        "memory": int(shape.memory_gb * GB),
        "object_store_memory": store,
        "resources": dict(shape.custom),
    }
    head = {**args, "labels": _labels(shape, 0), "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ids = [cluster.head_node.node_id]
    try:
        ids += [
            cluster.add_node(**args, labels=_labels(shape, number)).node_id
            for number in range(1, shape.nodes)
        ]
        cluster.wait_for_nodes()
    except BaseException:
        cluster.shutdown()
        raise
    return cluster, ids


def _join(address: str) -> None:
    try:
        ray.init(address=address, **_options())
    except ConnectionError as error:
        raise ConfigError(
            f"cluster.address: no Ray cluster answers at {address!r}: {str(error).splitlines()[0]}"
        ) from None


def _environment() -> None:
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    # Tells of every other cluster of the machine.
    logging.getLogger("ray._private.utils").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # The memory monitor would kill by real memory what was placed by claimed memory.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    os.environ.setdefault("PYTHONWARNINGS", "ignore" if not sys.warnoptions else "")


def live_nodes() -> list[LiveNode]:
    """What the live nodes of the connected cluster offer in total."""
    return [_node(node, node["Resources"]) for node in ray.nodes() if node["Alive"]]


def free_nodes() -> list[LiveNode]:
    """What the live nodes have free at the moment; groups that wait for their nodes hold nothing."""
    free = available_resources_per_node()
    return [_node(n, free.get(n["NodeID"], {})) for n in ray.nodes() if n["Alive"]]


def view(types: Sequence[NodeType]) -> ClusterView:
    """The connected cluster now, with the nodes that ``types`` could add."""
    live = live_nodes()
    asked = [
        [dict(group["bundles"][index]) for index in sorted(group["bundles"])]
        for group in placement_group_table().values()
        if group["state"] == "PENDING"
    ]
    return ClusterView([*live], [*free_nodes()], with_node_types(live, types), asked)


def groups() -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Placement groups of the connected cluster.

    Returns:
        Of each that is placed, as in ``placement.json`` but without roles, which Ray does not know; and of each
        that waits, what it asks for.
    """
    placed: dict[str, dict[str, Any]] = {}
    waiting: dict[str, str] = {}
    for key, group in placement_group_table().items():
        name = group["name"] or key[:6]
        bundles = [
            {
                "index": index,
                "owner": ", ".join(_amount(k, has[k]) for k in sorted(has, key=_rank)),
                "node": group["bundles_to_node_id"].get(index),
            }
            for index, has in group["bundles"].items()
        ]
        if group["state"] in ("CREATED", "RESCHEDULING"):
            placed[name] = {"bundles": bundles}
        elif group["state"] == "PENDING":
            asked = "; ".join(bundle["owner"] for bundle in bundles)
            waiting[name] = f"{len(bundles)} bundle{'s' * (len(bundles) > 1)} ({asked})"
    return placed, waiting


def _rank(name: str) -> tuple[bool, int, str]:
    """Orders resources, which Ray tells in any order: CPU, GPU, memory, others by name."""
    known = name in _FIXED
    return not known, _FIXED.index(name) if known else 0, name


def _amount(name: str, value: float) -> str:
    return f"{value / GB:g} GB memory" if name == "memory" else f"{value:g} {name}"


def _node(node: Mapping[str, Any], has: Mapping[str, float]) -> LiveNode:
    custom = {
        name: amount
        for name, amount in has.items()
        if name not in _FIXED and not name.startswith("node:") and "_group_" not in name
    }
    return LiveNode(
        node["NodeManagerHostname"] + ":" + node["NodeID"][:6],
        has.get("CPU", 0.0),
        has.get("GPU", 0.0),
        has.get("memory", 0.0) / GB,
        {k: v for k, v in node.get("Labels", {}).items() if k != "ray.io/node-id"},
        custom,
        node["Resources"].get("object_store_memory", 0.0) / GB,
        node["NodeID"],
    )


_FIXED = ("CPU", "GPU", "memory", "object_store_memory")


def own_store_gb(need_gb: float, count: int = 1) -> float:
    """Object store of each of ``count`` nodes on this machine: what is needed, as far as there is room."""
    room = shutil.disk_usage("/dev/shm").free * 0.9 / GB if Path("/dev/shm").exists() else STORE_GB
    return max(min(STORE_GB, room / count), min(need_gb, room / count))


@contextlib.contextmanager
def prewarmed(requests: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Asks the autoscaler for nodes that hold these placement groups at the same time; takes it back at the end.

    Args:
        requests: Of each trial that is to run at once, as ``group_request`` makes them.
    """
    bundles = [bundle for request in requests for bundle in request["bundles"]]
    selectors = [
        chosen
        for request in requests
        for chosen in request.get("bundle_label_selector", [{}] * len(request["bundles"]))
    ]
    try:
        if bundles:
            request_resources(bundles=bundles, bundle_label_selectors=selectors)
        yield
    finally:
        # The request outlives this process otherwise, and its nodes with it.
        if bundles and ray.is_initialized():
            request_resources(bundles=[])
