"""One PPO iteration against TRL 1.12's ``PPOTrainer``, the last TRL with PPO: equal models, batches and threads.

    python tests/benchmarks/ppo_iteration.py [--quick] [--size small|large] [--threads N] [--trl PYTHON]

``--trl`` names the interpreter of an environment with torch 2.13.0, trl 1.12.0 and transformers 4.57.6. Without it
``RLHF_TRL_PYTHON`` does, or one is made in ``.venv-trl``. First the losses of both sides are shown to be equal on
equal tokens and weights. Then the two sides alternate, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGETS = {("small", 1): 4.0, ("small", 2): 4.0, ("large", 1): 1.7, ("large", 2): 2.0}


def environment(size: str, threads: int) -> dict[str, str]:
    """Size and threads as both sides read them."""
    from common import SIZES

    return {
        **os.environ,
        "H": str(SIZES[size]["width"]),
        "NL": str(SIZES[size]["layers"]),
        "T": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": str(ROOT),
    }


def ours(size: str, threads: int) -> None:
    """Median seconds of an iteration, as the last line."""
    import torch
    from common import trial_of

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder, trial_of(Path(folder), size, threads) as trial:
        seconds = [m.values["time/iteration"] for m in trial if 2 <= m.iteration <= 8]
    print(statistics.median(seconds))


def theirs(python: str, size: str, threads: int) -> float:
    """Median seconds of an update of TRL."""
    line = subprocess.run(
        [python, str(HERE / "trl_ppo_baseline.py")],
        env=environment(size, threads),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[-1]
    return float(line.split("median")[1].split()[0])


def equal_losses(python: str) -> dict[str, float]:
    """Differences of the two sides' losses; ends the benchmark where they do not compute the same."""
    from losses import TOLERANCE, compare

    with tempfile.TemporaryDirectory() as folder:
        differences = compare(python, Path(folder))
    if max(differences.values()) > TOLERANCE:
        sys.exit(f"ppo_iteration: losses differ by more than {TOLERANCE:g}: {differences}")
    print(f"losses differ by at most {max(differences.values()):.1e}", file=sys.stderr)
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--size", choices=("small", "large"), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trl")
    parser.add_argument("--one-side", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one_side:
        return ours(args.size, args.threads)
    from common import report

    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    sys.path.insert(0, str(ROOT))
    from peers import peer_python

    python, seconds = args.trl or peer_python("trl"), {"ours": [], "theirs": []}
    differences = equal_losses(python)
    again = [
        sys.executable,
        __file__,
        "--one-side",
        "--size",
        args.size,
        "--threads",
        str(args.threads),
    ]
    for _ in range(1 if args.quick else 4):
        done = subprocess.run(
            again,
            env=environment(args.size, args.threads),
            capture_output=True,
            text=True,
            check=True,
        )
        seconds["ours"].append(float(done.stdout.splitlines()[-1]))
        seconds["theirs"].append(theirs(python, args.size, args.threads))
    line = report(
        "ppo_iteration", seconds["ours"], seconds["theirs"], TARGETS[args.size, args.threads],
        "s/iteration", size=args.size, threads=args.threads, trl="1.12.0", differences=differences,
    )  # fmt: skip
    key = "ratio" if args.size == "small" else "ratio_large"
    print(json.dumps({**json.loads(line), key: json.loads(line)["ratio"]}))
    return None


if __name__ == "__main__":
    main()
