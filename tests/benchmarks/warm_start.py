"""Start of a trial in the processes of the last one against a start in new ones, through whole sweeps.

Seconds from the end of a trial to the first iteration of the next. ``ratio`` is cold over warm, at least 10, and
the warm start takes less than 0.5 s. The first reuse of a sweep compares what was kept with what is read again;
it is reported beside the others as ``first_reuse``.

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
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import report
from rich.console import Console

from sweeps import Sweep

RATIO, LIMIT_S = 10.0, 0.5


def sweep(layout: str, trials: int, warm: bool, out: Path) -> list[float]:
    """Seconds between trials of a sweep of the tiny model, one trial after the other."""
    values: dict[str, Any] = {
        "base": {
            "extends": "tiny",
            "rollout": {"prompts_per_iteration": 8, "max_new_tokens": 8},
            "eval": {"prompts": 4},
            "budget": {"iterations": 1},
            "resources": {"layout": layout},
        },
        "space": {"ppo.kl.coef": {"float": [0.01, 0.2]}},
        "search": {"trials": trials, "sampler": "random", "max_concurrent": 1},
        "scheduler": {"kind": "none"},
        "selection": {"test_prompts": 0},
        "cluster": {"rehearse": {"nodes": 1, "cpus": 32, "gpus": 6}, "warm": warm},
    }
    Sweep.from_dict(values).run(out, Console(file=io.StringIO()))
    ledger = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    ends = {line["trial"]: line["time"] for line in ledger if line["state"] == "ended"}
    names = sorted(ends)
    return [_begin(out, later) - ends[one] for one, later in itertools.pairwise(names)]


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
    with tempfile.TemporaryDirectory() as folder:
        first, *warm = sweep(args.layout, 4 if args.quick else 9, True, Path(folder) / "warm")
        cold = sweep(args.layout, 3 if args.quick else 6, False, Path(folder) / "cold")
    ratio = statistics.median(cold) / statistics.median(warm)
    print(
        report(
            "warm_start", warm, cold, RATIO, "s", layout=args.layout, first_reuse=round(first, 4),
            ok=ratio >= RATIO and statistics.median(warm) < LIMIT_S, target_warm=LIMIT_S,
            ray=version("ray"),
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
