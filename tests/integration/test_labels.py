"""Ray puts the bundles of a plan where the plan says: labels, zones, shares of one device, prewarming."""

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


def test_nodes_are_known_with_labels_custom_resources_and_store(nodes: list[Node]) -> None:
    assert [node.labels for node in nodes] == LABELS
    assert [dict(node.custom) for node in nodes] == [{"fast": 2.0}] * 3
    assert [round(node.store_gb, 2) for node in nodes] == [0.3] * 3
    assert cluster.free_nodes()[0].gpus == 3


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({"affinity": "zone"}, {1, 2}),
        ({"labels": {"kind": "gpu"}}, {1, 2}),
        ({"labels": {ZONE: ["a", "b"]}, "roles.critic.labels": {"kind": "!cpu"}}, {0, 1, 2}),
        ({"layout": "colocated", "labels": {ZONE: "!b"}}, {0}),
        ({"affinity": "node", "roles.reward.custom": {"fast": 1}}, {0, 1, 2}),
    ],
)
def test_bundles_lie_where_the_plan_allows(
    nodes: list[Node], values: dict[str, Any], allowed: set[int]
) -> None:
    chosen = plan(**values)
    assert assign(chosen, nodes) is not None
    found = placed(chosen, nodes)
    assert set(found) <= allowed
    critic = next(w.bundle for w in chosen.workers if w.name == "critic")
    if "roles.critic.labels" in values:
        assert found[critic] != 0
    together = {found[w.bundle] for w in chosen.workers if w.name in ("learner", "rollout")}
    assert len(together) == 1 or chosen.affinity != "node"


def test_workers_of_one_bundle_get_one_device(nodes: list[Node]) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    chosen = plan(layout="colocated")
    group = placement_group(**group_request(chosen))
    ray.get(group.ready(), timeout=20)

    @ray.remote
    def device() -> tuple[str, list[str]]:
        context = ray.get_runtime_context()
        return context.get_node_id(), context.get_accelerator_ids()["GPU"]

    held = [
        device.options(
            num_cpus=chosen.share(worker).cpus,
            num_gpus=chosen.share(worker).gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, worker.bundle),
        ).remote()
        for worker in chosen.workers
    ]
    found = ray.get(held, timeout=60)
    remove_placement_group(group)
    devices: dict[int, set[tuple[str, ...]]] = {1: set(), 2: set()}
    for worker, (node, gpus) in zip(chosen.workers, found, strict=True):
        devices[worker.bundle].add((node, *gpus))
    assert [len(places) for places in devices.values()] == [1, 1]
    assert devices[1] != devices[2]


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


def test_placement_groups_of_a_live_cluster_are_drawn(nodes: list[Node]) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    here = placement_group([{"CPU": 2, "GPU": 1}], name="here")
    never = placement_group([{"GPU": 50}], name="never")
    ray.get(here.ready(), timeout=20)
    placed_groups, waiting = cluster.groups()
    for group in (here, never):
        remove_placement_group(group)
    assert placed_groups["here"]["bundles"][0]["owner"] == "2 CPU, 1 GPU"
    assert waiting == {"never": "1 bundles (50 GPU)"}
