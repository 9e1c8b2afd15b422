"""Start of a trial in the processes of the last one against a start in new ones, through whole sweeps.

A start is from when the sweep hands a trial to Ray Tune, its place being free, until its first iteration begins.
Cold, the first trial of a sweep: its placement group (milliseconds), the process of its coordinator, those of its
roles with their libraries, models read. Warm, a later one: group and processes are those of the last trial; roles,
optimisers and process groups are made anew and weights reset. ``ratio`` is cold over warm, at least 10, and the
warm start takes less than 0.5 s. The first reuse of a sweep compares what was kept with what is read again; it is
reported beside the others as ``first_reuse``, and from the end of one warm trial to the first iteration of the
next as ``between``, which is the start and what the sweep itself does. Both sides come from each sweep.

    python tests/benchmarks/warm_start.py [--quick] [--layout fused|split|colocated]
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import report
from rich.console import Console

from sweeps import Sweep

RATIO, LIMIT_S = 10.0, 0.5
SWEEPS, TRIALS = 5, 6


def starts(layout: str, out: Path) -> tuple[list[float], list[float]]:
    """Seconds of each start of a sweep of the tiny model, one trial after the other; and those between trials."""
    values: dict[str, Any] = {
        "base": {
            "extends": "tiny",
            "rollout": {"prompts_per_iteration": 8, "max_new_tokens": 8},
            "eval": {"prompts": 4},
            "budget": {"iterations": 1},
            "resources": {"layout": layout},
        },
        "space": {"ppo.kl.coef": {"float": [0.01, 0.2]}},
        "search": {"trials": TRIALS, "sampler": "random", "max_concurrent": 1},
        "scheduler": {"kind": "none"},
        "selection": {"test_prompts": 0},
        "cluster": {"rehearse": {"nodes": 1, "cpus": 32, "gpus": 6}, "warm": True},
    }
    Sweep.from_dict(values).run(out, Console(file=io.StringIO()))
    ledger = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    times = {(line["trial"], line["state"]): line["time"] for line in ledger}
    trials = sorted({trial for trial, _ in times})
    begun = {trial: _begin(out, trial) for trial in trials}
    between = [begun[later] - times[one, "ended"] for one, later in itertools.pairwise(trials)]
    return [begun[trial] - times[trial, "queued"] for trial in trials], between


def _begin(out: Path, trial: str) -> float:
    """When the trial began to compute, in seconds since the epoch."""
    first = json.loads((out / f"trials/{trial}/metrics.jsonl").read_text().splitlines()[0])
    return float(first["timestamp"] - first["time/iteration"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--layout", default="split", choices=["fused", "split", "colocated"])
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    start = time.perf_counter()
    cold, first, warm, between = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 if args.quick else SWEEPS):
            (new, checked, *kept), gaps = starts(args.layout, Path(folder) / str(number))
            cold.append(new)
            first.append(checked)
            warm += kept
            between += gaps[1:]
    ratio = statistics.median(cold) / statistics.median(warm)
    print(
        report(
            "warm_start", warm, cold, RATIO, "s", layout=args.layout,
            first_reuse=round(statistics.median(first), 4),
            between=round(statistics.median(between), 4),
            ok=ratio >= RATIO and statistics.median(warm) < LIMIT_S, target_warm=LIMIT_S,
            ray=version("ray"), wall=round(time.perf_counter() - start, 1),
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
