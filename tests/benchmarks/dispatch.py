"""What it costs to keep 64 rollout workers busy: time of a dispatched batch over the time of its work.

    python tests/benchmarks/dispatch.py [--quick]

The workers are Ray actors that load no model: each call waits as long as sampling would and returns a rollout of
real size. Chunks differ in length, the next goes to whoever is free.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
import torch

from rlhf_core.runtime.base import RoleGroup
from rlhf_core.runtime.ray_actor import unwrapped
from rlhf_core.types import CallContext, Rollout

# Of an iteration at most 5 % may go into dispatch.
TARGET = 1 / 0.05
ROWS, PROMPT_TOKENS, NEW_TOKENS = 16, 256, 512
CHUNKS_PER_WORKER = 4


class LightRollout:
    """Waits instead of sampling."""

    def call(self, role: str, method: str, context: CallContext, seconds: float) -> Rollout:
        time.sleep(seconds)
        mask_BT = torch.ones(ROWS, NEW_TOKENS, dtype=torch.bool)
        return Rollout(
            torch.zeros(ROWS, PROMPT_TOKENS + NEW_TOKENS, dtype=torch.int64),
            torch.full((ROWS,), PROMPT_TOKENS),
            mask_BT,
            torch.zeros(ROWS, NEW_TOKENS),
            mask_BT[:, 0],
            torch.zeros(ROWS, NEW_TOKENS, dtype=torch.int64),
        )


class LightWorker:
    """Handle of such an actor."""

    address = "127.0.0.1"

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Future[Any]:
        return unwrapped(self.actor.call.remote(role, method, context, *args))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    count, repeats, chunk_s = (8, 3, 2.0) if args.quick else (64, 5, 4.0)
    ray.init(
        address="local", num_cpus=4, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR", object_store_memory=300_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}},
    )  # fmt: skip
    try:
        shares = measure(count, repeats, chunk_s)
    finally:
        ray.shutdown()
    middle = statistics.median(shares)
    line: dict[str, Any] = {
        "name": "dispatch", "ratio": round(1 / max(middle, 1e-6), 1), "target": TARGET,
        "ok": middle <= 1 / TARGET, "repeats": repeats, "median_ours": round(middle, 4),
        "median_theirs": 1 / TARGET, "range_ours": [round(min(shares), 4), round(max(shares), 4)],
        "unit": "share of the iteration", "workers": count, "chunk_seconds": chunk_s,
        "versions": {"python": platform.python_version(), "ray": version("ray")},
    }  # fmt: skip
    print(json.dumps(line))


def measure(count: int, repeats: int, chunk_s: float) -> list[float]:
    """Share of each batch's time that its workers could have worked, but did not."""
    actor_class = ray.remote(LightRollout)
    actors = [actor_class.options(num_cpus=0.01).remote() for _ in range(count)]
    group = RoleGroup("rollout", [LightWorker(actor) for actor in actors])
    context = CallContext("dispatch")
    group.map("generate", [(context, (0.0,))] * count)
    print(f"{count} workers have started", file=sys.stderr)
    shares = []
    for repeat in range(repeats):
        generator = random.Random(repeat)
        waits = [chunk_s * generator.uniform(0.5, 1.5) for _ in range(count * CHUNKS_PER_WORKER)]
        start = time.perf_counter()
        group.map("generate", [(context, (seconds,)) for seconds in waits])
        elapsed = time.perf_counter() - start
        shares.append(1 - greedy(waits, count) / elapsed)
    return shares


def greedy(waits: list[float], count: int) -> float:
    """End of the last chunk where dispatch takes no time: each to whoever is free first."""
    free = [0.0] * count
    for seconds in waits:
        first = min(range(count), key=free.__getitem__)
        free[first] += seconds
    return max(free)


if __name__ == "__main__":
    main()
