"""Fixtures of all tests. One Ray cluster serves the whole run; nothing reaches the network."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HELPERS = ROOT / "tests" / "helpers"

os.environ.update(
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    RAY_USAGE_STATS_ENABLED="0",
    MPLBACKEND="Agg",
)
# Worker processes import reward functions and programs of the tests by name.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])]
)
sys.path.insert(0, str(HELPERS))


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Address of a Ray cluster of two logical nodes with 4 GPUs each; nobody is connected to it."""
    from ray.cluster_utils import Cluster

    node = {
        "num_cpus": 16,
        "num_gpus": 4,
        "memory": 256 * 10**9,
        "object_store_memory": 150 * 10**6,
    }
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - Ray spells it so
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    yield cluster.address
    cluster.shutdown()


@pytest.fixture(scope="session")
def builtin_task() -> Path:
    """Folder of the built-in task, from the user's cache."""
    from rlhf_core.tasks.builtin import ensure_builtin

    return ensure_builtin("reviews")
