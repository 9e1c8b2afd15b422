"""GPU bill of 8 equal trials with reference and reward shared, against the same trials with roles of their own.

Modelled: the clock. 8 trials of the default template with 2 rollouts run on 8 logical nodes x 2 GPUs in a
simulation of events, with the declared seconds of each phase below and seeded noise, equal on both sides.
Real in it: the plans, which trials the nodes hold at once, and the queue that decides whom a service serves next.
Chunks of a batch are sampled one after the other, evenly over its generation, and on both sides each is scored
from then on, as the trial loop does with frozen roles in places of their own.
Services with parts of one GPU take turns on it: two that are busy at once are each half as fast.
A trial's bill is its GPUs from its start to its end, waiting for services included; a service's is its GPUs for
the whole sweep, idle or not. ``ratio`` is the bill without sharing over the bill with it, target 1 / 0.65.

Measured: the resident memory (proportional set size) of 3 real trials in processes, with and without; not with
``--quick``.

    python tests/benchmarks/shared_roles.py [--quick]
"""

from __future__ import annotations

import argparse
import heapq
import io
import itertools
import os
import random
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from common import report

from rlhf_core.config import TrialConfig, apply
from rlhf_core.runtime.fair import FairQueue, Request
from rlhf_core.runtime.placement import Node, PlacementPlan, assign, plan_trial, trials_at_once
from rlhf_core.runtime.shared import shared_roles
from sweeps.config import ServicesConfig
from sweeps.services import left

ROOT = Path(__file__).resolve().parents[2]
TARGET = 1 / 0.65
TRIALS, ITERATIONS, CHUNKS = 8, 20, 16
# Of an iteration of OpenRLHF at 70 B: 2252 s of generation and 1800 s of training of 4488 s. All of the rest is
# taken for the scoring that reference and reward do side by side, which is more than they need.
SECONDS = {"generate": 2252.0, "reference": 436.0, "reward": 436.0, "train": 1800.0}
START, NOISE = 120.0, 0.1
FROZEN = ("reference", "reward")
NODES = [Node(f"node {i}", 32.0, 2.0, 256.0) for i in range(8)]
# Enough for all trials at once, which the template's own arithmetic is about: 26 GPUs in place of 40.
ROOMY = [Node(f"node {i}", 64.0, 8.0, 512.0) for i in range(8)]


@dataclass
class Simulation:
    """Trials that come one after the other where the nodes have room, on a clock of its own.

    Args:
        plan: Placement of a trial.
        services: Placements of the services, by role.
        nodes: What there is.
        turn: Requests of one turn of a service.
        seed: Of the noise.
        early: Whether a chunk is scored from when it is sampled on; otherwise once the whole batch is.
    """

    plan: PlacementPlan
    services: Mapping[str, PlacementPlan]
    nodes: Sequence[Node]
    turn: int
    seed: int
    early: bool = True
    now: float = 0.0
    spans: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self._queues: dict[str, FairQueue[Any]] = defaultdict(lambda: FairQueue(turn=self.turn))
        # Services that fit on one device together are put there.
        together = sum(plan.total("gpus") for plan in self.services.values()) <= 1
        self._device = dict.fromkeys(self.services, "both") if together else {}
        self._busy: set[str] = set()
        self._next = iter(range(TRIALS))
        rest = left(self.nodes, self.services.values())
        self.at_once = trials_at_once(self.plan, rest)

    def run(self) -> float:
        """The bill in GPU-seconds."""
        for _ in range(self.at_once):
            self._start()
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
        reserved = sum(plan.total("gpus") for plan in self.services.values())
        return sum(self.spans) * self.plan.total("gpus") + reserved * self.now

    def _after(self, seconds: float, event: Any) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def _lasts(self, trial: int, iteration: int, phase: str) -> float:
        drawn = random.Random(f"{self.seed} {trial} {iteration} {phase}")
        return SECONDS[phase] * drawn.uniform(1 - NOISE, 1 + NOISE)

    def _start(self) -> None:
        trial = next(self._next, None)
        if trial is not None:
            born = self.now
            self._after(START, partial(self._iterate, trial, 0, born))

    def _iterate(self, trial: int, iteration: int, born: float) -> None:
        if iteration == ITERATIONS:
            self.spans.append(self.now - born)
            self._start()
            return
        generate = self._lasts(trial, iteration, "generate")
        each = {role: self._lasts(trial, iteration, role) / CHUNKS for role in FROZEN}
        left_over = CHUNKS * len(FROZEN)

        def scored() -> None:
            nonlocal left_over
            left_over -= 1
            if not left_over:
                train = self._lasts(trial, iteration, "train")
                self._after(train, partial(self._iterate, trial, iteration + 1, born))

        for chunk in range(CHUNKS):
            done = generate * (chunk + 1) / CHUNKS if self.early else generate
            for role, seconds in each.items():
                asked = Request(
                    str(trial), 1, None, (seconds, scored), iteration, CHUNKS - 1 - chunk
                )
                self._after(done, partial(self._ask, trial, role, asked))

    def _ask(self, trial: int, role: str, asked: Request[Any]) -> None:
        # A role of the trial's own has a queue that nobody else asks.
        server = role if role in self.services else f"{role} {trial}"
        self._queues[server].put(asked)
        self._serve(server)

    def _serve(self, server: str) -> None:
        device = self._device.get(server, server)
        if device in self._busy:
            return
        for request in self._queues[server].take():
            self._busy.add(device)
            seconds, answer = request.call
            self._after(seconds, partial(self._served, server, answer))

    def _served(self, server: str, answer: Any) -> None:
        self._busy.discard(self._device.get(server, server))
        answer()
        # Whoever shares the device comes first, so that they take turns.
        for other in [*(name for name in self._device if name != server), server]:
            self._serve(other)


def config(shared: bool, **more: Any) -> TrialConfig:
    """The default template, split."""
    roles = {f"resources.roles.{role}.placement": "shared" for role in FROZEN} if shared else {}
    base = {"resources.layout": "split", "data.task": "builtin:reviews"}
    return apply(TrialConfig(), {**base, **roles, **more})


def bills(
    nodes: Sequence[Node], gpus: float, turn: int, repeats: int, early: bool = True
) -> dict[str, Any]:
    """Bills with and without sharing where a service has ``gpus`` GPUs."""
    more = {f"resources.roles.{role}.gpus": gpus for role in FROZEN}
    with_it, without = config(True, **more), config(False)
    services = {shared.role: shared.plan for shared in shared_roles(with_it)}
    assert all(assign(plan, nodes) for plan in services.values())
    found: dict[str, Any] = {"ours": [], "theirs": []}
    for seed in range(repeats):
        ours = Simulation(plan_trial(with_it), services, nodes, turn, seed, early)
        theirs = Simulation(plan_trial(without), {}, nodes, turn, seed, early)
        found["ours"].append(ours.run())
        found["theirs"].append(theirs.run())
    found["concurrent"] = [ours.at_once, theirs.at_once]
    found["hours"] = [round(ours.now / 3600, 1), round(theirs.now / 3600, 1)]
    slower = statistics.fmean(ours.spans) / statistics.fmean(theirs.spans)
    return {**found, "trial_slower": round(slower, 3)}


def ratio(found: Mapping[str, Any]) -> float:
    return round(statistics.median(found["theirs"]) / statistics.median(found["ours"]), 3)


def memory(shared: bool) -> dict[str, float]:
    """Most memory of a sweep of 3 real trials at once, in MB, by what the processes are for."""
    from rich.console import Console

    from sweeps import Sweep

    roles = {role: {"placement": "shared"} for role in FROZEN} if shared else {}
    values = {
        "base": {
            "extends": "tiny", "budget": {"iterations": 3}, "eval": {"every_iterations": 3},
            "resources": {"layout": "split", "roles": roles},
        },
        "space": {"ppo.kl.coef": {"float": [0.01, 0.2]}},
        "search": {"trials": 3, "max_concurrent": 3},
        "scheduler": {"kind": "none"},
        "selection": {"test_prompts": 0},
        "cluster": {"rehearse": {"nodes": 2, "gpus": 8, "cpus": 128, "memory_gb": 1024}},
    }  # fmt: skip
    most: dict[str, float] = {"roles": 0.0, "processes": 0}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            sizes = list(_sizes())
            if sum(sizes) > most["roles"]:
                most.update(roles=sum(sizes), processes=len(sizes))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    with tempfile.TemporaryDirectory() as folder:
        Sweep.from_dict(values).run(Path(folder) / "run", Console(file=io.StringIO()))
    over.set()
    thread.join()
    return most


def _sizes() -> Any:
    """Memory of each role process below this one, in MB."""
    for process in psutil.Process().children(recursive=True):
        try:
            # Ray names a process by what it does; an actor is seen once it has one.
            if any("RoleActor" in p or "ServiceActor" in p for p in process.cmdline()):
                yield process.memory_full_info().pss / 1e6
        except psutil.Error:
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    start, repeats = time.perf_counter(), 3 if args.quick else 15
    turn = ServicesConfig().turn
    main_case = bills(NODES, 1.0, turn, repeats)
    cases = {
        "one_chunk_a_turn": bills(NODES, 1.0, 1, repeats),
        "half_a_gpu_each": bills(NODES, 0.5, turn, repeats),
        "a_quarter_each": bills(NODES, 0.25, turn, repeats),
        "eight_at_once": bills(ROOMY, 1.0, turn, repeats),
        "scored_when_all_is_sampled": bills(NODES, 1.0, turn, repeats, early=False),
        "eight_at_once_when_all_is_sampled": bills(ROOMY, 1.0, turn, repeats, early=False),
    }
    resident = None
    if not args.quick:
        resident = {name: memory(name == "shared") for name in ("shared", "private")}
    print(
        report(
            "shared_roles", main_case["ours"], main_case["theirs"], TARGET, "GPU s",
            modelled="the clock: SECONDS of each phase of an iteration, side by side with a real queue",
            seconds=SECONDS, trials=TRIALS, iterations=ITERATIONS, noise=NOISE,
            **{k: main_case[k] for k in ("concurrent", "hours", "trial_slower")},
            ratios={name: ratio(case) for name, case in cases.items()},
            slower={name: case["trial_slower"] for name, case in cases.items()},
            at_once={name: case["concurrent"] for name, case in cases.items()},
            measured_memory_mb=resident, wall=round(time.perf_counter() - start, 1),
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
