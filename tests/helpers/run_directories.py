"""Synthetic run directories, written by the contract in docs/run_directory.md."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

START = 1_790_000_000.0
# As the settings of a sweep state two objectives.
TWO_GOALS = {"search": {"objectives": {"eval/heldout": "maximize", "cost/gpu_seconds": "minimize"}}}
PARAMETERS: list[dict[str, Any]] = [
    {"key": "optim.policy.lr", "type": "float", "low": 1e-6, "high": 1e-3, "log": True},
    {"key": "optim.critic.lr", "type": "float", "low": 1e-5, "high": 1e-2, "log": True},
    {"key": "ppo.clip_range_low", "type": "float", "low": 0.05, "high": 0.3, "log": False},
    {"key": "sync.interval", "type": "int", "low": 1, "high": 8, "log": False},
    {
        "key": "ppo.estimator",
        "type": "choice",
        "values": ["gae", "rloo", "reinforce_baseline", "group_norm"],
    },
    {"key": "resources.cpus_per_gpu", "type": "choice", "values": [4, 8, 12]},
]


class Builder:
    """Writes one run directory, trial by trial."""

    def __init__(self, path: Path, **info: Any) -> None:
        self.path = path
        self.time = START
        self.info = {
            "schema_version": 1,
            "name": "synthetic",
            "created": START,
            "objective": {"metric": "eval/heldout", "direction": "maximize"},
            "constraints": ["eval/kl_response <= 20"],
            "trials": 8,
            **info,
        }
        path.mkdir(parents=True, exist_ok=True)
        self.write("sweep.json", self.info)
        self.write("space.json", {"schema_version": 1, "parameters": PARAMETERS})

    def write(self, name: str, content: object) -> Path:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content, allow_nan=False))
        return target

    def append(self, name: str, *lines: Mapping[str, Any]) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a") as file:
            file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)

    def state(self, trial: str, state: str, **fields: Any) -> None:
        self.time += 1.0
        number = int(trial.removeprefix("t"))
        line = {"time": self.time, "trial": trial, "number": number, "state": state, **fields}
        self.append("trials.jsonl", line)

    def begin(self, trial: str, params: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Queued, placed and started, with its files."""
        self.state(trial, "queued", **fields)
        folder = f"trials/{trial}"
        self.write(f"{folder}/params.json", dict(params or {}))
        self.write(
            f"{folder}/placement.json",
            {
                "layout": "split",
                "bundles": [
                    {"index": 0, "cpus": 0.1, "gpus": 0, "memory_gb": 1, "node": "n1"},
                    {"index": 1, "cpus": 4, "gpus": 1, "memory_gb": 32, "node": "n1"},
                ],
                "workers": [
                    {"name": "learner-0", "roles": ["learner", "critic"], "index": 0, "bundle": 1}
                ],
            },
        )
        self.state(trial, "placed")
        self.state(trial, "started")

    def report(self, trial: str, iteration: int, **metrics: float | None) -> None:
        """One metrics line; ``a__b`` stands for ``a/b``."""
        named = {key.replace("__", "/"): value for key, value in metrics.items()}
        line = {"iteration": iteration, "timestamp": self.time, **named}
        self.append(f"trials/{trial}/metrics.jsonl", line)

    def end(self, trial: str, outcome: str, value: float | None = None, **fields: Any) -> None:
        durations = {"queue": 0.5, "start": 3.1, "load": 2.0, "run": 20.0, "stop": 0.1}
        self.state(
            trial,
            "ended",
            **{"outcome": outcome, "reason": "", "value": value, "durations": durations, **fields},
        )

    def completed(self, trial: str, value: float | None, kl: float = 5.0, **fields: Any) -> None:
        """A whole trial of two iterations."""
        self.begin(trial, fields.pop("params", None))
        self.report(trial, 0, eval__heldout=0.0, reward__proxy=0.0, kl__response=0.0)
        self.report(
            trial,
            2,
            eval__heldout=value,
            eval__heldout_stderr=0.1,
            eval__kl_response=kl,
            reward__proxy=1.0,
            kl__response=kl,
            cost__gpu_seconds=7.0,
        )
        self.end(trial, "completed", value, iteration=2, **fields)


def draw_params(rng: random.Random) -> dict[str, Any]:
    """A point of PARAMETERS."""
    return {
        "optim.policy.lr": 10 ** rng.uniform(-6, -3),
        "optim.critic.lr": 10 ** rng.uniform(-5, -2),
        "ppo.clip_range_low": rng.uniform(0.05, 0.3),
        "sync.interval": rng.randint(1, 8),
        "ppo.estimator": rng.choice(["gae", "rloo", "reinforce_baseline", "group_norm"]),
        "resources.cpus_per_gpu": rng.choice([4, 8, 12]),
    }


def simulate(builder: Builder, count: int, iterations: int = 20, seed: int = 1) -> None:
    """A sweep whose curves look like those of PPO: good near lr 1e-4, divergence above."""
    rng = random.Random(seed)
    for number in range(count):
        trial, params = f"t{number:04d}", draw_params(rng)
        lr = math.log10(params["optim.policy.lr"])
        builder.begin(trial, params)
        fate = "diverged" if lr > -3.3 else "stopped" if rng.random() < 0.35 else "completed"
        if rng.random() < 0.04:
            builder.end(trial, "infeasible", reason="out of GPU memory")
            continue
        last = iterations if fate == "completed" else rng.randint(3, iterations - 2)
        gain = 2.0 * math.exp(-((lr + 4.2) ** 2)) + 0.2 * (params["ppo.estimator"] == "gae")
        value = 0.0
        for i in range(last + 1):
            value = gain * (1 - math.exp(-i / 7)) + rng.gauss(0, 0.06)
            wild = math.exp(max(0, i - last + 4) * 1.5) if fate == "diverged" else 1.0
            curves = {
                "reward__proxy": 1.3 * value + rng.gauss(0, 0.1),
                "kl__response": (4 + lr) ** 2 + i * gain * 0.4 * wild,
                "cost__gpu_seconds": 3.0 * i,
            }
            if i % 5 == 0 or i == last:
                curves |= {"eval__heldout": value, "eval__heldout_stderr": 0.05}
                curves |= {"eval__kl_response": i * gain * 0.4}
            builder.report(trial, i, **curves)
        builder.end(trial, fate, None if fate == "diverged" else value, iteration=last)


NODES = [
    {"name": f"node {i}", "id": f"n{i}", "cpus": 32, "gpus": 4, "memory_gb": 256} for i in range(2)
]
ROLES = ("rollout", "learner", "critic", "reference", "reward")


def simulate_cluster(builder: Builder, count: int, iterations: int = 12, seed: int = 2) -> None:
    """A sweep on two nodes of four GPUs: up to four trials at once, every configuration on three seeds.

    Each trial has two GPUs, one on either node; staleness, times, busy shares and imbalance are reported.
    """
    rng = random.Random(seed)
    builder.write("sweep.json", builder.info | {"trials": count, "cluster": {"nodes": NODES}})
    free = [START] * 4
    ledger: list[dict[str, Any]] = []
    for number in range(count):
        if number % 3 == 0:
            interval, ratio = rng.choice([1, 2, 4]), rng.choice([2, 4, 8])
            centre = rng.gauss(1.0, 0.4) - 0.1 * interval
        trial = f"t{number:04d}"
        params = {"sync.interval": interval, "resources.cpus_per_gpu": ratio, "seed": number}
        builder.write(f"trials/{trial}/params.json", params)
        builder.write(f"trials/{trial}/placement.json", split_placement(ratio))
        place = free.index(min(free))
        begin = free[place] + rng.uniform(1, 6)
        seconds = 4.0 + 8.0 / ratio + rng.random()
        final = rng.gauss(centre, 0.1)
        for i in range(iterations + 1):
            value = final * i / iterations
            phases = {"generate": 0.5, "learner": 0.2, "critic": 0.15, "score": 0.05, "sync": 0.02}
            metrics = {f"time/{k}": v * seconds for k, v in phases.items()}
            metrics |= {f"util/busy_{r}": rng.uniform(0.2, 0.7) for r in ROLES}
            metrics |= {"time/iteration": seconds, "util/imbalance": abs(rng.gauss(0.12, 0.05))}
            metrics |= {"staleness/mean": (interval - 1) / 2, "kl/response": 0.5 * i}
            metrics |= {"rollout/tokens_per_second": 9000 / seconds, "reward/proxy": 1.2 * value}
            metrics |= {"cost/gpu_seconds": 2 * seconds * i, "cost/episodes": 64.0 * i}
            if i % 3 == 0:
                metrics |= {"eval/heldout": value, "eval/heldout_stderr": 0.04}
                metrics |= {"eval/proxy": 1.2 * value, "eval/kl_response": 0.5 * i}
            line = {"iteration": i, "timestamp": begin + i * seconds, **metrics}
            builder.append(f"trials/{trial}/metrics.jsonl", line)
        free[place] = end = begin + seconds * (iterations + 1)
        about = {"trial": trial, "number": number, "outcome": None}
        ledger += [{"time": START, **about, "state": "queued"}]
        ledger += [{"time": begin - 1, **about, "state": "placed"}]
        ledger += [{"time": begin, **about, "state": "started"}]
        ended = {"outcome": "completed", "value": final, "iteration": iterations}
        ledger += [{"time": end, **about, "state": "ended", **ended}]
    builder.append("trials.jsonl", *sorted(ledger, key=lambda line: float(line["time"])))


def split_placement(ratio: float) -> dict[str, Any]:
    """Learner and critic on a GPU of node 0, half a GPU for each of two rollouts on node 1."""
    shapes = [(0, 0.1, 0, "n0"), (1, ratio, 1, "n0"), (2, ratio / 2, 0.5, "n1")]
    shapes.append((3, ratio / 2, 0.5, "n1"))
    names = ("index", "cpus", "gpus", "node")
    hosted = {1: ROLES[1:], 2: ("rollout",), 3: ("rollout",)}
    return {
        "layout": "split",
        "bundles": [dict(zip(names, shape, strict=True)) for shape in shapes],
        "workers": [
            {"name": f"w{i}", "roles": list(roles), "index": 0, "bundle": i}
            for i, roles in hosted.items()
        ],
    }
