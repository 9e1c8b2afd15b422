"""Where roles run, for targets whose roles have one process for each GPU, and mostly share them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.export.rules import Case, Told, Unreadable, drop, whole_gpus
from rlhf_core.config import ROLES, TrialConfig

PLACES = "resources.roles."
KEYS = (
    "resources.layout",
    "resources.colocate",
    *(f"{PLACES}{role}.{name}" for role in (*ROLES, "fused") for name in ("workers", "gpus")),
)
"""Our keys of who runs where."""
ASKS = tuple(
    f"resources.{name}" for name in ("roles.", "labels", "affinity", "cpus_per_gpu", "head_cpus")
)
"""Starts of our keys of what a process asks of its node."""


def together(case: Case, roles: Sequence[str] | None = None) -> int | None:
    """GPUs that ``roles`` (all that the trial uses) share without others, or None where they do not."""
    resources = case.config.resources
    wanted = set(case.config.roles if roles is None else roles)
    if resources.layout == "fused":
        return 1 if roles is None else None
    if resources.layout == "split":
        return None
    for shared in resources.colocate:
        if wanted == set(shared.roles) & set(case.config.roles):
            return shared.gpus
    return None


def ranks(case: Case, role: str) -> int:
    """Processes of one GPU each over which a role of the trial is spread."""
    shared = together(case)
    if shared is not None:
        return shared
    own = getattr(case.config.resources.roles, role)
    return int(own.workers * (1 if in_group(case, role) else whole_gpus(own.gpus)))


def in_group(case: Case, role: str) -> bool:
    """Whether a role shares GPUs, so that its processes have none of their own."""
    resources = case.config.resources
    groups = resources.colocate if resources.layout == "colocated" else ()
    return any(role in group.roles for group in groups)


def pool(case: Case, roles: Sequence[str]) -> int:
    """GPUs of all ``roles``, where they share one pool there."""
    shared = together(case)
    if shared is not None:
        return shared
    resources = case.config.resources
    groups = resources.colocate if resources.layout == "colocated" else ()
    grouped = [group for group in groups if set(group.roles) & set(roles)]
    alone = set(roles) - {role for group in grouped for role in group.roles}
    own = [getattr(resources.roles, role) for role in alone]
    return sum(group.gpus for group in grouped) + sum(
        whole_gpus(role.workers * role.gpus) for role in own
    )


def one_place(case: Case, gpus: int, engines: int, note: str) -> Told:
    """Every role has a process on each of ``gpus`` shared GPUs; ``engines`` of the rollout may take several."""
    layout, fused = KEYS[0], f"{PLACES}fused.gpus"
    if case[layout] == "fused":
        unused = [key for key in KEYS[1:] if not key.startswith(f"{PLACES}fused")]
        told = Told(notes={layout: note}, dropped=drop(unused, "not used by layout fused"))
        if case[fused] != gpus:
            told.dropped[fused] = f"a process takes one whole GPU; {gpus} is written"
        return told
    if gpus == 1:
        lost = drop(KEYS[:-2], f"{note}, as with layout fused")
        return Told(dropped={**lost, **drop(KEYS[-2:], "not used by layout colocated")})
    wanted = dict.fromkeys(case.config.roles, gpus) | {"rollout": engines}
    return sharing(case, gpus, wanted, note)


def sharing(case: Case, gpus: int, wanted: Mapping[str, int], note: str) -> Told:
    """What becomes of our keys where roles share GPUs.

    Args:
        case: A configuration of layout colocated.
        gpus: The shared GPUs.
        wanted: Processes of each role there.
        note: What happens there.
    """
    told = Told(notes=dict.fromkeys(KEYS[:2], note))
    told.dropped = drop(KEYS[-2:], "not used by layout colocated")
    for role in ROLES:
        workers, amount = f"{PLACES}{role}.workers", f"{PLACES}{role}.gpus"
        if role not in case.config.roles:
            told.dropped |= drop([workers, amount], f"the trial has no {role}")
        elif role in wanted:
            told.dropped[amount] = "not used where GPUs are shared"
            if case[workers] != wanted[role]:
                told.dropped[workers] = f"{wanted[role]} is written, for {gpus} shared GPUs"
    return told


def one_place_back(gpus: int, engines: int | None = None) -> dict[str, Any]:
    """Our values for a process of every role on each of ``gpus`` shared GPUs."""
    if gpus == 1:
        return {
            "resources.layout": "fused",
            f"{PLACES}fused.workers": 1,
            f"{PLACES}fused.gpus": 1.0,
        }
    found = dict.fromkeys((f"{PLACES}{role}.workers" for role in ROLES), gpus)
    return {
        **found,
        f"{PLACES}rollout.workers": engines or gpus,
        **shared_by(ROLES, gpus),
    }


def shared_by(roles: Sequence[str], gpus: int) -> dict[str, Any]:
    """Layout and group of roles that share GPUs."""
    group = {"roles": list(roles), "gpus": gpus}
    return {"resources.layout": "colocated", "resources.colocate": [group]}


def engines(case: Case, gpus: int) -> int:
    """Engines of the rollout on shared GPUs: as many as workers where they have equal parts, else one a GPU."""
    workers: int = case[f"{PLACES}rollout.workers"]
    return workers if case[KEYS[0]] == "colocated" and gpus % workers == 0 else gpus


def engines_on(gpus: int, tensor: int) -> int:
    """Engines of ``tensor`` GPUs that share ``gpus``."""
    if tensor < 1 or gpus % tensor:
        raise Unreadable(f"engines of {tensor} GPUs do not divide {gpus} GPUs")
    return gpus // tensor


def shares_of_memory(config: TrialConfig) -> dict[str, str]:
    """What sharing means here: a part of the memory too, where processes there take turns with all of it."""
    resources, key = config.resources, KEYS[1]
    groups = resources.colocate if resources.layout == "colocated" else ()
    counts = [len(set(group.roles) & set(config.roles)) for group in groups]
    if not counts or max(counts) < 2:
        return {}
    most = max(counts)
    return {
        key: f"each of {most} roles has {1 / most:.3g} of a GPU here, and no more than that of its memory, where "
        f"processes there take turns with all of it; set {PLACES}ROLE.share where one needs more, or "
        f"{KEYS[0]} split"
    }
