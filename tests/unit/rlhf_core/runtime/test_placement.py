"""Placement: pure plans, and whether nodes can hold them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.config import TrialConfig, apply
from rlhf_core.runtime.placement import (
    EPS,
    Bundle,
    Node,
    PlacementPlan,
    assign,
    plan_placement,
    shortfall,
    stranded_gpus,
    trials_at_once,
)


def _plan(layout: str = "split", **resources: object) -> PlacementPlan:
    values = {f"resources.{key}": value for key, value in resources.items()}
    config = apply(TrialConfig(), {"resources.layout": layout, **values})
    return plan_placement(config.resources)


def _bundles(*sizes: tuple[float, float, float], strategy: str = "PACK") -> PlacementPlan:
    bundles = tuple(Bundle(f"critic {i}", *size) for i, size in enumerate(sizes))
    return PlacementPlan("split", strategy, bundles, ())


def _node(cpus: float, gpus: float, memory_gb: float, name: str = "node") -> Node:
    return Node(name, cpus, gpus, memory_gb)


def test_the_split_plan_is_the_published_template() -> None:
    plan = _plan()
    assert [(b.owner, b.cpus, b.gpus, b.memory_gb) for b in plan.bundles] == [
        ("head", 0.1, 0.0, 0.0),
        ("rollout 0", 4.0, 0.5, 16.0),
        ("rollout 1", 4.0, 0.5, 16.0),
        ("learner 0", 4.0, 1.0, 32.0),
        ("critic 0", 2.0, 1.0, 32.0),
        ("reference 0", 2.0, 1.0, 32.0),
        ("reward 0", 2.0, 1.0, 32.0),
    ]
    assert plan.total("gpus") == 5.0
    assert plan.total("cpus") == pytest.approx(18.1)
    assert plan.total("memory_gb") == 160.0
    assert [w.bundle for w in plan.workers] == [1, 2, 3, 4, 5, 6]
    assert [w.index for w in plan.group("rollout")] == [0, 1]
    assert all(len(w.roles) == 1 for w in plan.workers)


def test_the_fused_plan_is_one_process_with_every_role() -> None:
    plan = _plan("fused")
    (bundle,) = plan.bundles
    (worker,) = plan.workers
    assert (bundle.cpus, bundle.gpus, bundle.memory_gb) == (4.0, 1.0, 32.0)
    assert worker.roles == ("rollout", "learner", "critic", "reference", "reward")
    assert plan.group("critic") == plan.group("rollout") == (worker,)


def test_without_a_critic_none_is_placed() -> None:
    resources = apply(TrialConfig(), {"resources.layout": "split"}).resources
    plan = plan_placement(resources, critic=False)
    assert len(plan.bundles) == 6
    assert plan.group("critic") == ()
    fused = plan_placement(TrialConfig().resources, critic=False)
    assert "critic" not in fused.workers[0].roles


def test_the_ratio_replaces_cpus_of_gpu_bundles_only() -> None:
    plan = _plan(cpus_per_gpu=10.0, **{"roles.reward.gpus": 0})
    cpus = {b.owner: b.cpus for b in plan.bundles}
    assert cpus == {
        "head": 0.1, "rollout 0": 5.0, "rollout 1": 5.0, "learner 0": 10.0, "critic 0": 10.0,
        "reference 0": 10.0, "reward 0": 2.0,
    }  # fmt: skip
    assert _plan("fused", cpus_per_gpu=8.0).bundles[0].cpus == 8.0
    assert _plan("fused", cpus_per_gpu=8.0, **{"roles.fused.gpus": 0}).bundles[0].cpus == 4.0


def test_as_dict_is_json_with_an_index_for_every_bundle() -> None:
    record = _plan(strategy="SPREAD").as_dict()
    assert json.loads(json.dumps(record)) == record
    assert [b["index"] for b in record["bundles"]] == list(range(7))
    assert record["workers"][2] == {
        "name": "learner",
        "roles": ["learner"],
        "index": 0,
        "bundle": 3,
    }
    assert record["strategy"] == "SPREAD"


def test_a_bundle_too_large_names_bundle_resource_amount_and_closest_node() -> None:
    nodes = [_node(64, 0, 500, "cpu box"), _node(3, 8, 500, "gpu box")]
    line = shortfall(_plan(), nodes)
    assert line == (
        "placement: no node can hold bundle 1 (rollout 0: 4 CPUs, 0.5 GPUs, 16 GB memory); the "
        "closest, gpu box, lacks 1 CPUs; lower resources.roles.rollout or resources.cpus_per_gpu, "
        "or add a larger node"
    )


def test_every_lacking_resource_is_named() -> None:
    line = shortfall(_plan("fused"), [_node(1, 0, 8)])
    assert line is not None
    assert "lacks 3 CPUs and 1 GPUs and 24 GB memory" in line


def test_the_remedy_fits_the_bundle() -> None:
    line = shortfall(_plan(head_cpus=99.0), [_node(32, 8, 500)])
    assert line is not None
    assert "bundle 0 (head: 99 CPUs)" in line
    assert "lower resources.head_cpus, or" in line
    line = shortfall(_plan("fused"), [_node(64, 0, 500)])
    assert line is not None
    assert "cpus_per_gpu" not in line


def test_no_nodes_and_enough_nodes() -> None:
    assert "there are no nodes" in str(shortfall(_plan(), []))
    assert shortfall(_plan(), [_node(20, 5, 160)]) is None


def test_a_sum_too_big_though_each_bundle_fits() -> None:
    line = shortfall(_plan(), [_node(32, 4, 500), _node(32, 0.5, 500)])
    assert line is not None
    assert "7 bundles with 18.1 CPUs, 5 GPUs, 160 GB memory do not fit together on 2 nodes" in line
    assert "with 64 CPUs, 4.5 GPUs, 1000 GB memory (strategy PACK)" in line


def test_enough_in_sum_but_in_pieces() -> None:
    plan = _bundles((1, 1, 1), (1, 1, 1))
    assert shortfall(plan, [_node(4, 1.5, 4), _node(4, 0.5, 4)]) is not None
    assert shortfall(plan, [_node(4, 1.5, 4), _node(4, 1, 4)]) is None


def test_strict_pack_needs_one_node() -> None:
    nodes = [_node(16, 4, 128), _node(16, 4, 128)]
    assert shortfall(_plan(), nodes) is None
    line = shortfall(_plan(strategy="STRICT_PACK"), nodes)
    assert line is not None
    assert "strategy STRICT_PACK" in line
    place = assign(_plan(strategy="STRICT_PACK"), [(1, 0, 1), (20, 5, 160)])
    assert place == [1] * 7


def test_strict_spread_needs_a_node_for_every_bundle() -> None:
    node = _node(64, 8, 500)
    assert shortfall(_plan(strategy="STRICT_SPREAD"), [node] * 6) is not None
    place = assign(_plan(strategy="STRICT_SPREAD"), [(64.0, 8.0, 500.0)] * 7)
    assert place is not None
    assert sorted(place) == list(range(7))
    assert shortfall(_plan(strategy="SPREAD"), [node]) is None


def test_trials_at_once_counts_whole_trials() -> None:
    plan = _plan()
    assert trials_at_once(plan, [_node(18, 5, 160)]) == 0
    assert trials_at_once(plan, [_node(19, 5, 160)]) == 1
    assert trials_at_once(plan, [_node(40, 11, 400)]) == 2
    assert trials_at_once(_bundles((1, 0, 0)), [_node(100, 0, 0)], at_most=7) == 7


def test_a_ratio_strands_gpus() -> None:
    node = _node(64, 8, 512)
    assert stranded_gpus(_plan("fused", cpus_per_gpu=8.0), [node]) == 0
    assert stranded_gpus(_plan("fused", cpus_per_gpu=12.0), [node]) == 3
    # More trials than the default bound of trials_at_once.
    assert stranded_gpus(_plan("fused"), [node] * 20) == 0
    assert stranded_gpus(_bundles((1, 0, 0)), [node]) == 8


def test_a_large_plan_is_decided_quickly() -> None:
    plan = _plan(**{"roles.rollout.workers": 200})
    nodes = [_node(64, 8, 512, f"n{i}") for i in range(24)]
    assert shortfall(plan, nodes) is None
    short = [_node(64, 8, 512, f"n{i}") for i in range(12)]
    assert shortfall(plan, short) is not None
    # Odd sizes: the sum fits, the pieces do not.
    odd = _bundles(*[(1, 0.7, 1)] * 24)
    assert assign(odd, [(64.0, 1.0, 64.0)] * 20) is None


amounts = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0])
sizes = st.tuples(amounts, amounts, amounts)
rooms = st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 3.0])] * 3)
strategies = st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])


def _allowed(plan: PlacementPlan, free: Sequence[tuple[float, ...]], place: Sequence[int]) -> bool:
    if plan.strategy == "STRICT_PACK" and len(set(place)) > 1:
        return False
    if plan.strategy == "STRICT_SPREAD" and len(set(place)) < len(place):
        return False
    left = [list(room) for room in free]
    for bundle, node in zip(plan.bundles, place, strict=True):
        for i, amount in enumerate((bundle.cpus, bundle.gpus, bundle.memory_gb)):
            left[node][i] -= amount
    return all(amount >= -EPS for room in left for amount in room)


@settings(max_examples=200, deadline=None)
@given(st.lists(sizes, min_size=1, max_size=5), st.lists(rooms, min_size=1, max_size=4), strategies)
def test_assign_never_overbooks_and_agrees_with_brute_force(
    need: list[tuple[float, float, float]],
    free: list[tuple[float, float, float]],
    strategy: str,
) -> None:
    plan = _bundles(*need, strategy=strategy)
    place = assign(plan, free)
    possible = any(
        _allowed(plan, free, p) for p in itertools.product(range(len(free)), repeat=len(need))
    )
    assert (place is not None) == possible
    if place is not None:
        assert _allowed(plan, free, place)
