"""Where the time of a PPO iteration goes: by phase, and by kind of operation, as two tables.

python tests/benchmarks/profile_iteration.py [--size small|large] [--model smollm] [--threads N]

``--model smollm`` is the trial of the preset of that name, SmolLM2-135M with adapters and a critic, on prompts and
a reward that need no data; it takes about three minutes. The last line says how long the iteration's matrix
products would take at the speed of a large one that is measured here alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from common import machine_speed, running, trial_of
from memory import trial_values
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from rlhf_core.trial import PPOTrial

PHASES = {
    "generate": "sampling",
    "reference": "reference log-probabilities",
    "score": "reward scores",
    "values": "values of the critic",
    "critic": "critic update",
    "learner": "policy update",
    "sync": "weight delivery",
}
KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "attention": ("aten::_scaled_dot_product",),
    "softmax and exponentials": ("aten::exp", "aten::_softmax", "aten::_log_softmax", "aten::silu"),
    "optimiser": ("aten::_fused_adamw", "Optimizer"),
}
REST = "element-wise, copies, Python"
# The last of the iterations that are timed, that is profiled, and whose products are counted.
STEPS = {"small": (6, 7, 8), "large": (6, 7, 8), "smollm": (4, 5, 6)}


@contextmanager
def trial_named(name: str, threads: int) -> Iterator[PPOTrial]:
    """A trial of random models, or that of the preset ``smollm``."""
    with tempfile.TemporaryDirectory() as folder:
        if name != "smollm":
            with trial_of(Path(folder), name, threads) as trial:
                yield trial
            return
        made = trial_values(name, 0, Path(folder))
        values = {"extends": name, "reward": made["reward"], "data": made["data"]}
        values |= {"resources": {"threads": threads}, "eval": made["eval"]}
        values["budget"] = {"iterations": STEPS[name][2]}
        with running(values) as trial:
            yield trial


def until(steps: Iterator[Any], last: int) -> dict[str, list[float]]:
    """Goes on to the iteration ``last``; returns the values of each metric on the way."""
    found: dict[str, list[float]] = defaultdict(list)
    for metrics in steps:
        for name, value in metrics.values.items():
            found[name].append(value)
        if metrics.iteration == last:
            break
    return found


def shares(recorded: Any) -> dict[str, float]:
    """Share of the time of all operations by kind."""
    seconds: dict[str, float] = defaultdict(float)
    for event in recorded.key_averages():
        kind = next((k for k, names in KINDS.items() if event.key.startswith(names)), REST)
        seconds[kind] += event.self_cpu_time_total
    total = sum(seconds.values())
    return {kind: seconds[kind] / total for kind in (*KINDS, REST)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("small", "large"), default="small")
    parser.add_argument("--model", choices=("smollm",), help="instead of a size")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    name = args.model or args.size
    timed, profiled, counted = STEPS[name]
    with trial_named(name, args.threads) as trial:
        steps = iter(trial)
        until(steps, 1)
        metrics = until(steps, timed)
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            until(steps, profiled)
        with FlopCounterMode(display=False) as counter:
            until(steps, counted)
    whole = median(metrics["time/iteration"])
    seconds = {phase: median(metrics[f"time/{phase}"]) for phase in PHASES}
    print(f"{name}, threads {args.threads}: {whole * 1e3:.0f} ms an iteration\n")
    for phase, what in PHASES.items():
        print(f"{what:<28} {seconds[phase] / whole:4.0%}  {seconds[phase] * 1e3:6.0f} ms")
    print(f"{'the loop':<28} {1 - sum(seconds.values()) / whole:4.0%}\n")
    for kind, share in shares(recorded).items():
        print(f"{kind:<28} {share:4.0%}")
    products, (speed, bandwidth) = counter.get_total_flops(), machine_speed()
    print(
        f"\n{products / 1e9:.0f} GFLOP of matrix products are {products / speed / whole:.0%} of the iteration at "
        f"{speed / 1e9:.0f} GFLOP/s; a copy moves {bandwidth / 1e9:.1f} GB/s"
    )


if __name__ == "__main__":
    main()
