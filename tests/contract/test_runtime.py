"""One suite over every runtime and transport: local fused, local split, and Ray actors in a placement group."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import psutil
import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import prompts, settings, trial_config

from rlhf_core.config import TrialConfig, apply
from rlhf_core.errors import ConfigError, DivergedError, PlacementError, RlhfError
from rlhf_core.metrics import repeatable
from rlhf_core.models.weights import Bucket, checksum
from rlhf_core.roles.functions import RewardFunctionError
from rlhf_core.runtime.base import gather
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import (
    Bundle,
    PlacementPlan,
    WorkerPlace,
    plan_placement,
    plan_trial,
)
from rlhf_core.trial import PPOTrial
from rlhf_core.types import CallContext, Chunk, Experience, Prompt

# Kind of runtime, ranks of learner and critic, transport of weights.
KINDS = [
    ("fused", 1, "object_store"),
    ("split", 1, "collective"),
    ("split", 2, "collective"),
    pytest.param(("ray", 2, "collective"), marks=pytest.mark.ray),
]
ANY = CallContext("a")


@dataclass
class Started:
    """A runtime that has just run a trial.

    Attributes:
        kind: fused, split or ray.
        ranks: Ranks of learner and critic.
        config: The trial.
        plan: Its placement.
        runtime: Still open.
        metrics: What equal seeds repeat, of every iteration.
    """

    kind: str
    ranks: int
    config: TrialConfig
    plan: PlacementPlan
    runtime: Any
    metrics: list[dict[str, float]]

    def group(self, role: str) -> Any:
        return self.runtime.group(role)

    def chunk(self, seed: int = 3) -> Chunk:
        return Chunk(0, prompts(self.config), seed)


def _config(zoo: Zoo, **values: Any) -> TrialConfig:
    return trial_config(
        zoo,
        **{
            "budget__iterations": 3, "sync__interval": 2, "model__device": "cpu",
            "reward__function": "core_rewards:length", "reward__workers": 2,
            "sync__bucket_mb": 0.02, "resources__max_replacements": 4, **values,
        },
    )  # fmt: skip


def _plan(kind: str, config: TrialConfig, ranks: int = 1) -> PlacementPlan:
    if kind == "fused":
        return plan_placement(config.resources)
    if kind == "apart":
        # Each role in places of its own.
        return plan_trial(apply(config, {"resources.layout": "split"}))
    # Few processes start quickly: two rollout workers, and one for each rank that hosts the other roles too.
    bundles = (
        Bundle("head", 0.1, 0.0, 0.0),
        *(Bundle(f"rollout {i}", 1.0, 0.5, 0.1) for i in range(2)),
        *(Bundle(f"others {i}", 2.0, 1.0, 0.0) for i in range(ranks)),
    )
    once = ("reference", "reward")
    workers = (
        *(WorkerPlace("rollout", ("rollout",), i, i + 1) for i in range(2)),
        *(
            WorkerPlace("others", ("learner", "critic", *(() if i else once)), i, i + 3)
            for i in range(ranks)
        ),
    )
    return PlacementPlan("split", "SPREAD", bundles, workers)


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

    from rlhf_core.runtime.placement import group_request

    group = placement_group(**group_request(plan))
    ray.get(group.ready(), timeout=60)
    try:
        yield group
    finally:
        remove_placement_group(group)


@pytest.fixture(scope="module", params=KINDS)
def started(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[Started]:
    """One runtime of each kind for all tests here; the last one closes it."""
    kind, ranks, transport = request.param
    config = _config(zoo, sync__transport=transport)
    plan = _plan(kind, config, ranks)
    with contextlib.ExitStack() as stack:
        if kind == "ray":
            request.getfixturevalue("joined")
            from rlhf_core.runtime.ray_runtime import RayRuntime

            runtime: Any = RayRuntime(config, plan, stack.enter_context(_group(plan)), warm=True)
        else:
            runtime = LocalRuntime(config, plan, warm=True)
        stack.callback(runtime.close)
        metrics = [repeatable(m.values) for m in PPOTrial(config, runtime, plan)]
        yield Started(kind, ranks, config, plan, runtime, metrics)


@pytest.fixture(scope="module")
def expected(zoo: Zoo) -> Callable[[int], list[dict[str, float]]]:
    """Metrics of the same trial in this process, by number of ranks."""

    @functools.cache
    def run(ranks: int) -> list[dict[str, float]]:
        config = _config(zoo, reward__workers=0)
        plan = _plan("fused" if ranks == 1 else "split", config, ranks)
        runtime = LocalRuntime(config, plan)
        try:
            return [repeatable(m.values) for m in PPOTrial(config, runtime, plan)]
        finally:
            runtime.close()

    return run


def test_metrics_are_those_of_one_process_bit_for_bit(
    started: Started, expected: Callable[[int], list[dict[str, float]]]
) -> None:
    want = expected(started.ranks)
    assert started.metrics == want
    assert len(want) == 4
    assert want[3]["staleness/max"] == 0
    assert want[2]["staleness/max"] == 1
    assert ["sync/bytes" in metrics for metrics in want] == [False, False, True, False]


@pytest.mark.parametrize(
    ("interval", "staleness", "partial", "largest"),
    [
        (1, None, None, [0, 1, 1, 1]),
        (2, 3, None, [0, 1, 2, 3]),
        (1, None, 2, [0, 1, 2]),
    ],
)
def test_sampling_ahead_gives_the_same_numbers_wherever_it_runs(
    zoo: Zoo, interval: int, staleness: int | None, partial: int | None, largest: list[int]
) -> None:
    """In one process the batches are sampled one after the other, with workers beside the updates."""
    config = _config(
        zoo, sync__mode="async", sync__interval=interval, sync__max_staleness=staleness,
        reward__workers=0, budget__iterations=4, rollout__partial_tokens=partial,
    )  # fmt: skip
    runs = []
    for kind in ("fused", "split", "apart"):
        plan = _plan(kind, config)
        trial = PPOTrial(config, LocalRuntime(config, plan), plan)
        runs.append([repeatable(m.values) for m in trial])
        trial.close()
    assert runs[0] == runs[1] == runs[2]
    found = [metrics["staleness/max"] for metrics in runs[0][1:]]
    # Later ones depend on how long the responses are where they are continued.
    assert found[: len(largest)] == largest


@pytest.mark.long
@pytest.mark.usefixtures("joined")
def test_sampling_ahead_gives_the_same_numbers_on_ray(zoo: Zoo) -> None:
    from rlhf_core.runtime.ray_runtime import RayRuntime

    config = _config(zoo, sync__mode="async", sync__interval=1, reward__workers=0)
    plan = _plan("ray", config, 2)
    alone = _plan("split", config, 2)
    want = [repeatable(m.values) for m in PPOTrial(config, LocalRuntime(config, alone), alone)]
    with _group(plan) as group:
        trial = PPOTrial(config, RayRuntime(config, plan, group), plan)
        try:
            assert [repeatable(m.values) for m in trial] == want
        finally:
            trial.close()


def test_ranks_change_nothing_but_last_bits(
    expected: Callable[[int], list[dict[str, float]]],
) -> None:
    """In the first iteration; later responses may part where a last bit decides a token."""
    one, two = expected(1)[1], expected(2)[1]
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert two[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


def test_every_role_has_its_workers(started: Started) -> None:
    for role in ("reference", "reward"):
        assert len(started.group(role).workers) == 1
    for role in ("learner", "critic"):
        assert len(started.group(role).workers) == started.ranks
    assert len(started.group("rollout").workers) == (1 if started.kind == "fused" else 2)


@pytest.mark.parametrize("transport", ["object_store", "collective"])
def test_weights_are_delivered_to_every_rollout_worker(
    started: Started, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        started.runtime, "config", apply(started.config, {"sync.transport": transport})
    )
    rollout, chunk = started.group("rollout"), started.chunk()
    learner = started.group("learner")
    shared = started.runtime.share(_experience(started, chunk))
    gather(learner.call_all("update", ANY, shared, settings([[0, 1]])))
    header, buckets = learner.call("publish", CallContext("a", 5)).result()
    assert header.version == 5
    assert len(buckets) > 2
    size = sum(piece.nbytes for bucket in buckets for piece in bucket.pieces)
    sent = started.runtime.deliver_weights(CallContext("a", 7)).result()
    assert sent == {"bytes": size}
    # What every rank of the learner samples with its own weights.
    want, *same = gather(learner.call_all("generate", CallContext("a", 7), chunk))
    for got in [*same, *gather(rollout.call_all("generate", CallContext("a", 7), chunk))]:
        assert torch.equal(got.versions_BT, 7 * got.response_mask_BT)
        assert torch.equal(got.tokens_BL, want.tokens_BL)
        assert torch.equal(got.logprobs_BT, want.logprobs_BT)
    for future in rollout.call_all("generate", CallContext("a", 6), chunk):
        with pytest.raises(RlhfError, match="have version 7, but 6 was expected"):
            future.result()


def _experience(started: Started, chunk: Chunk) -> Experience:
    """What the learner makes of a chunk, with advantages that move it."""
    rollout = started.group("learner").call("generate", ANY, chunk).result()
    ones_BT = rollout.response_mask_BT.float()
    return Experience(rollout, advantages_BT=ones_BT, returns_BT=ones_BT, values_BT=ones_BT)


def test_an_altered_delivery_is_refused_and_the_worker_waits_for_another(started: Started) -> None:
    context, rollout = CallContext("a", 8), started.group("rollout")
    header, buckets = started.group("learner").call("publish", context).result()
    buckets[1] = replace(buckets[1], pieces=[piece ^ 1 for piece in buckets[1].pieces])
    with pytest.raises(RlhfError, match="bucket 1 of version 8 arrived altered"):
        rollout.call("load_weights", context, header, buckets).result()
    with pytest.raises(RlhfError, match="delivery of weights broke off"):
        rollout.call("generate", ANY, started.chunk()).result()
    started.runtime.deliver_weights(context).result()
    assert rollout.call("generate", context, started.chunk()).result().size == 8


def test_chunks_go_to_whoever_is_free_and_come_back_in_order(started: Started) -> None:
    rollout, asked = started.group("rollout"), prompts(started.config)
    calls = [(ANY, (Chunk(i, (prompt,), i),)) for i, prompt in enumerate(asked)]
    for results in (
        rollout.map("generate", calls),
        rollout.map("generate", calls, ahead=3),
        gather(rollout.scatter("generate", calls)),
    ):
        lengths = [int(r.prompt_lengths_B[0]) for r in results]
        assert lengths == [len(prompt.tokens) for prompt in asked]
    assert rollout.map("generate", []) == []


def test_two_callers_of_one_group_are_accounted_separately(started: Started) -> None:
    group, chunk = started.group("rollout"), started.chunk()
    worker = group.workers[0]
    gather([group.call("generate", CallContext(c), chunk) for c in ("b", "c", "c")])
    b, c = worker.usage("b").result(), worker.usage("c").result()
    assert b.keys() == c.keys() == {"rollout"}
    assert b["rollout"] > 0
    assert c["rollout"] > 0
    # Asking for one neither takes from the other nor counts twice.
    assert worker.usage("b").result() == {}
    group.call("generate", CallContext("b"), chunk).result()
    assert worker.usage("c").result() == {}
    assert worker.usage("b").result()["rollout"] > 0
    assert worker.usage("nobody").result() == {}


def test_two_callers_get_what_each_would_get_alone(started: Started) -> None:
    calls = [
        (CallContext(caller), (started.chunk(seed),))
        for caller, seed in (("b", 1), ("c", 2), ("b", 1), ("c", 2))
    ]
    one, two, three, four = started.group("rollout").map("generate", calls, ahead=2)
    assert torch.equal(one.tokens_BL, three.tokens_BL)
    assert torch.equal(two.logprobs_BT, four.logprobs_BT)
    assert not torch.equal(one.tokens_BL, two.tokens_BL)


def test_a_warm_trial_is_a_cold_one_bit_for_bit(
    started: Started, expected: Callable[[int], list[dict[str, float]]], zoo: Zoo
) -> None:
    """Every option that a trial may change is another; then all is as it was, the first weights included."""
    other = _config(
        zoo, seed=7, sync__interval=1, rollout__temperature=0.7, rollout__max_new_tokens=6,
        optim__policy__lr=1e-3, ppo__gamma=0.9, sync__bucket_mb=0.01,
        model__reference=zoo.policies["Llama"], reward__function="core_rewards:vowels",
        sync__transport=started.config.sync.transport,
    )  # fmt: skip
    plan = _plan(started.kind, other, started.ranks)
    assert started.runtime.reset(other, plan, checks=True)
    warm = [repeatable(m.values) for m in PPOTrial(other, started.runtime, plan)]
    runtime = LocalRuntime(
        other, _plan("fused" if started.ranks == 1 else "split", other, started.ranks)
    )
    try:
        assert warm == [repeatable(m.values) for m in PPOTrial(other, runtime, runtime.plan)]
    finally:
        runtime.close()
    assert warm != started.metrics
    assert started.runtime.reset(started.config, started.plan)
    trial = PPOTrial(started.config, started.runtime, started.plan)
    assert [repeatable(m.values) for m in trial] == expected(started.ranks)


def test_other_places_are_another_runtime(started: Started) -> None:
    plan = replace(started.plan, strategy="STRICT_SPREAD")
    assert not started.runtime.reset(started.config, plan)


def test_a_rollout_takes_over_the_weights_of_another(started: Started) -> None:
    context, other = CallContext("a", 12), CallContext("a", 11)
    started.runtime.deliver_weights(context).result()
    first, chunk = started.group("rollout").workers[0], started.chunk()
    want = first.call("rollout", "generate", context, chunk).result()
    header, buckets = first.call("rollout", "publish", context).result()
    assert header.version == 12
    with pytest.raises(RlhfError, match="have version 12, but 11 was expected"):
        first.call("rollout", "publish", other).result()
    last = started.group("rollout").workers[-1]
    last.call("rollout", "load_weights", context, header, buckets).result()
    got = last.call("rollout", "generate", context, chunk).result()
    assert torch.equal(got.logprobs_BT, want.logprobs_BT)


def test_errors_raised_on_purpose_arrive_as_themselves(started: Started) -> None:
    rollout = started.group("rollout")
    long = Chunk(0, (Prompt("", (5,) * 200),), 0)
    with pytest.raises(ConfigError, match=r"exceed the 96 positions") as config_error:
        rollout.call("generate", ANY, long).result()
    assert type(config_error.value) is ConfigError
    assert len(config_error.value.problems) == 1
    batch = rollout.call("generate", ANY, Chunk(0, (Prompt("x", (5,)),), 0)).result()
    bad = (Prompt("x", (5,), {"bonus": "much"}),)
    with pytest.raises(RewardFunctionError, match="reward: core_rewards:length raised") as reward:
        started.group("reward").call("scores", ANY, batch, bad).result()
    assert type(reward.value) is RewardFunctionError
    header, buckets = started.group("learner").call("publish", CallContext("a", 9)).result()
    # Four bytes of ones are not a number.
    pieces = [[torch.full_like(piece, 255) for piece in bucket.pieces] for bucket in buckets]
    buckets = [Bucket(i, nan, checksum(nan)) for i, nan in enumerate(pieces)]
    gather(rollout.call_all("load_weights", CallContext("a", 9), header, buckets))
    with pytest.raises(DivergedError) as diverged:
        rollout.map("generate", [(ANY, (started.chunk(),))] * 3)
    assert type(diverged.value) is DivergedError
    assert diverged.value.role == "rollout"
    started.runtime.deliver_weights(CallContext("a", 10)).result()
    assert rollout.call("generate", ANY, started.chunk()).result().size == 8


def test_errors_of_others_keep_their_type(started: Started) -> None:
    group = started.group("reference")
    with pytest.raises(AttributeError) as attribute:
        group.call("no_such_method", ANY).result()
    assert type(attribute.value) is AttributeError
    with pytest.raises(TypeError) as argument:
        group.call("logprobs", ANY).result()
    assert type(argument.value) is TypeError


def test_a_role_that_is_hosted_elsewhere_is_refused(started: Started) -> None:
    worker = started.group("rollout").workers[0]
    if started.kind == "fused":
        assert worker is started.group("learner").workers[0]
        return
    with pytest.raises(RlhfError, match="this process hosts rollout, not 'learner'"):
        worker.call("learner", "publish", ANY).result()


@pytest.mark.ray
@pytest.mark.usefixtures("joined")
def test_a_group_of_another_plan_is_refused(zoo: Zoo) -> None:
    from rlhf_core.runtime.ray_runtime import RayRuntime

    config = _config(zoo)
    plan = PlacementPlan("fused", "PACK", (Bundle("fused", 1.0, 0.0, 0.0),), ())
    with (
        _group(plan) as group,
        pytest.raises(PlacementError, match="the group has 1 bundles, the plan 4"),
    ):
        RayRuntime(config, _plan("ray", config), group)


@pytest.mark.ray
@pytest.mark.usefixtures("joined")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the error is that CUDA is missing")
def test_a_failed_start_leaves_no_actor(zoo: Zoo) -> None:
    from rlhf_core.runtime.ray_runtime import RayRuntime

    config = _config(zoo, model__device="cuda")
    bundle, place = Bundle("fused", 1.0, 0.0, 0.0), WorkerPlace("trial", ("reward",), 0, 0)
    plan = PlacementPlan("fused", "PACK", (bundle,), (place,))
    before = set(_actors())
    with _group(plan) as group:
        with pytest.raises(ConfigError, match="needs a CUDA device"):
            RayRuntime(config, plan, group)
        _gone, alive = psutil.wait_procs(set(_actors()) - before, timeout=10)
        assert alive == []


def _below(process: psutil.Process, text: str) -> list[psutil.Process]:
    found = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(text in part for part in child.cmdline()):
                found.append(child)
    return found


def _lives(process: psutil.Process) -> bool:
    """A process that ended and is not yet reaped has given up its devices."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _actors() -> list[psutil.Process]:
    return _below(psutil.Process(), "ray::RoleActor")


def test_dead_workers_are_replaced_and_their_calls_repeated(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over both transports; the weights are those of the version that the dead one held."""
    if started.kind != "ray":
        assert started.runtime.metrics() == {}
        return
    from ray.exceptions import RayActorError

    group, chunk = started.group("rollout"), started.chunk()
    started.runtime.deliver_weights(CallContext("a", 13)).result()
    context = CallContext("a", 13)
    want = group.call("generate", context, chunk).result()
    pids = [w["pid"] for w in started.runtime.placement()["workers"]]
    psutil.Process(pids[0]).kill()
    # The learner no longer has these weights, the other rollout has.
    shared = started.runtime.share(_experience(started, chunk))
    gather(started.group("learner").call_all("update", ANY, shared, settings([[0, 1]])))
    for got in group.map("generate", [(context, (chunk,))] * 4):
        assert torch.equal(got.logprobs_BT, want.logprobs_BT)
    assert started.runtime.metrics() == {"runtime/replaced": 1.0}
    assert started.runtime.metrics() == {"runtime/replaced": 0.0}
    (event,) = started.runtime.events()
    assert event.startswith("rollout 0 was replaced: ")
    now = [w["pid"] for w in started.runtime.placement()["workers"]]
    assert now[0] != pids[0]
    assert now[1:] == pids[1:]
    # The next one dies in a delivery.
    psutil.Process(pids[1]).kill()
    started.runtime.deliver_weights(CallContext("a", 14)).result()
    one, two = gather(group.call_all("generate", CallContext("a", 14), chunk))
    assert torch.equal(one.logprobs_BT, two.logprobs_BT)
    assert not torch.equal(one.logprobs_BT, want.logprobs_BT)
    # Nobody holds what was delivered any more.
    stored = apply(started.config, {"sync.transport": "object_store"})
    monkeypatch.setattr(started.runtime, "config", stored)
    context = CallContext("a", 15)
    started.runtime.deliver_weights(context).result()
    want = group.call("generate", context, chunk).result()
    gather(started.group("learner").call_all("update", ANY, shared, settings([[0, 1]])))
    now = [w["pid"] for w in started.runtime.placement()["workers"]]
    for pid in now[:2]:
        psutil.Process(pid).kill()
    for got in gather(group.call_all("generate", context, chunk)):
        assert torch.equal(got.logprobs_BT, want.logprobs_BT)
    now = [w["pid"] for w in started.runtime.placement()["workers"]]
    # Those were the last ones that are replaced.
    psutil.Process(now[0]).kill()
    with pytest.raises(RayActorError):
        group.workers[0].call("rollout", "generate", ANY, chunk).result()


def test_close_leaves_no_process(started: Started) -> None:
    """The last one here. With Ray an actor has died before, which must not keep the others."""
    workers = []
    if started.kind == "ray":
        record = started.runtime.placement()
        assert [b["cpus"] for b in record["bundles"]] == [0.1, 1.0, 1.0, *[2.0] * started.ranks]
        assert len({b["node"] for b in record["bundles"]}) == 2
        assert [w["bundle"] for w in record["workers"]] == list(range(1, 3 + started.ranks))
        assert all(len(w["gpus"]) == 1 for w in record["workers"])
        workers = [psutil.Process(w["pid"]) for w in record["workers"][1:]]
    pools = [p for process in workers or [psutil.Process()] for p in _below(process, "spawn_main")]
    assert len(pools) == 2
    if workers:
        from ray.exceptions import RayActorError

        sampler = started.group("rollout").workers[1]
        batch = sampler.call("rollout", "generate", ANY, started.chunk())
        workers[-1].kill()
        # The other rank does not wait for its timeout, and the cause is what is raised.
        with pytest.raises(RayActorError):
            started.group("critic").together("values", ANY, batch.result()).result(timeout=60)
    started.runtime.close()
    # Those of the other node as well; the pools of a killed process end themselves.
    assert [process for process in workers if _lives(process)] == []
    assert psutil.wait_procs(pools, timeout=5)[1] == []
    started.runtime.close()
