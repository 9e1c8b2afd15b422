"""Trials whose processes and nodes die, and what they leave behind."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from curves import curve
from sweep_runner import Runner

import analysis

pytestmark = [pytest.mark.ray, pytest.mark.long]
TRIALS = 50
NODE = {"num_cpus": 16, "num_gpus": 3, "memory": 256 * 10**9, "object_store_memory": 120 * 10**6}
BASE: dict[str, Any] = {
    "rollout": {"prompts_per_iteration": 16, "max_new_tokens": 12, "chunk_size": 4},
    "eval": {"prompts": 8, "every_iterations": 4},
    "budget": {"iterations": 8},
    "checkpoint": {"every_iterations": 1},
    "resources": {"layout": "split"},
}
LEAN: dict[str, Any] = {
    **BASE,
    "budget": {"iterations": 1},
    "ppo": {"advantage": "reinforce", "kl": {"coef": 0.0, "measure": False}},
    "resources": {"layout": "split", "roles": {"rollout": {"workers": 1}}},
    "reward": {"workers": 0},
}


def test_a_result_that_nobody_received_is_told_again(
    runner: Any, builtin_task: Path, tmp_path: Path
) -> None:
    """Its process died between the checkpoint of an iteration and the result."""
    base = {**BASE, "budget": {"iterations": 3}, "resources": {"layout": "fused"}}
    files = []
    for program in ("sweeps.programs.ppo:PPOProgram", "sweep_helpers:UnheardProgram"):
        out = tmp_path / program.rpartition(":")[2]
        values = {"extends": "tiny", **base}
        runner.run({"program": program, "base": values, "search": {"trials": 1}}, out)
        files.append(out / "trials/t0000/metrics.jsonl")
    assert "retried" in analysis.load(out).events["state"].tolist()
    assert curve(files[1]) == curve(files[0])
    assert list(curve(files[1])) == [0, 1, 2, 3]
    assert files[1].read_text().count("\n") == 4


def ray_processes(name: str) -> list[psutil.Process]:
    """Processes of this test that bear ``name`` in their command line."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if line.startswith("ray::") and name in line:
            found.append(process)
    return found


@pytest.mark.timeout(1800)
def test_fifty_trials_of_which_many_fail_leave_nothing(runner: Any, tmp_path: Path) -> None:
    """In the trial's start, in a step, by the death of a role process or of the coordinator."""
    import ray
    from ray._private.state import actors, available_resources_per_node

    out = tmp_path / "run"
    runner.run(
        {
            "base": LEAN,
            "space": {
                # In layout fused a function that ends its process ends the coordinator's.
                "reward.function": {
                    "choice": [f"sweep_helpers:{name}" for name in ("brevity", "broken", "dies")]
                },
                "resources.layout": {"choice": ["split", "fused"]},
                "model.device": {"choice": ["cpu", "cuda"]},
            },
            "search": {
                "trials": TRIALS,
                "sampler": "random",
                "points": [
                    {"reward.function": "sweep_helpers:brevity", "model.device": "cpu"},
                ],
            },
            "budget": {"retries": 1},
        },
        out,
    )
    sweep = analysis.load(out)
    assert len(sweep.trials) == TRIALS
    outcomes = set(sweep.trials["outcome"])
    assert outcomes == {"completed", "failed", "lost"}
    assert "warning" not in sweep.events
    assert ray_processes("RoleActor") + ray_processes("Trainable") == []
    ray.init(address=runner.address, log_to_driver=False, configure_logging=False)
    try:
        alive = [a for a in actors().values() if a["State"] != "DEAD"]
        assert alive == []
        for node in ray.nodes():
            free = available_resources_per_node()[node["NodeID"]]
            for name in ("CPU", "GPU", "memory"):
                assert free[name] == node["Resources"][name]
    finally:
        ray.shutdown()


def test_a_rollout_that_is_alone_dies_while_the_learner_is_ahead(
    runner: Any, builtin_task: Path, tmp_path: Path
) -> None:
    """With batches sampled ahead and responses in parts; the curve is that of a trial in one process."""
    base = {**LEAN, "budget": {"iterations": 6}, "eval": {"prompts": 4, "every_iterations": 6}}
    base |= {"sync": {"mode": "async"}}
    base["rollout"] = {**BASE["rollout"], "partial_tokens": 4}

    def kill(placement: dict[str, Any]) -> None:
        (pid,) = (w["pid"] for w in placement["workers"] if "rollout" in w["roles"])
        psutil.Process(pid).kill()

    alone, out = tmp_path / "alone", tmp_path / "run"
    search = {"trials": 1}
    runner.run({"base": {**base, "resources": {"layout": "fused"}}, "search": search}, alone)
    thread = disturb(out, 2, kill)
    runner.run({"base": base, "search": search}, out)
    thread.join()
    assert curve(out / "trials/t0000/metrics.jsonl") == curve(alone / "trials/t0000/metrics.jsonl")
    sweep = analysis.load(out)
    assert "retried" not in sweep.events["state"].tolist()
    assert sweep.iterations["runtime/replaced"].sum() == 1
    assert sweep.iterations["rollout/continued_share"].max() > 0


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster of a head without room for roles' GPUs and three nodes, one to lose."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - Ray spells it so
    head = {**NODE, "num_gpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**NODE)
    cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def undisturbed(
    nodes: Any, builtin_task: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, float]]:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    _run(nodes, out)
    return curve(out / "trials/t0000/metrics.jsonl")


def _run(nodes: Any, out: Path) -> None:
    Runner(nodes.address).run({"base": BASE, "search": {"trials": 1}}, out)


def disturb(out: Path, iteration: int, kill: Callable[[dict[str, Any]], None]) -> threading.Thread:
    """Calls ``kill`` with the placement once the trial has come to ``iteration``."""

    def watch() -> None:
        metrics, deadline = out / "trials/t0000/metrics.jsonl", time.monotonic() + 900
        while time.monotonic() < deadline:
            if metrics.exists() and metrics.read_text().count("\n") > iteration:
                kill(json.loads((out / "trials/t0000/placement.json").read_text()))
                return
            time.sleep(0.01)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "role", ["rollout", "learner", "critic", "reference", "reward", "coordinator"]
)
def test_a_killed_process_does_not_show_in_the_curve(
    nodes: Any, undisturbed: dict[int, dict[str, float]], tmp_path: Path, role: str
) -> None:
    chance = random.Random(role)

    def kill(placement: dict[str, Any]) -> None:
        time.sleep(chance.uniform(0, 0.5))
        pids = [w["pid"] for w in placement["workers"] if role in w["roles"]]
        if role == "coordinator":
            pids = [process.pid for process in ray_processes("Trainable")]
        psutil.Process(chance.choice(pids)).kill()

    out = tmp_path / "run"
    thread = disturb(out, chance.randint(1, 4), kill)
    _run(nodes, out)
    thread.join()
    assert curve(out / "trials/t0000/metrics.jsonl") == undisturbed
    sweep = analysis.load(out)
    assert sweep.trials["outcome"].tolist() == ["completed"]
    replaced = role in ("rollout", "reference", "reward")
    assert ("retried" in sweep.events["state"].tolist()) == (not replaced)
    if replaced:
        assert sweep.iterations["runtime/replaced"].sum() == 1
        (event,) = sweep.events["event"].dropna()
        assert event.startswith(f"{role} ")


def test_a_lost_node_does_not_show_in_the_curve(
    nodes: Any, undisturbed: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    spare = nodes.add_node(**NODE)
    nodes.wait_for_nodes()

    def kill(placement: dict[str, Any]) -> None:
        used = {bundle["node"] for bundle in placement["bundles"]}
        lost = next(n for n in nodes.worker_nodes if n is not spare and n.node_id in used)
        nodes.remove_node(lost, allow_graceful=False)

    out = tmp_path / "run"
    thread = disturb(out, 2, kill)
    _run(nodes, out)
    thread.join()
    assert len(nodes.worker_nodes) == 2
    assert curve(out / "trials/t0000/metrics.jsonl") == undisturbed
    assert analysis.load(out).trials["outcome"].tolist() == ["completed"]
