"""Ray puts the bundles of a plan where the plan says, and is asked for nodes beforehand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from rlhf_core.config import TrialConfig, apply
from rlhf_core.runtime.placement import Node, PlacementPlan, assign, group_request, plan_trial
from sweeps.config import ClusterConfig
from sweeps.tuning import cluster

pytestmark = pytest.mark.ray
ZONE = "ray.io/availability-zone"
LABELS = [{ZONE: "a", "kind": "cpu"}, {ZONE: "b", "kind": "gpu"}, {ZONE: "b", "kind": "gpu"}]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Three logical nodes in two zones; connected."""
    shape = {
        "nodes": 3,
        "cpus": 20,
        "gpus": 3,
        "memory_gb": 192,
        "labels": LABELS,
        "custom": {"fast": 2},
    }
    with cluster.running(ClusterConfig(rehearse=shape), store_gb=0.05) as found:
        yield found


def plan(**values: Any) -> PlacementPlan:
    resources = {f"resources.{key}": value for key, value in values.items()}
    return plan_trial(apply(TrialConfig(), {"resources.layout": "split", **resources}))


def placed(chosen: PlacementPlan, nodes: list[Node]) -> list[int]:
    """Positions of the nodes that Ray gave the bundles."""
    import ray
    from ray.util.placement_group import (
        placement_group,
        placement_group_table,
        remove_placement_group,
    )

    group = placement_group(**group_request(chosen))
    try:
        ray.get(group.ready(), timeout=20)
        table = placement_group_table(group)["bundles_to_node_id"]
    finally:
        remove_placement_group(group)
    ids = [getattr(node, "id", "") for node in nodes]
    return [ids.index(table[index]) for index in range(len(chosen.bundles))]


# What a trial asks for, and the positions of nodes it may come to.
CASES: list[tuple[dict[str, Any], set[int]]] = [
    ({"affinity": "zone"}, {1, 2}),
    ({"labels": {"kind": "gpu"}}, {1, 2}),
    ({"labels": {ZONE: ["a", "b"]}, "roles.critic.labels": {"kind": "!cpu"}}, {0, 1, 2}),
    ({"layout": "colocated", "labels": {ZONE: "!b"}}, {0}),
    ({"affinity": "node", "roles.reward.custom": {"fast": 1}}, {0, 1, 2}),
]


def test_bundles_lie_where_the_plan_allows(nodes: list[Node]) -> None:
    assert [node.labels for node in nodes] == LABELS
    assert [dict(node.custom) for node in nodes] == [{"fast": 2.0}] * 3
    assert [round(node.store_gb, 2) for node in nodes] == [0.3] * 3
    assert cluster.free_nodes()[0].gpus == 3
    for values, allowed in CASES:
        chosen = plan(**values)
        assert assign(chosen, nodes) is not None
        found = placed(chosen, nodes)
        assert set(found) <= allowed, values
        if "roles.critic.labels" in values:
            assert all(found[worker.bundle] != 0 for worker in chosen.group("critic"))
        if chosen.affinity == "node":
            trained = [*chosen.group("learner"), *chosen.group("rollout")]
            assert len({found[worker.bundle] for worker in trained}) == 1


def test_nodes_are_asked_for_and_the_request_is_taken_back_on_errors(nodes: list[Node]) -> None:
    from ray.experimental.internal_kv import _internal_kv_get

    def asked() -> bytes:
        return bytes(_internal_kv_get("autoscaler_resource_request") or b"")

    request = group_request(plan(labels={"kind": "gpu"}))
    during = []
    with contextlib.suppress(RuntimeError), cluster.prewarmed([request] * 2):
        during.append(asked().count(b'"GPU"'))
        raise RuntimeError
    assert during == [12]
    assert b"GPU" not in asked()


@pytest.mark.long
def test_placement_groups_of_a_live_cluster_are_drawn(nodes: list[Node]) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    here = placement_group([{"memory": 10**9, "fast": 1, "CPU": 2}], name="here")
    never = placement_group([{"GPU": 50}], name="never")
    ray.get(here.ready(), timeout=20)
    placed_groups, waiting = cluster.groups()
    for group in (here, never):
        remove_placement_group(group)
    assert placed_groups["here"]["bundles"][0]["owner"] == "2 CPU, 1 GB memory, 1 fast"
    assert waiting == {"never": "1 bundle (50 GPU)"}
