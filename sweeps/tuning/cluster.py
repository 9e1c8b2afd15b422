"""The Ray cluster a sweep runs on: of its own (real or rehearsed), or one that is running already."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from rlhf_core.errors import ClusterError, ConfigError, RlhfError
from rlhf_core.runtime.placement import GB, Node
from sweeps.config import ClusterConfig, RehearseConfig

STORE_BYTES = 300 * 10**6
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
            Node(f"node {i}", shape.cpus, shape.gpus, shape.memory_gb) for i in range(shape.nodes)
        ]
    if config.address is not None:
        return None
    cores = float(os.cpu_count() or 1)
    return [Node("this machine", cores, float(_gpus()), psutil.virtual_memory().total * 0.7 / GB)]


def _gpus() -> int:
    """NVIDIA devices of this machine, counted without torch."""
    return len([p for p in Path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()])


@contextlib.contextmanager
def running(config: ClusterConfig) -> Iterator[list[Node]]:
    """Starts or joins Ray; yields its nodes; leaves nothing behind that it started.

    Raises:
        ConfigError: No cluster answers at ``address``.
        ClusterError: Ray does not start, in one line.
    """
    _environment()
    with contextlib.ExitStack() as stack:
        try:
            nodes = _start(config, stack)
        except RlhfError:
            raise
        except Exception as error:
            raise ClusterError(_why(error)) from error
        # Logical nodes all bear this machine's name.
        yield nodes if config.rehearse is None else _numbered(nodes)


def _start(config: ClusterConfig, stack: contextlib.ExitStack) -> list[Node]:
    """Starts or joins Ray; ``stack`` then holds what ends it, in the right order."""
    cluster: Cluster | None = None
    if config.rehearse is not None and config.rehearse.nodes > 1:
        cluster = _rehearsed(config.rehearse)
        stack.callback(cluster.shutdown)
    stack.callback(ray.shutdown)
    if cluster is not None:
        ray.init(address=cluster.address, **_options())
    elif config.address is not None:
        _join(config.address)
    else:
        _own(config)
    return live_nodes()


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


def _own(config: ClusterConfig) -> None:
    sizes: dict[str, Any] = {}
    if config.rehearse is not None:
        shape = config.rehearse
        sizes = {
            "num_cpus": shape.cpus,
            "num_gpus": shape.gpus,
            "_memory": int(shape.memory_gb * GB),
        }
    # Without "local" Ray joins whatever cluster of the machine it finds first.
    ray.init(address="local", object_store_memory=STORE_BYTES, **sizes, **_options())


def _numbered(nodes: list[Node]) -> list[Node]:
    return [replace(node, name=f"node {i}") for i, node in enumerate(nodes)]


def _rehearsed(shape: RehearseConfig) -> Cluster:
    args = {
        "num_cpus": shape.cpus,
        "num_gpus": shape.gpus,
        "memory": int(shape.memory_gb * GB),
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args=args)
    try:
        for _ in range(shape.nodes - 1):
            cluster.add_node(**{k: v for k, v in args.items() if k != "include_dashboard"})
        cluster.wait_for_nodes()
    except BaseException:
        cluster.shutdown()
        raise
    return cluster


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


def live_nodes() -> list[Node]:
    """What the live nodes of the connected cluster offer in total."""
    nodes: list[Node] = []
    for node in ray.nodes():
        if node["Alive"]:
            have = node["Resources"]
            nodes.append(
                LiveNode(
                    node["NodeManagerHostname"] + ":" + node["NodeID"][:6],
                    have.get("CPU", 0.0),
                    have.get("GPU", 0.0),
                    have.get("memory", 0.0) / GB,
                    node["NodeID"],
                )
            )
    return nodes
