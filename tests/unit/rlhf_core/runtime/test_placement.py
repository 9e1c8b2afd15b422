"""Placement: pure plans, and whether nodes can hold them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.config import TrialConfig, apply
from rlhf_core.errors import ConfigError
from rlhf_core.runtime.placement import (
    Bundle,
    Node,
    NodeType,
    PlacementPlan,
    assign,
    find_shortfall,
    group_request,
    in_words,
    plan_placement,
    plan_trial,
    scarce,
    shortfall,
    stranded_gpus,
    trials_at_once,
    with_node_types,
)
from rlhf_core.runtime.placement.fit import search

EPS = 1e-9


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
        "share": {"cpus": 4.0, "gpus": 1.0, "memory_gb": 32.0, "custom": {}},
    }
    assert record["strategy"] == "SPREAD"


def test_a_bundle_too_large_names_bundle_resource_amount_and_closest_node() -> None:
    nodes = [_node(64, 0, 500, "cpu box"), _node(3, 8, 500, "gpu box")]
    line = shortfall(_plan(), nodes)
    assert line == (
        "placement: no node can hold bundle 1 (rollout 0: 4 CPUs, 0.5 GPUs, 16 GB memory); the "
        "closest, gpu box, lacks 1 CPU; lower resources.roles.rollout or resources.cpus_per_gpu, "
        "or add a larger node"
    )


def test_every_lacking_resource_is_named() -> None:
    line = shortfall(_plan("fused"), [_node(1, 0, 8)])
    assert line is not None
    assert "lacks 3 CPUs and 1 GPU and 24 GB memory" in line


def test_amounts_are_words_with_a_singular_and_no_long_tail() -> None:
    amounts = {"CPUs": 1.0, "GPUs": 0.0, "GB memory": 14.30642, "tpu": 4, "rare": 0.001}
    assert in_words(amounts) == "1 CPU, 14.31 GB memory, 4 tpu, 0.001 rare"
    assert in_words({"GPUs": 1, "GB memory": 1234567.5}, " and ") == "1 GPU and 1234567.5 GB memory"
    line = str(shortfall(_bundles((2, 1, 1), (2, 1, 1)), [_node(8, 1, 8)]))
    assert "do not fit together on 1 node with 8 CPUs, 1 GPU, 8 GB memory" in line


def test_cpus_that_lack_beside_the_others_have_options_that_lower_them() -> None:
    line = str(shortfall(_plan(), [_node(18, 8, 500)]))
    assert "beside the others bundle 0 (head: 0.1 CPUs) lacks 0.1 CPUs on the closest" in line
    assert line.endswith(
        "use fewer workers or smaller shares, or lower resources.cpus_per_gpu or resources.head_cpus"
    )
    line = str(shortfall(_plan(), [_node(64, 4, 500)]))
    assert line.endswith("; use fewer workers or smaller shares")


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
    assert "beside the others bundle" in line
    assert "lacks 0.5 GPUs on the closest, node" in line


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
    place = assign(_plan(strategy="STRICT_PACK"), [_node(1, 0, 1), _node(20, 5, 160)])
    assert place == [1] * 7


def test_strict_spread_needs_a_node_for_every_bundle() -> None:
    node = _node(64, 8, 500)
    assert shortfall(_plan(strategy="STRICT_SPREAD"), [node] * 6) is not None
    place = assign(_plan(strategy="STRICT_SPREAD"), [_node(64, 8, 500)] * 7)
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
    assert assign(odd, [_node(64, 1, 64)] * 20) is None


amounts = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0])
sizes = st.tuples(amounts, amounts, amounts)
rooms = st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 3.0])] * 3)
values = st.sampled_from(["a", "b", "!a"])
asked = st.one_of(st.just(()), st.tuples(st.tuples(st.just("zone"), values)))
zones = st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}])
strategies = st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])


def _allowed(plan: PlacementPlan, nodes: Sequence[Node], place: Sequence[int]) -> bool:
    if plan.strategy == "STRICT_PACK" and len(set(place)) > 1:
        return False
    if plan.strategy == "STRICT_SPREAD" and len(set(place)) < len(place):
        return False
    domains = {nodes[i].labels.get("ray.io/availability-zone") for i in place}
    if plan.affinity == "zone" and (len(domains) > 1 or None in domains):
        return False
    left = list(nodes)
    for bundle, node in zip(plan.bundles, place, strict=True):
        for key, value in bundle.labels:
            has = nodes[node].labels.get(key)
            if (has == value[1:]) if value.startswith("!") else (has != value):  # type: ignore[union-attr]
                return False
        left[node] = left[node].without(bundle)
    return all(amount >= -EPS for node in left for amount in node.amounts().values())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(sizes, asked), min_size=1, max_size=5),
    st.lists(st.tuples(rooms, zones), min_size=1, max_size=4),
    strategies,
    st.sampled_from(["none", "zone"]),
)
def test_assign_never_overbooks_and_agrees_with_brute_force(
    need: list[Any], free: list[Any], strategy: str, affinity: str
) -> None:
    bundles = tuple(
        Bundle(f"critic {i}", *size, custom=(("tpu", size[0]),), labels=labels)
        for i, (size, labels) in enumerate(need)
    )
    plan = PlacementPlan("split", strategy, bundles, (), affinity)
    nodes = [
        Node(
            f"n{i}",
            *room,
            {f"ray.io/availability-{k}": v for k, v in zone.items()} | zone,
            {"tpu": room[1]},
        )
        for i, (room, zone) in enumerate(free)
    ]
    found = search(plan, nodes)
    ways = itertools.product(range(len(nodes)), repeat=len(bundles))
    possible = any(_allowed(plan, nodes, place) for place in ways)
    assert found.sure
    assert (found.place is not None) == possible
    if found.place is not None:
        assert _allowed(plan, nodes, found.place)
    elif find_shortfall(plan, nodes) is None:
        raise AssertionError("a plan that fits nowhere is not refused")


@pytest.mark.parametrize(
    ("rooms", "units"),
    [
        ([(3, 9, 99)], ("CPUs",)),
        ([(9, 3, 99)], ("GPUs",)),
        ([(9, 9, 25)], ("GB memory",)),
        ([(3, 3, 99)], ("CPUs", "GPUs")),
        # Either would do: one node lacks the one, the other the other.
        ([(3, 9, 99), (9, 3, 99)], ("CPUs", "GPUs")),
    ],
)
def test_what_runs_out_is_named(
    rooms: list[tuple[float, float, float]], units: tuple[str, ...]
) -> None:
    nodes = [_node(*room, f"n{i}") for i, room in enumerate(rooms)]
    assert scarce(_bundles((2, 2, 10)), nodes) == units


def test_where_a_rule_is_in_the_way_nothing_runs_out() -> None:
    plan = PlacementPlan("split", "STRICT_SPREAD", (Bundle("a", 1, 0, 0), Bundle("b", 1, 0, 0)), ())
    assert scarce(plan, [_node(1.5, 0, 0, "a"), _node(1.5, 0, 0, "b")]) == ("CPUs",)
    labelled = replace(plan, bundles=(Bundle("a", 1, 0, 0, labels=(("zone", "a"),)),))
    assert scarce(labelled, [_node(64, 8, 500)]) == ()
    assert scarce(_bundles((1, 0, 0)), [_node(1000, 0, 0)]) == ()


def test_more_bundles_than_python_has_frames_are_placed() -> None:
    plan = _plan(
        **{
            "roles.rollout.workers": 512,
            "roles.reward.workers": 512,
            "roles.reference.workers": 512,
        }
    )
    assert len(plan.bundles) == 1539
    nodes = [_node(2048, 128, 16384, f"n{i}") for i in range(12)]
    assert assign(plan, nodes) is not None


def test_labels_given_again_replace_the_ones_before() -> None:
    config = apply(TrialConfig(), {"resources.labels": {"zone": "a", "kind": "spot"}})
    assert apply(config, {"resources.labels": {"zone": "b"}}).resources.labels == {"zone": "b"}
    assert apply(config, {"resources.labels": {}}).resources.labels == {}
    assert apply(config, {"resources.threads": 2}).resources.labels == config.resources.labels


def test_many_equal_bundles_that_do_not_fit_are_refused_without_a_long_search() -> None:
    plan = _plan(cpus_per_gpu=11.0, **{"roles.rollout.workers": 40, "roles.rollout.gpus": 1.0})
    found = search(plan, [_node(64, 8, 512)] * 8)
    # Five of them on a node: 40 of 44, though the sums would fit.
    assert (found.place, found.sure) == (None, True)
    assert search(plan, [_node(64, 8, 512)] * 9).place is not None


def test_the_colocated_plan_has_one_bundle_for_each_shared_gpu() -> None:
    plan = _plan("colocated")
    assert [(b.owner, b.cpus, b.gpus, b.memory_gb) for b in plan.bundles] == [
        ("head", 0.1, 0.0, 0.0),
        ("rollout+learner 0", 12.0, 1.0, 64.0),
        ("critic+reference+reward 0", 6.0, 1.0, 96.0),
    ]
    assert [(w.name, w.index, w.bundle) for w in plan.workers] == [
        ("rollout", 0, 1), ("rollout", 1, 1), ("learner", 0, 1),
        ("critic", 0, 2), ("reference", 0, 2), ("reward", 0, 2),
    ]  # fmt: skip
    for index, bundle in enumerate(plan.bundles[1:], 1):
        shares = [plan.share(w) for w in plan.workers if w.bundle == index]
        assert 0.999 < sum(s.gpus for s in shares) <= bundle.gpus
        assert sum(s.cpus for s in shares) <= bundle.cpus
        assert sum(s.memory_gb for s in shares) <= bundle.memory_gb


def test_shares_that_are_named_leave_the_rest_to_the_others() -> None:
    plan = _plan("colocated", **{"roles.learner.share": 0.6, "roles.reward.gpus": 0})
    gpus = {(w.name, w.index): plan.share(w).gpus for w in plan.workers}
    assert gpus == {
        ("rollout", 0): 0.2, ("rollout", 1): 0.2, ("learner", 0): 0.6,
        ("critic", 0): 0.5, ("reference", 0): 0.5, ("reward", 0): 0.0,
    }  # fmt: skip
    half = _plan(
        "colocated", **{f"roles.{r}.share": 0.25 for r in ("critic", "reference", "reward")}
    )
    assert half.bundles[2].gpus == 0.75


def test_workers_are_dealt_over_the_gpus_of_their_group() -> None:
    groups = [{"roles": ["rollout", "reference"], "gpus": 2}]
    plan = _plan("colocated", colocate=groups, cpus_per_gpu=8.0, **{"roles.rollout.workers": 3})
    assert [b.owner for b in plan.bundles] == [
        "head", "rollout+reference 0", "rollout 1", "learner 0", "critic 0", "reward 0",
    ]  # fmt: skip
    assert [w.bundle for w in plan.group("rollout")] == [1, 2, 1]
    # Both GPUs are taken whole, and the ratio counts by what each worker has of them.
    assert [plan.bundles[i].cpus for i in (1, 2)] == [8.0, 8.0]
    assert plan.share(plan.group("reference")[0]).gpus == pytest.approx(1 / 3, abs=1e-4)


REFUSED = [
    ({"colocate": [{"roles": ["lerner"]}]}, "no role 'lerner'.*did you mean 'learner'"),
    ({"colocate": [{"roles": ["critic"]}, {"roles": ["critic"]}]}, "critic already shares"),
    (
        {"roles.rollout.share": 0.6},
        "2 x 0.6 of rollout is 1.2; lower resources.roles.rollout.share",
    ),
    ({"roles.rollout.share": 0.5}, "leaves nothing for the others"),
    (
        {"roles.critic.workers": 2},
        "2 workers of critic need a GPU each, but 1 is shared; raise resources.colocate",
    ),
    ({"affinity": "node", "colocate": [{"roles": ["learner"]}]}, "one colocate group of 1 GPU"),
    (
        {"roles.critic.labels": {"zone": "a"}, "roles.reward.labels": {"zone": "b"}},
        "critic and reward lie in one bundle, but ask for zone 'a' and 'b'",
    ),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_sharing_that_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _plan("colocated", **values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"labels": {"zone": ()}}, "zone must name a value"),
        ({"labels": {"a zone": "x"}}, "'a zone' is no label key"),
        ({"roles.reward.labels": {"zone": "x,y"}}, "'x,y' is no label value"),
        ({"roles.reward.custom": {"GPU": 1}}, "'GPU' is not a custom resource"),
        ({"roles.reward.custom": {"tpu": 1.5}}, "tpu above 1 must be whole"),
        ({"affinity": "node", "strategy": "STRICT_SPREAD"}, "exclude each other"),
    ],
)
def test_labels_and_custom_resources_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _plan(**values)


def test_roles_that_the_algorithm_leaves_out_overbook_nothing() -> None:
    shares = {f"resources.roles.{r}.share": 0.5 for r in ("critic", "reference", "reward")}
    values = {"resources.layout": "colocated", **shares}
    with pytest.raises(ConfigError, match="must sum to at most 1"):
        apply(TrialConfig(), values)
    config = apply(TrialConfig(), {**values, "ppo.advantage": "reinforce"})
    assert plan_trial(config).bundles[2].owner == "reference+reward 0"


def test_learner_and_rollouts_on_one_node_share_a_bundle() -> None:
    plan = _plan(affinity="node", **{"roles.rollout.workers": 3})
    bundle = plan.bundles[1]
    # Three halves take two devices, and the learner one of its own.
    assert (bundle.owner, bundle.gpus, bundle.cpus, bundle.memory_gb) == (
        "rollout+learner 0",
        3,
        16,
        80,
    )
    assert [plan.share(w).gpus for w in plan.workers if w.bundle == 1] == [0.5, 0.5, 0.5, 1.0]
    assert len(plan.bundles) == 5


def test_labels_go_to_ray_as_selectors_bundle_by_bundle() -> None:
    plan = _plan(
        labels={"zone": ("a", "b")}, **{"roles.learner.labels": {"zone": "a", "kind": "!spot"}}
    )
    request = group_request(plan)
    assert request["bundle_label_selector"][1] == {"zone": "in(a,b)"}
    assert request["bundle_label_selector"][3] == {"zone": "a", "kind": "!spot"}
    assert len(request["bundle_label_selector"]) == len(request["bundles"]) == 7
    assert "bundle_label_selector" not in group_request(_plan())
    zoned = group_request(_plan(affinity="zone", strategy="SPREAD"))
    assert zoned["strategy"] is None
    assert zoned["topology_strategy"] == {
        "ray.io/availability-zone": "STRICT_PACK", "ray.io/node-id": "SPREAD",
    }  # fmt: skip


def test_an_unknown_label_names_near_misses() -> None:
    nodes = [Node("n", 64, 8, 500, {"zone": "eu-1a"})]
    line = str(shortfall(_plan(labels={"zon": "eu-1a"}), nodes))
    assert "no node has the label zon of bundle 0" in line
    assert line.endswith("; change resources.labels (did you mean 'zone'?), or add such a node")
    line = str(shortfall(_plan(**{"roles.learner.labels": {"zone": "eu-1b"}}), nodes))
    assert "no node has the label zone eu-1b of bundle 3 (learner 0" in line
    # Of the options that could set a label, the one that did.
    assert line.endswith(
        "nodes have eu-1a; change resources.roles.learner.labels (did you mean 'eu-1a'?), or add such a node"
    )
    fused = {"roles.fused.labels": {"zone": "eu-1b"}, "labels": {"zone": "eu-1a"}}
    assert "change resources.roles.fused.labels (" in str(shortfall(_plan("fused", **fused), nodes))
    both = Node("m", 64, 8, 500, {"zone": "eu-1b"})
    two = _plan(labels={"zone": "eu-1a", "kind": "spot"})
    assert "together" in str(shortfall(two, [*nodes, Node("k", 64, 8, 500, {"kind": "spot"})]))
    mixed = _plan(
        labels={"zone": "eu-1a"},
        **{"roles.rollout.labels": {"kind": "spot"}, "roles.critic.labels": {"kind": "spot"}},
    )
    line = str(shortfall(mixed, [*nodes, Node("k", 64, 8, 500, {"kind": "spot"})]))
    assert "; change resources.roles.rollout.labels and resources.labels, or add" in line
    assert shortfall(_plan(**{"roles.learner.labels": {"zone": "eu-1b"}}), [*nodes, both]) is None


def test_the_closest_node_is_one_with_the_labels() -> None:
    nodes = [Node("big", 64, 8, 500), Node("small", 2, 8, 500, {"zone": "a"})]
    line = str(shortfall(_plan(**{"roles.learner.labels": {"zone": "a"}}), nodes))
    assert (
        "bundle 3 (learner 0: 4 CPUs, 1 GPU, 32 GB memory, zone a); the closest, small, lacks 2 CPUs"
        in line
    )


def test_affinity_needs_a_domain_that_holds_the_whole_trial() -> None:
    label = "ray.io/availability-zone"
    parts = [Node(f"n{i}", 16, 4, 128, {label: zone}) for i, zone in enumerate("aab")]
    assert shortfall(_plan(affinity="zone"), parts) is None
    assert assign(_plan(affinity="zone"), parts) is not None
    line = str(shortfall(_plan(affinity="zone"), parts[1:]))
    assert "(strategy PACK, affinity zone)" in line
    bare = [Node("n", 64, 8, 500)]
    assert "no node has that label" in str(shortfall(_plan(affinity="gpu_domain"), bare))


def test_strict_strategies_say_what_lacks_on_the_closest_node() -> None:
    nodes = [_node(16, 4, 128, "a"), _node(18, 5, 160, "b")]
    line = str(shortfall(_plan(strategy="STRICT_PACK"), nodes))
    assert "the closest, b, lacks 0.1 CPUs" in line
    assert "or resources.strategy PACK" in line
    line = str(shortfall(_plan(strategy="STRICT_SPREAD"), [_node(64, 8, 500)] * 6))
    assert "no node is left for bundle" in line


def test_custom_resources_are_counted() -> None:
    plan = _plan(**{"roles.reward.custom": {"tpu": 4}})
    assert "lacks 4 tpu" in str(shortfall(plan, [_node(64, 8, 500)]))
    node = Node("t", 64, 16, 1000, {}, {"tpu": 8})
    assert shortfall(plan, [node]) is None
    assert trials_at_once(plan, [node]) == 2


def test_shares_that_ray_miscounts_are_refused() -> None:
    four = [_node(64, 4, 500)] * 2
    line = str(shortfall(_plan(**{"roles.rollout.gpus": 0.7}), four))
    assert "Ray counts 5 shares of 0.7 on 4 GPUs, but only 4 lie on one device" in line
    assert shortfall(_plan(**{"roles.rollout.gpus": 0.7}), [_node(64, 1, 500)] * 6) is None
    assert shortfall(_plan(**{"roles.rollout.gpus": 0.33}), [_node(64, 5, 500)]) is None
    line = str(
        shortfall(
            _plan(**{"roles.rollout.gpus": 0.5, "roles.reward.gpus": 1 / 3}), [_node(64, 8, 500)]
        )
    )
    assert "divide each other evenly" in line
    quarters = _plan(**{"roles.rollout.gpus": 0.5, "roles.reward.gpus": 0.25})
    assert shortfall(quarters, [_node(64, 8, 500)]) is None


def test_declared_node_types_count_beside_the_live_nodes() -> None:
    kind = NodeType(Node("gpu-4x", 32, 4, 256, {"zone": "b"}), 2)
    live = [_node(16, 0, 64, "head"), Node("w", 32, 4, 256, {"ray.io/node-group": "gpu-4x"})]
    nodes = with_node_types(live, [kind])
    # One of the two lives already.
    assert [node.name for node in nodes] == ["head", "w", "gpu-4x (new 0)"]
    assert nodes[2].labels == {"ray.io/node-group": "gpu-4x", "zone": "b"}
    assert shortfall(_plan(), live) is not None
    assert shortfall(_plan(), nodes) is None
    assert len(with_node_types([], [NodeType(kind.node, 10_000)], at_most=5)) == 5
