"""The picture of placements: from a plan, and from records."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from rlhf_core.config import TrialConfig, apply
from rlhf_core.runtime.placement import Node, PlacementPlan, assign, plan_trial
from rlhf_core.runtime.shared import shared_roles
from sweeps.busy import busy_lines
from sweeps.picture import (
    WIDTH,
    draw_trial,
    draw_trials,
    numbered,
    planned,
    with_services,
)


def plan(layout: str, **values: Any) -> PlacementPlan:
    resources = {f"resources.{key}": value for key, value in values.items()}
    return plan_trial(apply(TrialConfig(), {"resources.layout": layout, **resources}))


NODES = [Node(f"node {i}", 32.0, 4.0, 256.0, {"zone": "ab"[i % 2]}) for i in range(3)]


def drawn(chosen: PlacementPlan, nodes: list[Node] = NODES) -> list[str]:
    place = assign(chosen, nodes)
    assert place is not None
    return draw_trial("t0000", planned(chosen, place), numbered(nodes))


def test_roles_of_one_gpu_stand_side_by_side_on_it() -> None:
    assert drawn(plan("colocated", **{"roles.rollout.workers": 1, "cpus_per_gpu": 8.0})) == [
        "t0000: layout colocated, PACK, 3 bundles on 1 of 3 nodes",
        "",
        "node 0: 32 CPUs, 4 GPUs, 256 GB  [zone=a]",
        "        worker                   CPUs   GPUs      GB  |GPU 0 |GPU 1 |GPU 2 |GPU 3 |",
        "     0  head                      0.1                 |      |      |      |      |",
        "     1  rollout 0                   4    0.5      16  |###   |      |      |      |",
        "        learner 0                   4    0.5      32  |   ###|      |      |      |",
        "     2  critic 0                 2.67  0.333      32  |      |##    |      |      |",
        "        reference 0              2.67  0.333      32  |      |  ##  |      |      |",
        "        reward 0                 2.67  0.333      32  |      |    ##|      |      |",
        "",
        "holds nothing: node 1, node 2",
    ]


def test_recorded_devices_are_drawn_where_they_are() -> None:
    record = planned(plan("split"), [0] * 7)
    for worker, device in zip(record["workers"], "003214", strict=True):
        worker["gpus"] = [device]
    lines = draw_trial("t0000", record, numbered([Node("big", 64.0, 5.0, 512.0)]))
    cells = {line[8:18].strip(): line[line.index("|") :] for line in lines if "|" in line}
    assert cells["rollout 1"] == "|  ##|    |    |    |    |"
    assert cells["learner 0"] == "|    |    |    |####|    |"
    assert cells["reference"] == "|    |####|    |    |    |"


def shared_by(count: int, shares: list[float], gpus: float) -> list[str]:
    """The cells of workers that share the first device of a node."""
    workers = [
        {"name": "rollout", "index": i, "bundle": 0, "share": {"gpus": share}, "gpus": ["0"]}
        for i, share in enumerate(shares[:count])
    ]
    record = {"bundles": [{"index": 0, "node": "0"}], "workers": workers}
    lines = draw_trial("t0000", record, numbered([Node("big", 64.0, gpus, 512.0)]))
    assert max(map(len, lines)) <= WIDTH
    return [line[line.index("|") :].split("|")[1] for line in lines if "|" in line][1:]


@pytest.mark.parametrize("gpus", [1.0, 4.0, 5.0, 6.0, 8.0])
@pytest.mark.parametrize("shares", [[0.2] * 5, [0.5, 0.1, 0.1, 0.1, 0.1, 0.1], [0.125] * 8])
def test_workers_of_one_gpu_are_never_drawn_over_each_other(
    gpus: float, shares: list[float]
) -> None:
    cells = shared_by(len(shares), shares, gpus)
    if "%" in cells[0]:
        assert [cell.strip() for cell in cells] == [f"{share:.0%}" for share in shares]
        return
    columns = [column for cell in cells for column, mark in enumerate(cell) if mark == "#"]
    assert len(columns) == len(set(columns))
    assert all("#" in cell for cell in cells)
    assert columns == sorted(columns)


def test_more_sharers_than_columns_are_drawn_as_percentages() -> None:
    assert shared_by(5, [0.2] * 5, 8.0) == [" 20%"] * 5
    assert shared_by(4, [0.2] * 5, 8.0) == ["#   ", " #  ", "  # ", "   #"]
    assert shared_by(8, [0.125] * 8, 4.0)[1] == " #      "


def test_a_bundle_of_several_gpus_takes_whole_ones_beside_shares() -> None:
    lines = drawn(plan("split", affinity="node"))
    assert any(
        line.endswith("|      |######|      |      |") and "learner 0" in line for line in lines
    )


def test_a_line_is_never_wider_than_the_page() -> None:
    wide = [Node(f"a-rather-long-host-name-{i}:0123ab", 256.0, 8.0, 2048.0) for i in range(40)]
    many = plan("split", **{"roles.rollout.workers": 64})
    lines = drawn(many, wide)
    records = {f"t{i:04d}": planned(many, assign(many, wide) or []) for i in range(20)}
    lines += draw_trials(records, numbered(wide), dict.fromkeys(records, "interrupted"))
    assert max(map(len, lines)) <= WIDTH
    assert sum("t0019" in line for line in lines) >= 1


def test_many_trials_are_a_line_each_on_every_node() -> None:
    split, fused = plan("split"), plan("fused")
    records = {
        "t0000": planned(split, [0, 1, 1, 0, 0, 0, 0]),
        "t0001": planned(fused, [1]),
        "t0002": planned(plan("colocated"), [0, 1, 0]),
    }
    states = {"t0000": "completed", "t0001": "started"}
    assert draw_trials(records, numbered(NODES), states) == [
        "node 0: 32 CPUs, 4 GPUs, 256 GB  [zone=a]",
        "  t0000  completed   0 head | 3 learner | 4 critic | 5 reference | 6 reward",
        "  t0002              0 head | 2 critic, reference, reward",
        "",
        "node 1: 32 CPUs, 4 GPUs, 256 GB  [zone=b]",
        "  t0000  completed   1-2 rollout",
        "  t0001  started     0 all roles",
        "  t0002              1 rollout x2, learner",
        "",
        "node 2: 32 CPUs, 4 GPUs, 256 GB  [zone=a]",
        "  -",
    ]


def test_services_are_drawn_beside_the_trial_and_once_for_all() -> None:
    shared = {f"roles.{role}.placement": "shared" for role in ("reference", "reward")}
    config = apply(
        TrialConfig(),
        {"resources.layout": "split", **{f"resources.{k}": v for k, v in shared.items()}},
    )
    services = [planned(one.plan, [2]) for one in shared_roles(config)]
    trial = planned(plan_trial(config), [0, 0, 0, 0, 0])
    lines = draw_trial("t0000", with_services(trial, services), numbered(NODES))
    assert lines[0] == "t0000: layout split, PACK, 5 bundles and 2 shared on 2 of 3 nodes"
    assert [line for line in lines if "(shared)" in line] == [
        "    s0  reference 0 (shared)        2      1      32  |######|      |      |      |",
        "    s1  reward 0 (shared)           2      1      32  |      |######|      |      |",
    ]
    assert trial["bundles"][-1]["index"] == 4
    named = {"reference-0a1b2c": services[0], "t0000": trial, "t0001": trial}
    many = draw_trials(named, numbered(NODES), {"reference-0a1b2c": "shared", "t0000": "started"})
    assert [line for line in many if "reference" in line] == [
        "  reference-0a1b2c shared      0 reference"
    ]
    assert "  t0000            started     0 head | 1-2 rollout | 3 learner | 4 critic" in many


def test_a_damaged_record_is_drawn_as_far_as_it_goes() -> None:
    record = {"bundles": [{"index": 0, "node": "0"}, {"index": 1, "node": None}], "workers": None}
    lines = draw_trial("t0000", record, numbered(NODES))
    assert lines[0] == "t0000: layout ?, ?, 1 bundle on 1 of 3 nodes"
    assert any(line.startswith("     0  - ") for line in lines)


def test_busy_shares_are_means_after_the_first_evaluation() -> None:
    frame = pd.DataFrame(
        {
            "trial": ["a", "a", "a", "b"],
            "iteration": [0, 1, 2, 1],
            "util/busy_learner": [0.9, 0.2, 0.4, None],
            "util/busy_rollout": [0.0, 0.5, 0.5, 0.25],
            "time/iteration": [9.0, 2.0, 2.0, 1.0],
            "time/rollout_wait": [0.0, 0.5, 0.7, 0.5],
            "time/update": [9.0, 1.0, 1.0, None],
            "time/critic": [9.0, 0.4, 0.4, None],
            "time/learner": [9.0, 1.0, 1.0, None],
            "time/allreduce_learner": [0.0, 0.1, 0.1, None],
        }
    )
    assert busy_lines(frame, ["a", "b"]) == [
        "Mean busy share of the workers of each role",
        "trial  rollout  learner",
        "a          50%      30%",
        "b          25%        -",
        "",
        "Mean seconds of an iteration, and its critical path",
        "trial  seconds",
        "a            2  rollout_wait 30% -> update 50% (learner, all-reduce 5%), rest 20%",
        "b            1  rollout_wait 50%, rest 50%",
    ]
    more = frame.assign(**{"util/imbalance": 0.1})
    lines = busy_lines(more, ["a"])
    assert lines[:3] == [
        "Mean busy share of the workers of each role, and their imbalance",
        "trial  rollout  learner  imbalance",
        "a          50%      30%        10%",
    ]
    assert busy_lines(frame[["trial", "iteration"]], ["a"]) == []


def older(**seconds: list[float | None]) -> list[str]:
    """The path of a trial whose recording has no stages."""
    times = {f"time/{name}": values for name, values in seconds.items()}
    frame = pd.DataFrame({"trial": ["a", "a"], "iteration": [1, 2], **times})
    return [line[16:] for line in busy_lines(frame, ["a"])[2:]]


def test_phases_stand_for_stages_that_were_not_timed() -> None:
    phases: dict[str, list[float | None]] = {
        "iteration": [2.0, 2.0],
        "generate": [0.4, 0.4],
        "values": [0.1, 0.1],
        "reference": [0.2, 0.2],
        "score": [0.1, 0.1],
        "learner": [0.8, 0.8],
        "critic": [0.2, 0.2],
        "eval": [0.4, None],
        "checkpoint": [0.01, None],
    }
    assert older(**phases) == [
        "generate 20% -> values 5% -> reference 10% -> score 5% -> learner 40% -> critic 10%",
        "-> eval 10%",
    ]
    side_by_side = older(**phases | {"learner": [1.2, 1.2], "critic": [1.0, 1.0]})
    assert side_by_side == ["generate 20% -> reference 10% -> learner 60% -> eval 10%"]
    assert older(iteration=[2.0, 2.0], sync=[0.5, 0.5]) == ["sync 25%, rest 75%"]
    assert older(iteration=[2.0, 2.0]) == ["rest 100%"]
