"""A trial's configuration -> its ``PlacementPlan``.

Each layout deals the workers into *units*: the workers of one unit share one bundle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlhf_core.config.resources import ROLES, ResourcesConfig, SharedGpus, WorkerResources
from rlhf_core.config.trial import TrialConfig
from rlhf_core.runtime.placement.plan import Bundle, PlacementPlan, Share, WorkerPlace

# Ray counts in ten-thousandths.
STEP = 10_000
# Of each label key its value, and the option that asks for it.
_Asked = dict[str, tuple[str | tuple[str, ...], str]]


@dataclass(frozen=True)
class _Unit:
    """Workers of one bundle: its owner in words, ``(role, index)`` of each, and whether they share one GPU."""

    owner: str
    members: tuple[tuple[str, int], ...]
    one_gpu: bool = False


def plan_trial(config: TrialConfig) -> PlacementPlan:
    """The placement of ``config``: roles that its algorithm does not use, or a service has, are not placed."""
    return _plan(config.resources, config.roles)


def plan_service(resources: ResourcesConfig, role: str) -> PlacementPlan:
    """The placement of the service that has the frozen ``role``: one bundle for each replica.

    ``cpus_per_gpu``, ``strategy`` and ``affinity`` are the trials', of which the service is no part.
    """
    template: WorkerResources = getattr(resources.roles, role)
    share = Share(
        template.cpus, template.gpus, template.memory_gb, tuple(sorted(template.custom.items()))
    )
    asked = _asked(resources, [role])
    count = range(template.workers)
    return PlacementPlan(
        "shared",
        "PACK",
        tuple(_bundle(f"{role} {i}", [share], asked) for i in count),
        tuple(WorkerPlace(role, (role,), i, i) for i in count),
    )


def plan_placement(
    resources: ResourcesConfig, *, critic: bool = True, reference: bool = True
) -> PlacementPlan:
    """The placement of one trial.

    Args:
        resources: The trial's resources.
        critic: False for estimators that train no critic; none is placed then.
        reference: False where no KL is measured.
    """
    absent = {"critic": not critic, "reference": not reference}
    return _plan(resources, [role for role in ROLES if not absent.get(role, False)])


def _plan(resources: ResourcesConfig, roles: Sequence[str]) -> PlacementPlan:
    roles = [role for role in roles if not resources.is_shared(role)]
    if resources.layout == "fused":
        share = _shares(resources, [resources.roles.fused], one_gpu=False)[0]
        bundle = _bundle("fused", [share], _asked(resources, ["fused"]))
        worker = WorkerPlace("trial", tuple(roles), 0, 0)
        return PlacementPlan("fused", resources.strategy, (bundle,), (worker,), resources.affinity)
    head = Share(resources.head_cpus, 0.0, 0.0)
    bundles = [_bundle("head", [head], _asked(resources, []))]
    workers = []
    for unit in _units(resources, roles):
        names = [role for role, _ in unit.members]
        templates = [getattr(resources.roles, role) for role in names]
        shares = _shares(resources, templates, unit.one_gpu)
        for (role, index), share in zip(unit.members, shares, strict=True):
            own = None if len(shares) == 1 else _floored(share)
            workers.append(WorkerPlace(role, (role,), index, len(bundles), own))
        bundles.append(_bundle(unit.owner, shares, _asked(resources, names)))
    workers.sort(key=lambda worker: (ROLES.index(worker.name), worker.index))
    return PlacementPlan(
        resources.layout, resources.strategy, tuple(bundles), tuple(workers), resources.affinity
    )


def _units(resources: ResourcesConfig, roles: Sequence[str]) -> Iterator[_Unit]:
    """The units of a trial, in the order of their first role."""
    together = _together(resources, roles)
    done: set[str] = set()
    for role in roles:
        if role in done:
            continue
        shared = next((s for s in together if role in s.roles), None)
        if shared is None:
            count = getattr(resources.roles, role).workers
            yield from (_Unit(f"{role} {i}", ((role, i),)) for i in range(count))
            continue
        members = [r for r in roles if r in shared.roles]
        done.update(members)
        yield from _dealt(resources, members, shared.gpus, resources.layout == "colocated")


def _together(resources: ResourcesConfig, roles: Sequence[str]) -> tuple[SharedGpus, ...]:
    """Roles that share bundles: the colocate groups, or learner and rollouts on the way to one node."""
    if resources.layout == "colocated":
        return resources.colocate
    if resources.affinity == "node":
        # One bundle always is on one node; Ray has no other way to say that of a part of a group.
        return (SharedGpus(roles=("rollout", "learner")),)
    return ()


def _dealt(
    resources: ResourcesConfig, members: Sequence[str], count: int, one_gpu: bool
) -> Iterator[_Unit]:
    """``count`` units; worker i of every role goes to unit i modulo ``count``."""
    for number in range(count):
        here = [
            (role, index)
            for role in members
            for index in range(getattr(resources.roles, role).workers)
            if index % count == number
        ]
        if here:
            names = dict.fromkeys(role for role, _ in here)
            yield _Unit(f"{'+'.join(names)} {number}", tuple(here), one_gpu)


def _shares(
    resources: ResourcesConfig, templates: Sequence[WorkerResources], one_gpu: bool
) -> list[Share]:
    """What each worker of a unit is given; on one GPU what has no share of its own gets an equal part."""
    parts = [template.gpus for template in templates]
    if one_gpu:
        named = sum(t.share or 0.0 for t in templates if t.gpus)
        unnamed = sum(t.share is None for t in templates if t.gpus)
        rest = (1.0 - named) / unnamed if unnamed else 0.0
        parts = [(t.share or rest) if t.gpus else 0.0 for t in templates]
    ratio = resources.cpus_per_gpu
    return [
        Share(
            ratio * gpus if ratio is not None and gpus else template.cpus,
            gpus,
            template.memory_gb,
            tuple(sorted(template.custom.items())),
        )
        for template, gpus in zip(templates, parts, strict=True)
    ]


def _floored(share: Share) -> Share:
    """Rounded down to what Ray counts, so that thirds of a GPU fit into it."""

    def down(amount: float) -> float:
        return math.floor(amount * STEP + 1e-6) / STEP

    return Share(down(share.cpus), down(share.gpus), share.memory_gb, share.custom)


def _bundle(owner: str, shares: Sequence[Share], asked: _Asked) -> Bundle:
    custom: dict[str, float] = {}
    for share in shares:
        for name, amount in share.custom:
            custom[name] = custom.get(name, 0.0) + amount
    return Bundle(
        owner,
        round(sum(share.cpus for share in shares), 4),
        _devices([share.gpus for share in shares]),
        round(sum(share.memory_gb for share in shares), 4),
        tuple(sorted(custom.items())),
        tuple(sorted((key, value) for key, (value, _) in asked.items())),
        tuple(sorted((key, option) for key, (_, option) in asked.items())),
    )


def _devices(parts: Sequence[float]) -> float:
    """GPUs that hold the parts, filled as Ray does: each part on the fullest device with room for it."""
    total = round(sum(parts), 4)
    if total <= 1:
        return total
    whole = sum(part for part in parts if part >= 1)
    room: list[float] = []
    for part in (part for part in parts if 0 < part < 1):
        fitting = [i for i, free in enumerate(room) if free >= part - 1e-9]
        if fitting:
            room[min(fitting, key=room.__getitem__)] -= part
        else:
            room.append(1.0 - part)
    return float(whole + len(room))


def _asked(resources: ResourcesConfig, roles: Sequence[str]) -> _Asked:
    options = {"resources.labels": resources.labels}
    options |= {
        f"resources.roles.{role}.labels": getattr(resources.roles, role).labels for role in roles
    }
    return {
        key: (value, option) for option, labels in options.items() for key, value in labels.items()
    }
