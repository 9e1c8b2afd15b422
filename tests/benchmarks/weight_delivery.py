"""Delivery of weights to 4 rollout workers on one node, through Ray's object store, checksums included.

Two figures: ``copies``, the time of a delivery of 400 MB over that of the 5 memory copies it needs (1 into the
store, 4 out), at most 2.2; and ``ratio``, on a model of 300 parameters, the time of one call per parameter over
ours, at least 10.

    python tests/benchmarks/weight_delivery.py [--quick] [--mb N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
import torch
from common import llama_config, report, save_tokenizer
from ray.util.placement_group import placement_group, remove_placement_group
from transformers import LlamaForCausalLM

from rlhf_core.config import TrialConfig, apply
from rlhf_core.runtime.placement import Bundle, PlacementPlan, WorkerPlace
from rlhf_core.runtime.placement.plan import bundle_resources
from rlhf_core.runtime.ray_runtime import RayRuntime
from rlhf_core.types import CallContext

ROOT = Path(__file__).resolve().parents[2]
ROLLOUTS, COPIES, RATIO = 4, 2.2, 10.0


def policy(folder: Path, width: int, layers: int) -> tuple[str, int]:
    """A random policy with 9 parameters a layer and 3 more, and its bytes."""
    shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config("small", **shape))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return str(folder), sum(p.nbytes for p in model.parameters())


@contextlib.contextmanager
def runtime(model: str) -> Iterator[RayRuntime]:
    """A learner and the rollout workers, as a trial starts them."""
    (Path(model) / "prompts.txt").write_text("t1 t2\n")
    config = apply(
        TrialConfig(),
        {
            "model.policy": model,
            "model.device": "cpu",
            "data.prompts": f"{model}/prompts.txt",
            # Nobody asks for rewards here.
            "reward.function": "builtins:len",
        },
    )
    places = [("learner", 0), *(("rollout", i) for i in range(ROLLOUTS))]
    plan = PlacementPlan(
        "split",
        "PACK",
        tuple(Bundle(f"{role} {i}", 0.1, 0.0, 0.0) for role, i in places),
        tuple(WorkerPlace(role, (role,), i, n) for n, (role, i) in enumerate(places)),
    )
    group = placement_group([bundle_resources(b) for b in plan.bundles])
    ray.get(group.ready())
    started = RayRuntime(config, plan, group)
    try:
        yield started
    finally:
        started.close()
        remove_placement_group(group)


class Receiver:
    """A worker that is given one parameter a call."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.parameters = {name: torch.zeros(shape) for name, shape in shapes.items()}

    def take(self, name: str, values: Any) -> None:
        self.parameters[name].copy_(torch.from_numpy(values.copy()))


def by_parameter(model: str) -> Callable[[], None]:
    """Delivery with one call per parameter and worker."""
    named = list(LlamaForCausalLM.from_pretrained(model).named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in named}
    actor = ray.remote(num_cpus=0.1)(Receiver)
    receivers = [actor.remote(shapes) for _ in range(ROLLOUTS)]

    def deliver() -> None:
        for name, parameter in named:
            ref = ray.put(parameter.detach().numpy())
            ray.get([receiver.take.remote(name, ref) for receiver in receivers])

    return deliver


def copies(size: int) -> Callable[[], None]:
    """As many copies of ``size`` bytes as a delivery cannot do without, one after the other."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8)
    targets = [torch.zeros_like(source) for _ in range(1 + ROLLOUTS)]

    def copy() -> None:
        for target in targets:
            target.copy_(source)

    return copy


def alternate(
    ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int, warm: int
) -> tuple[list[float], list[float]]:
    """Seconds of both sides, in turns, after ``warm`` turns that do not count."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(warm + repeats):
        for side, kept in zip((ours, theirs), seconds, strict=True):
            start = time.perf_counter()
            side()
            kept.append(time.perf_counter() - start)
    return seconds[0][warm:], seconds[1][warm:]


def delivery(started: RayRuntime) -> Callable[[], Any]:
    """One delivery after the other, each under the next version."""
    versions = iter(range(1, 10_000))
    return lambda: started.deliver_weights(CallContext("benchmark", next(versions))).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--mb", type=int, default=400, help="size of the weights")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(
        address="local", num_cpus=2, object_store_memory=3 * args.mb * 10**6, include_dashboard=False,
        log_to_driver=False, logging_level="ERROR",
    )  # fmt: skip
    repeats = 3 if args.quick else 9
    with tempfile.TemporaryDirectory() as folder:
        # 67 MB a layer.
        large, size = policy(Path(folder) / "large", 1024, max(1, round(args.mb / 67.1)))
        with runtime(large) as started:
            whole, needed = alternate(delivery(started), copies(size), repeats, 3)
        small, _ = policy(Path(folder) / "small", 64, 33)
        with runtime(small) as started:
            ours, theirs = alternate(delivery(started), by_parameter(small), repeats, 3)
    ray.shutdown()
    multiple = statistics.median(whole) / statistics.median(needed)
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(
        report(
            "weight_delivery", ours, theirs, RATIO, "s/delivery",
            ok=ratio >= RATIO and multiple <= COPIES, copies=round(multiple, 2),
            target_copies=COPIES, bytes=size, rollouts=ROLLOUTS, median_large=round(statistics.median(whole), 4),
            range_large=[round(min(whole), 4), round(max(whole), 4)],
            median_copies=round(statistics.median(needed), 4), ray=version("ray"),
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
