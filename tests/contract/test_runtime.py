"""One suite over every runtime: local fused, local split, and Ray actors in a placement group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import prompts, trial_config

from rlhf_core.config import TrialConfig
from rlhf_core.errors import ConfigError, DivergedError, PlacementError, RlhfError
from rlhf_core.metrics import repeatable
from rlhf_core.roles.functions import RewardFunctionError
from rlhf_core.runtime.base import gather
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import PlacementPlan, plan_placement
from rlhf_core.trial import PPOTrial
from rlhf_core.types import CallContext, Chunk

KINDS = ["fused", "split", pytest.param("ray", marks=pytest.mark.ray)]
SMALL = {
    f"resources.roles.{role}.{what}": amount
    for role in ("rollout", "learner", "critic", "reference", "reward")
    for what, amount in (("cpus", 1.0), ("gpus", 0.5), ("memory_gb", 0.1))
}
Open = Callable[..., Any]


def _config(zoo: Zoo, kind: str, **values: Any) -> TrialConfig:
    layout = "fused" if kind == "fused" else "split"
    few = {"budget__iterations": 2, "resources__layout": layout, "model__device": "cpu"}
    return trial_config(zoo, **{**few, **SMALL, **values})


@pytest.fixture(scope="module")
def joined(ray_address: str) -> Iterator[None]:
    """This process, joined to the cluster of the tests."""
    import ray

    env = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    ray.init(
        address=ray_address, log_to_driver=False, logging_level="ERROR", runtime_env=env,
        namespace="contract",
    )  # fmt: skip
    yield
    ray.shutdown()


@contextlib.contextmanager
def _group(plan: PlacementPlan) -> Iterator[Any]:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    from rlhf_core.runtime.ray_runtime import bundle_resources

    group = placement_group([bundle_resources(b) for b in plan.bundles], strategy=plan.strategy)
    ray.get(group.ready(), timeout=60)
    try:
        yield group
    finally:
        remove_placement_group(group)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("joined")
    return str(request.param)


@pytest.fixture
def start(kind: str) -> Iterator[Open]:
    """Starts the runtime of a configuration; ended with the test."""
    with contextlib.ExitStack() as stack:

        def begin(config: TrialConfig) -> Any:
            plan = plan_placement(config.resources)
            if kind == "ray":
                from rlhf_core.runtime.ray_runtime import RayRuntime

                runtime: Any = RayRuntime(config, plan, stack.enter_context(_group(plan)))
            else:
                runtime = LocalRuntime(config, plan)
            stack.callback(runtime.close)
            return runtime

        yield begin


def _train(config: TrialConfig, runtime: Any) -> list[dict[str, float]]:
    trial = PPOTrial(config, runtime, plan_placement(config.resources))
    return [repeatable(m.values) for m in trial]


def test_metrics_are_those_of_one_process_bit_for_bit(zoo: Zoo, kind: str, start: Open) -> None:
    if kind == "fused":
        pytest.skip("it is the one that others are compared with")
    config = _config(zoo, kind, sync__interval=2, budget__iterations=3)
    alone = _config(zoo, "fused", sync__interval=2, budget__iterations=3)
    expected = _train(alone, LocalRuntime(alone, plan_placement(alone.resources)))
    assert _train(config, start(config)) == expected


def test_weights_are_delivered_to_every_rollout_worker(zoo: Zoo, kind: str, start: Open) -> None:
    config = _config(zoo, kind)
    runtime = start(config)
    learner, rollout = runtime.group("learner"), runtime.group("rollout")
    assert len(rollout.workers) == (1 if kind == "fused" else 2)
    chunk = Chunk(0, prompts(config), 3)
    before = gather(rollout.call_all("generate", CallContext("a", 0), chunk))
    # Another trial's weights, recognisable by what they sample.
    header, buckets = learner.call("publish", CallContext("a", 5)).result()
    assert header.version == 5
    for bucket in buckets:
        bucket.mul_(0.5)
    with pytest.raises(RlhfError, match="version 5 arrived altered"):
        rollout.call("load_weights", CallContext("a", 5), header, buckets).result()
    sent = runtime.deliver_weights(CallContext("a", 7)).result()
    assert sent["bytes"] == sum(bucket.nbytes for bucket in buckets)
    after = gather(rollout.call_all("generate", CallContext("a", 7), chunk))
    for one, two in zip(before, after, strict=True):
        assert two.versions_B.tolist() == [7] * two.size
        assert torch.equal(one.tokens_BL, two.tokens_BL)
    for future in rollout.call_all("generate", CallContext("a", 6), chunk):
        with pytest.raises(RlhfError, match="have version 7, but 6 was expected"):
            future.result()


def test_chunks_go_to_whoever_is_free_and_come_back_in_order(
    zoo: Zoo, kind: str, start: Open
) -> None:
    config = _config(zoo, kind)
    rollout = start(config).group("rollout")
    asked = prompts(config)
    chunks = [Chunk(i, (prompt,), i) for i, prompt in enumerate(asked)]
    calls = [(CallContext("a", 0), (chunk,)) for chunk in chunks]
    for results in (
        rollout.map("generate", calls),
        rollout.map("generate", calls, ahead=3),
        gather(rollout.scatter("generate", calls)),
    ):
        lengths = [int(r.prompt_lengths_B[0]) for r in results]
        assert lengths == [len(prompt.tokens) for prompt in asked]
    assert rollout.map("generate", []) == []


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ({"reward__function": "core_rewards:raises"}, RewardFunctionError, "raised KeyError"),
        ({"reward__function": "core_rewards:lenght"}, ConfigError, "did you mean 'length'"),
        ({"optim__policy__lr": 1.0, "optim__policy__max_grad_norm": None}, DivergedError, ""),
    ],
)
def test_errors_of_a_role_arrive_as_themselves(
    zoo: Zoo, kind: str, start: Open, values: dict[str, Any], error: type[Exception], says: str
) -> None:
    config = _config(zoo, kind, budget__iterations=40, **values)
    if error is DivergedError:
        _break_learner(config, start(config))
        return
    runtime = start(config)
    with pytest.raises(error, match=says) as caught:
        _train(config, runtime)
    assert type(caught.value) is error


def _break_learner(config: TrialConfig, runtime: Any) -> None:
    """Weights that are not finite, delivered as a learner would: the rollout names itself."""
    from rlhf_core.models.weights import Header, _checksum

    header, buckets = runtime.group("learner").call("publish", CallContext("a", 1)).result()
    buckets = [torch.full_like(bucket, float("nan")) for bucket in buckets]
    header = Header(1, header.layout, _checksum(buckets))
    rollout = runtime.group("rollout")
    rollout.call("load_weights", CallContext("a", 1), header, buckets).result()
    call = rollout.call("generate", CallContext("a", 1), Chunk(0, prompts(config), 0))
    with pytest.raises(DivergedError) as caught:
        call.result()
    assert type(caught.value) is DivergedError
    assert caught.value.role == "rollout"


def test_an_error_that_is_not_ours_keeps_its_type_too(zoo: Zoo, kind: str, start: Open) -> None:
    group = start(_config(zoo, kind)).group("reference")
    with pytest.raises(AttributeError) as caught:
        group.call("no_such_method", CallContext("a")).result()
    assert type(caught.value) is AttributeError
    with pytest.raises(TypeError) as other:
        group.call("logprobs", CallContext("a")).result()
    assert type(other.value) is TypeError


def test_a_role_that_is_hosted_elsewhere_is_refused(zoo: Zoo, kind: str, start: Open) -> None:
    if kind == "fused":
        pytest.skip("one process hosts all")
    worker = start(_config(zoo, kind)).group("critic").workers[0]
    with pytest.raises(RlhfError, match="this process hosts critic, not 'learner'"):
        worker.call("learner", "publish", CallContext("a")).result()


def test_two_callers_of_one_group_are_accounted_separately(
    zoo: Zoo, kind: str, start: Open
) -> None:
    config = _config(zoo, kind)
    group = start(config).group("rollout")
    worker, chunk = group.workers[0], Chunk(0, prompts(config), 0)
    futures = [group.call("generate", CallContext(c, 0), chunk) for c in ("a", "b", "b")]
    gather(futures)
    a, b = worker.usage("a").result(), worker.usage("b").result()
    assert a.keys() == b.keys() == {"rollout"}
    assert a["rollout"] > 0
    assert b["rollout"] > 0
    # Asking for one neither takes from the other nor counts twice.
    assert worker.usage("a").result() == {}
    group.call("generate", CallContext("a", 0), chunk).result()
    assert worker.usage("b").result() == {}
    assert worker.usage("a").result()["rollout"] > 0
    assert worker.usage("nobody").result() == {}


def test_two_callers_get_what_each_would_get_alone(zoo: Zoo, kind: str, start: Open) -> None:
    config = _config(zoo, kind)
    group = start(config).group("rollout")
    calls = [
        (CallContext(caller, 0), (Chunk(i, prompts(config), seed),))
        for i, (caller, seed) in enumerate((("a", 1), ("b", 2), ("a", 1), ("b", 2)))
    ]
    one, two, three, four = group.map("generate", calls, ahead=2)
    assert torch.equal(one.tokens_BL, three.tokens_BL)
    assert torch.equal(two.logprobs_BT, four.logprobs_BT)
    assert not torch.equal(one.tokens_BL, two.tokens_BL)


def test_close_leaves_no_process(zoo: Zoo, kind: str, start: Open) -> None:
    config = _config(zoo, kind, reward__workers=2, reward__function="core_rewards:process")
    runtime = start(config)
    (_, values) = _train(config, runtime)[:2]
    assert values["reward/proxy"] > 0
    pids = [
        worker.get("pid") for worker in getattr(runtime, "placement", dict)().get("workers", [])
    ]
    assert len(pids) == (6 if kind == "ray" else 0)
    below = [psutil.Process(pid) for pid in pids] or [psutil.Process()]
    pool = [
        child for process in below for child in process.children(recursive=True)
        if any("spawn_main" in part for part in child.cmdline())
    ]  # fmt: skip
    assert len(pool) == 2
    runtime.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    _gone, alive = psutil.wait_procs(pool, timeout=5)
    assert alive == []
    runtime.close()


@pytest.mark.ray
@pytest.mark.usefixtures("joined")
def test_actors_sit_in_their_bundles(zoo: Zoo) -> None:
    from rlhf_core.runtime.ray_runtime import RayRuntime

    config = _config(zoo, "ray", resources__cpus_per_gpu=3.0, resources__strategy="SPREAD")
    plan = plan_placement(config.resources)
    with _group(plan) as group:
        runtime = RayRuntime(config, plan, group)
        record = runtime.placement()
        runtime.close()
    assert [b["cpus"] for b in record["bundles"]] == [0.1] + [1.5] * 6
    nodes = {b["index"]: b["node"] for b in record["bundles"]}
    assert len(set(nodes.values())) == 2
    assert [w["bundle"] for w in record["workers"]] == [1, 2, 3, 4, 5, 6]
    assert all(len(w["gpus"]) == 1 for w in record["workers"])
    assert len({w["pid"] for w in record["workers"]}) == 6


@pytest.mark.ray
@pytest.mark.usefixtures("joined")
def test_a_failed_start_leaves_no_actor(zoo: Zoo) -> None:
    from ray.util.state import list_actors

    from rlhf_core.runtime.ray_runtime import RayRuntime

    config = _config(zoo, "ray", model__device="cuda")
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    plan = plan_placement(config.resources)
    with _group(plan) as group:
        with pytest.raises(Exception, match="needs a CUDA device"):
            RayRuntime(config, plan, group)
        alive = [a for a in list_actors() if a.state not in ("DEAD",)]
        assert alive == []


@pytest.mark.ray
@pytest.mark.usefixtures("joined")
def test_a_group_of_another_plan_is_refused(zoo: Zoo) -> None:
    from rlhf_core.runtime.ray_runtime import RayRuntime

    config = _config(zoo, "ray")
    plan = plan_placement(_config(zoo, "fused").resources)
    with (
        _group(plan) as group,
        pytest.raises(PlacementError, match="the group has 1 bundles, the plan 7"),
    ):
        RayRuntime(config, plan_placement(config.resources), group)


@pytest.mark.ray
@pytest.mark.usefixtures("joined")
def test_a_dead_actor_is_an_error_and_close_still_ends_the_others(zoo: Zoo) -> None:
    from ray.exceptions import RayActorError

    from rlhf_core.runtime.ray_runtime import RayRuntime

    config = _config(zoo, "ray")
    plan = plan_placement(config.resources)
    with _group(plan) as group:
        runtime = RayRuntime(config, plan, group)
        workers = runtime.placement()["workers"]
        critic = next(w for w in workers if w["name"] == "critic")
        psutil.Process(critic["pid"]).kill()
        with pytest.raises(RayActorError):
            _train(config, runtime)
        runtime.close()
    assert not any(psutil.pid_exists(w["pid"]) for w in workers)
