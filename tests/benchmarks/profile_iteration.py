"""Where the time of a PPO iteration goes: by phase, and by kind of operation, as two tables.

python tests/benchmarks/profile_iteration.py [--size small|large] [--threads N]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import trial_of
from torch.profiler import ProfilerActivity, profile

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


def phases(size: str, threads: int) -> dict[str, float]:
    """Median seconds of each phase over six iterations."""
    with tempfile.TemporaryDirectory() as folder, trial_of(Path(folder), size, threads) as trial:
        found = [m.values for m in trial if m.iteration >= 2]
    names = [*(f"time/{name}" for name in PHASES), "time/iteration"]
    return {name: median(values[name] for values in found) for name in names}


def kinds(size: str, threads: int) -> dict[str, float]:
    """Share of the time of all operations by kind, over three iterations."""
    with tempfile.TemporaryDirectory() as folder, trial_of(Path(folder), size, threads) as trial:
        steps = iter(trial)
        next(m for m in steps if m.iteration == 3)
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            next(m for m in steps if m.iteration == 6)
    seconds: dict[str, float] = defaultdict(float)
    events: Any = recorded.key_averages()
    for event in events:
        kind = next((k for k, names in KINDS.items() if event.key.startswith(names)), REST)
        seconds[kind] += event.self_cpu_time_total
    total = sum(seconds.values())
    return {kind: seconds[kind] / total for kind in (*KINDS, REST)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("small", "large"), default="small")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    seconds = phases(args.size, args.threads)
    whole = seconds.pop("time/iteration")
    print(f"{args.size}, threads {args.threads}: {whole * 1e3:.0f} ms an iteration\n")
    for name, what in PHASES.items():
        share = seconds[f"time/{name}"] / whole
        print(f"{what:<28} {share:4.0%}  {seconds[f'time/{name}'] * 1e3:6.0f} ms")
    print(f"{'the loop':<28} {1 - sum(seconds.values()) / whole:4.0%}\n")
    for kind, share in kinds(args.size, args.threads).items():
        print(f"{kind:<28} {share:4.0%}")


if __name__ == "__main__":
    main()
