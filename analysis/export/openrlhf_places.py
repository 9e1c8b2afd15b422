"""Export to and import from OpenRLHF: processes, GPUs and nodes of each role."""

from __future__ import annotations

from typing import Any

from analysis.export.places import (
    KEYS,
    PLACES,
    engines,
    in_group,
    one_place,
    one_place_back,
    ranks,
    shared_by,
    sharing,
    together,
)
from analysis.export.rules import (
    Case,
    Rule,
    Told,
    Unreadable,
    Values,
    drop,
    fixed,
    nodes,
    number,
    truth,
    whole,
    whole_gpus,
)

GROUPS = {"learner": "actor", "critic": "critic", "reference": "ref", "reward": "reward"}
QUEUE = {"train.async_enable": False, "train.async_queue_size": 1}
SHARED = "all roles share the same GPUs"


def resource_rules() -> list[Rule]:
    """Who runs where."""
    names: dict[str, Any] = {"train.colocate_all": False}
    for group in GROUPS.values():
        names |= {f"{group}.num_nodes": 1, f"{group}.num_gpus_per_node": 8}
    names |= {"vllm.num_engines": None, "vllm.tensor_parallel_size": 1}
    needed = {
        "algo.advantage.estimator": "gae",
        "train.async_enable": False,
        "vllm.enable_sleep": False,
        "ds.enable_sleep": False,
        "vllm.gpu_memory_utilization": 0.95,
    }
    return [
        Rule(KEYS, {**names, **needed}, _place, _place_back),
        fixed("resources.strategy", "PACK", "bundles are always packed"),
    ]


def asynchronous(case: Case) -> bool:
    """Whether batches are sampled ahead, by engines with GPUs of their own."""
    resources = case.config.resources
    if case["sync.mode"] == "sync" or resources.layout == "fused":
        return False
    groups = resources.colocate if resources.layout == "colocated" else ()
    return not any({"rollout", "learner"} <= set(group.roles) for group in groups)


def _place(case: Case) -> Told:
    shared = together(case)
    if shared is not None:
        return _place_together(case, shared)
    trainers = _trainers(case)
    return _place_apart(case) if trainers is None else _place_trainers(case, trainers)


def _place_together(case: Case, gpus: int) -> Told:
    count = engines(case, gpus)
    told = one_place(case, gpus, count, SHARED)
    told.theirs = {"train.colocate_all": True}
    for group in GROUPS.values():
        told.theirs |= _group(group, gpus)
    told.theirs |= {
        "vllm.num_engines": count,
        "vllm.tensor_parallel_size": gpus // count,
        "vllm.enable_sleep": True,
        "ds.enable_sleep": True,
        "vllm.gpu_memory_utilization": 0.5,
    }
    return told


def _trainers(case: Case) -> int | None:
    """GPUs that all roles but the rollout share, each with a process on every one; only with sampling ahead."""
    used = [role for role in case.config.roles if role != "rollout"]
    gpus = together(case, used) if asynchronous(case) else None
    even = all(case[f"{PLACES}{role}.workers"] == gpus for role in used)
    return gpus if even and not in_group(case, "rollout") else None


def _place_trainers(case: Case, gpus: int) -> Told:
    wanted = {role: gpus for role in case.config.roles if role != "rollout"}
    told = sharing(case, gpus, wanted, "all roles but the rollout share the same GPUs")
    told.theirs = {"train.colocate_all": True}
    for group in GROUPS.values():
        told.theirs |= _group(group, gpus)
    _engines(case, told)
    return told


def _place_apart(case: Case) -> Told:
    layout = case["resources.layout"]
    told = Told(
        {"train.colocate_all": False}, {"resources.layout": "each role has GPUs of its own"}
    )
    told.dropped = drop(
        [f"{PLACES}fused.workers", f"{PLACES}fused.gpus"], f"not used by layout {layout}"
    )
    if layout == "split":
        told.dropped["resources.colocate"] = "not used by layout split"
    else:
        lost = "all roles share GPUs there, or none; each is written with GPUs of its own"
        told.dropped |= drop(KEYS[:2], lost)
    for role, group in GROUPS.items():
        workers, gpus = f"{PLACES}{role}.workers", f"{PLACES}{role}.gpus"
        if group == "critic" and not case.config.ppo.needs_critic:
            told.dropped |= drop(
                [workers, gpus], f"ppo.advantage {case['ppo.advantage']} has no critic"
            )
            continue
        total = ranks(case, role)
        told.theirs |= _group(group, total)
        if total != case[workers]:
            told.dropped[workers] = f"{total} processes of one GPU each are written"
        if case[gpus] != 1:
            told.dropped[gpus] = "a process takes one GPU"
    _engines(case, told)
    return told


def _engines(case: Case, told: Told) -> None:
    """Adds engines with GPUs of their own."""
    workers, share = f"{PLACES}rollout.workers", f"{PLACES}rollout.gpus"
    tensor = 1 if in_group(case, "rollout") else whole_gpus(case[share])
    told.theirs |= {"vllm.num_engines": case[workers], "vllm.tensor_parallel_size": tensor}
    told.notes |= {workers: "vLLM engines", share: "GPUs of an engine, tensor parallel"}
    if tensor != case[share]:
        told.dropped[share] = f"an engine takes whole GPUs; {tensor} is written"


def _group(group: str, gpus: int) -> dict[str, Any]:
    count, each = nodes(gpus)
    return {f"{group}.num_nodes": count, f"{group}.num_gpus_per_node": each}


def _place_back(theirs: Values) -> dict[str, Any]:
    def gpus(group: str) -> int:
        return whole(theirs[f"{group}.num_nodes"]) * whole(theirs[f"{group}.num_gpus_per_node"])

    count, apart = theirs["vllm.num_engines"], truth(theirs["train.async_enable"])
    shared = truth(theirs["train.colocate_all"])
    if shared and not apart:
        return one_place_back(gpus("actor"), None if count is None else whole(count))
    if count is None:
        raise Unreadable("vllm.num_engines is not given; set resources.roles.rollout.workers")
    found: dict[str, Any] = {
        "resources.layout": "split",
        f"{PLACES}rollout.workers": whole(count),
        f"{PLACES}rollout.gpus": number(theirs["vllm.tensor_parallel_size"]),
    }
    if shared:
        workers = (f"{PLACES}{role}.workers" for role in GROUPS)
        return found | dict.fromkeys(workers, gpus("actor")) | shared_by([*GROUPS], gpus("actor"))
    for role, group in GROUPS.items():
        if group != "critic" or theirs["algo.advantage.estimator"] == "gae":
            found |= {f"{PLACES}{role}.workers": gpus(group), f"{PLACES}{role}.gpus": 1.0}
    return found
