"""What a sweep costs its driver beside plain Ray Tune: trials that do nothing, through the whole machinery.

Both sides run on one cluster, in a process of their own for each repeat, in turns, with eight trials at once and
warm processes; plain Tune is a ``tune.Tuner`` with ``OptunaSearch`` (TPE in memory) as it comes, its loggers
included (``--lean`` leaves them out). Counted is what lies between the ends of trial 20 and of the last one.
``ratio`` is plain Tune's seconds of wall time for a trial over ours, at least 1 / 1.1; the driver may need at most
15 ms more of CPU time for a trial. Its memory's growth and the processes that were asked for are told of both.

    python tests/benchmarks/overhead.py [--quick] [--lean]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from common import report

from rlhf_core.metrics import IterationMetrics
from rlhf_core.runtime.placement import Bundle, PlacementPlan
from sweeps.programs.base import TrialContext, TrialProgram

ROOT, HERE = Path(__file__).resolve().parents[2], Path(__file__).resolve().parent
AT_ONCE, WARM_UP = 8, 20
WALL_RATIO, MORE_CPU_MS = 1.1, 15.0


class Nothing(TrialProgram):
    """A trial of one step that computes nothing."""

    warm = True

    def keys(self) -> tuple[str, ...]:
        return ("x", "y")

    def resolve(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        return {**base, **params}

    def placement(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> PlacementPlan:
        return PlacementPlan("fused", "PACK", (Bundle("head", 0.1, 0.0, 0.0),), ())

    def start(self, context: TrialContext) -> Running:
        return Running(context)


class Running:
    def __init__(self, context: TrialContext) -> None:
        self.restart(context)

    def restart(self, context: TrialContext) -> bool:
        self.value, self.is_last = loss(context.params), False
        return True

    def __iter__(self) -> Iterator[IterationMetrics]:
        self.is_last = True
        yield IterationMetrics(1, {"noop/loss": self.value})

    def placement(self) -> dict[str, Any]:
        return {"layout": "fused", "bundles": [], "workers": []}

    def close(self) -> None:
        return None


def loss(params: Mapping[str, Any]) -> float:
    return float((params["x"] - 0.3) ** 2 + params["y"])


class Meter:
    """Wall time, CPU time and memory of this process whenever a trial ends; the processes that Tune asks for."""

    def __init__(self) -> None:
        from ray.air.execution._internal.actor_manager import RayActorManager

        self.ends: list[tuple[float, float, float]] = []
        self.processes = 0
        self._process = psutil.Process()
        add = RayActorManager.add_actor

        def counted(manager: RayActorManager, *args: Any, **kwargs: Any) -> Any:
            self.processes += 1
            return add(manager, *args, **kwargs)

        RayActorManager.add_actor = counted

    def tick(self) -> None:
        self.ends.append(
            (time.perf_counter(), time.process_time(), self._process.memory_info().rss)
        )

    def result(self) -> dict[str, float]:
        first, last = self.ends[WARM_UP - 1], self.ends[-1]
        count = len(self.ends) - WARM_UP
        names, scale = ("wall_ms", "cpu_ms", "rss_kb"), (1e3, 1e3, 1 / 1024)
        found = {
            name: (b - a) * unit / count
            for name, a, b, unit in zip(names, first, last, scale, strict=True)
        }
        return {**found, "processes": self.processes}


def ours(trials: int, address: str, folder: Path, meter: Meter) -> None:
    from rich.console import Console

    from sweeps import Sweep
    from sweeps.driver import SweepDriver

    end = SweepDriver.end

    def counted(self: SweepDriver, *args: Any, **kwargs: Any) -> None:
        end(self, *args, **kwargs)
        meter.tick()

    SweepDriver.end = counted  # type: ignore[method-assign]
    values = {
        "program": "overhead:Nothing",
        "space": {"x": {"float": [0.0, 1.0]}, "y": {"float": [1e-3, 1.0], "log": True}},
        "search": {
            "trials": trials,
            "max_concurrent": AT_ONCE,
            "objective": "noop/loss",
            "direction": "minimize",
        },
        "scheduler": {"kind": "none"},
        "selection": {"test_prompts": 0},
        "cluster": {"address": address},
    }
    Sweep.from_dict(values).run(folder / "run", Console(file=io.StringIO()))


def plain(trials: int, address: str, folder: Path, meter: Meter) -> None:
    import ray
    from ray import tune
    from ray.tune.search import ConcurrencyLimiter
    from ray.tune.search.optuna import OptunaSearch

    class Trainable(tune.Trainable):
        def step(self) -> dict[str, Any]:
            return {"noop/loss": loss(self.config), "done": True}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {}

    class Counted(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            meter.tick()

        def __reduce__(self) -> Any:
            return tune.Callback, ()

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    tune.Tuner(
        Trainable,
        param_space={"x": tune.uniform(0.0, 1.0), "y": tune.loguniform(1e-3, 1.0)},
        tune_config=tune.TuneConfig(
            search_alg=ConcurrencyLimiter(
                OptunaSearch(metric="noop/loss", mode="min"), max_concurrent=AT_ONCE
            ),
            num_samples=trials,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            storage_path=str(folder),
            callbacks=[Counted()],
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    ray.shutdown()


def one(side: str, trials: int, address: str) -> None:
    """A repeat; prints its figures."""
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder:
        (ours if side == "ours" else plain)(trials, address, Path(folder), meter)
    assert len(meter.ends) == trials, f"{len(meter.ends)} of {trials} trials ended"
    print(json.dumps(meter.result()))


def measured(side: str, trials: int, address: str, lean: bool) -> dict[str, float]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    if lean:
        env["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    command = [sys.executable, __file__, "--side", side, "--trials", str(trials)]
    done = subprocess.run(
        [*command, "--address", address], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{side}: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--lean", action="store_true")
    parser.add_argument("--side", choices=["ours", "plain"])
    parser.add_argument("--trials", type=int)
    parser.add_argument("--address")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    trials = args.trials or (40 if args.quick else 300)
    if args.side:
        one(args.side, trials, args.address)
        return
    from ray.cluster_utils import Cluster

    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - Ray spells it so
    node = {"num_cpus": 16, "object_store_memory": 10**8, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    found: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}
    try:
        for _ in range(1 if args.quick else 3):
            for side, figures in found.items():
                figures.append(measured(side, trials, cluster.address, args.lean))
    finally:
        cluster.shutdown()
    print(_line(found, trials, args.lean))


def _line(found: Mapping[str, list[dict[str, float]]], trials: int, lean: bool) -> str:
    middle = {
        side: {name: statistics.median(f[name] for f in figures) for name in figures[0]}
        for side, figures in found.items()
    }
    more = middle["ours"]["cpu_ms"] - middle["plain"]["cpu_ms"]
    walls = [[f["wall_ms"] for f in found[side]] for side in ("ours", "plain")]
    wall = middle["ours"]["wall_ms"] / middle["plain"]["wall_ms"]
    return report(
        "overhead", *walls, 1 / WALL_RATIO, "ms/trial", trials=trials, loggers=not lean,
        ok=wall <= WALL_RATIO and more <= MORE_CPU_MS, wall=round(wall, 3),
        more_cpu_ms=round(more, 2), target_more_cpu_ms=MORE_CPU_MS,
        cpu_ms={side: round(m["cpu_ms"], 2) for side, m in middle.items()},
        processes={side: round(m["processes"]) for side, m in middle.items()},
        rss_kb_per_trial={side: round(m["rss_kb"], 1) for side, m in middle.items()},
        ray=version("ray"), optuna=version("optuna"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
