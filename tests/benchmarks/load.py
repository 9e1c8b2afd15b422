"""Loading a large sweep into frames, first from JSON lines and then from Parquet, against ``json.loads`` alone.

python tests/benchmarks/load.py [--quick] [--folder FOLDER]

Trials x 100 iterations x 50 metrics; 10,000 trials, with --quick 1,000. Each load is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson
from common import report

TRIALS, QUICK, ITERATIONS, METRICS = 10_000, 1_000, 100, 50
FIRST_S, AGAIN_S, MEMORY_GB, JSON_S = 60.0, 3.0, 1.0, 44.0
LOAD = """
import json, resource, sys, time
began = time.perf_counter()
import analysis
sweep = analysis.load(sys.argv[1])
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps([seconds, peak, list(sweep.iterations.shape), list(sweep.warnings)]))
"""


def make(folder: Path, trials: int) -> None:
    """A finished sweep of random metrics in the form of docs/run_directory.md."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    objective = {"metric": "group/metric_0", "direction": "maximize"}
    stated = {"schema_version": 1, "name": "large", "objective": objective, "trials": trials}
    (folder / "sweep.json").write_text(json.dumps(stated))
    axis = {"key": "optim.policy.lr", "type": "float", "low": 0.0, "high": 1.0, "log": False}
    (folder / "space.json").write_text(json.dumps({"schema_version": 1, "parameters": [axis]}))
    with (folder / "trials.jsonl").open("w") as ledger:
        for number in range(trials):
            trial = f"t{number:05d}"
            own = folder / "trials" / trial
            own.mkdir(parents=True)
            (own / "params.json").write_text(json.dumps({axis["key"]: rng.random()}))
            (own / "placement.json").write_text(json.dumps(_placement()))
            values = rng.standard_normal((ITERATIONS, METRICS)).tolist()
            lines = [orjson.dumps(_line(i, row)) for i, row in enumerate(values)]
            (own / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
            for place, state in enumerate(("queued", "placed", "started", "ended")):
                entry = {"time": 1e9 + 4 * number + place, "trial": trial, "number": number}
                outcome = "completed" if state == "ended" else None
                entry |= {"state": state, "outcome": outcome, "durations": {"run": 1.0}}
                ledger.write(json.dumps(entry) + "\n")


def _line(iteration: int, values: list[float]) -> dict[str, float]:
    named = {f"group/metric_{i}": value for i, value in enumerate(values)}
    return {"iteration": iteration, "timestamp": 1e9 + iteration, **named}


def _placement() -> dict[str, object]:
    bundle = {
        "index": 0,
        "owner": "fused",
        "cpus": 4.0,
        "gpus": 1.0,
        "memory_gb": 32.0,
        "node": "n",
    }
    worker = {"name": "trial", "roles": ["rollout", "learner"], "index": 0, "bundle": 0}
    return {"layout": "fused", "bundles": [bundle], "workers": [worker]}


def load(folder: Path) -> tuple[float, float]:
    """Seconds, import included, and peak memory in GB of one load in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)], check=True, capture_output=True, text=True
    )
    seconds, peak, shape, warnings = json.loads(done.stdout)
    assert shape[1] == METRICS + 3, shape
    assert not warnings, warnings
    return seconds, peak


def parse(folder: Path) -> float:
    """Seconds of ``json.loads`` over all metrics lines."""
    began = time.perf_counter()
    for file in folder.glob("trials/*/metrics.jsonl"):
        for line in file.read_bytes().splitlines():
            json.loads(line)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the sweep is made; a temporary folder")
    args = parser.parse_args()
    trials = QUICK if args.quick else TRIALS
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        folder = Path(made) / "sweep"
        make(folder, trials)
        theirs = [parse(folder)]
        first, first_peak = load(folder)
        theirs.append(parse(folder))
        again = [load(folder) for _ in range(3)]
        stored = sum(f.stat().st_size for f in folder.glob("*.parquet")) / 1e6
        read = sum(f.stat().st_size for f in folder.glob("trials/*/metrics.jsonl")) / 1e6
    seconds, peak = sorted(s for s, _ in again)[1], max(p for _, p in again)
    whole = trials == TRIALS
    print(
        report(
            "load", [first], theirs, JSON_S / FIRST_S, "s", trials=trials,
            again_s=round(seconds, 2), again_peak_gb=round(peak, 2), first_peak_gb=round(first_peak, 2),
            ratio_again=round(min(theirs) / seconds, 1), target_again_s=AGAIN_S,
            again_ok=seconds <= AGAIN_S and peak <= MEMORY_GB, first_ok=not whole or first <= FIRST_S,
            jsonl_mb=round(read), parquet_mb=round(stored),
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
