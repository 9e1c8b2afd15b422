"""Teardown of a trial of six role processes on two nodes: seconds from its stop until every process is gone and
all its resources are free; ``ratio`` is 2 s over them, at least 1.

    python tests/benchmarks/teardown.py [--quick]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import ray
from common import report, save_models
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group

from rlhf_core.config import TrialConfig, apply
from rlhf_core.runtime.placement import group_request, plan_trial
from rlhf_core.runtime.ray_runtime import RayRuntime
from rlhf_core.trial import PPOTrial

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S, RATIO = 2.0, 1.0


def trial_config(names: dict[str, str]) -> TrialConfig:
    """A short trial in layout split, spread over the nodes, weights by broadcast."""
    return apply(
        TrialConfig(),
        {
            "model.policy": names["policy"],
            "model.device": "cpu",
            "data.prompts": names["prompts.txt"],
            "reward.model": names["reward"],
            "rollout.prompts_per_iteration": 8,
            "rollout.max_new_tokens": 8,
            "budget.iterations": 1,
            "eval.prompts": 4,
            "sync.transport": "collective",
            "resources.layout": "split",
            "resources.strategy": "SPREAD",
        },
    )


def teardown(config: TrialConfig) -> float:
    """Seconds from the stop of one trial to free resources; it fails where a process is left."""
    plan = plan_trial(config)
    before = ray.available_resources()
    group = placement_group(**group_request(plan))
    ray.get(group.ready())
    runtime = RayRuntime(config, plan, group)
    list(PPOTrial(config, runtime, plan))
    pids = [worker["pid"] for worker in runtime.placement()["workers"]]
    start = time.perf_counter()
    runtime.close()
    remove_placement_group(group)
    while any(psutil.pid_exists(pid) for pid in pids) or not _free(before):
        if time.perf_counter() - start > 60:
            raise RuntimeError(f"left over after 60 s: {ray.available_resources()} of {before}")
        time.sleep(0.005)
    return time.perf_counter() - start


def _free(before: dict[str, Any]) -> bool:
    now = ray.available_resources()
    return all(now.get(name, 0.0) >= before[name] for name in ("CPU", "GPU", "memory"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - Ray spells it so
    node = {"num_cpus": 16, "num_gpus": 4, "memory": 200 * 10**9, "object_store_memory": 10**8}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        with tempfile.TemporaryDirectory() as folder:
            config = trial_config(save_models(Path(folder), "small"))
            seconds = [teardown(config) for _ in range(2 if args.quick else 7)]
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(report("teardown", seconds, [LIMIT_S], RATIO, "s", ray=version("ray")))


if __name__ == "__main__":
    main()
