"""``ResourcesConfig``: where the roles of a trial run and what each worker is given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from rlhf_core.config.fields import Group, group, in_vain, option
from rlhf_core.errors import nearest

ROLES = ("rollout", "learner", "critic", "reference", "reward")
# Roles that are never trained, so that one service can serve many trials.
FROZEN = ("reference", "reward")
# What a trial without a sweep around it runs with.
PRIVATE = {
    f"resources.roles.{role}.{key}": value
    for role in FROZEN
    for key, value in (("placement", "trial"), ("merge", False))
}
Labels = dict[str, str | tuple[str, ...]]
EPS = 1e-9
# Beyond any machine, and well within what Ray can count.
MOST_CPUS, MOST_GB = 4096, 100_000
Amount = Annotated[float, Field(gt=0, le=1_000_000)]
_LABEL_KEY = re.compile(r"([a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?")


class WorkerResources(Group):
    workers: int = option(1, "Worker processes of the role.", unit="processes", ge=1, le=512)
    cpus: float = option(2.0, "CPUs of each worker.", unit="CPUs", ge=0, le=MOST_CPUS)
    gpus: float = option(
        1.0,
        "GPUs of each worker; in layout colocated `share` counts instead, unless it is 0.",
        unit="GPUs",
        ge=0,
        le=512,
    )
    memory_gb: float = option(32.0, "Memory of each worker.", unit="GB", ge=0, le=MOST_GB)
    share: float | None = option(
        None,
        "Layout colocated: part of a GPU that each worker has, of its memory too; null: an equal part of "
        "what the others leave.",
        unit="GPUs",
        gt=0,
        le=1,
    )
    custom: dict[str, Amount] = option(
        {}, "Further Ray resources of each worker, as {name: amount}; nodes must offer them."
    )
    labels: Labels = option(
        {}, "Node labels that the role's bundles ask for, beside and before `resources.labels`."
    )


class RolloutResources(WorkerResources):
    workers: int = option(2, "Worker processes of the role.", unit="processes", ge=1, le=512)
    cpus: float = option(4.0, "CPUs of each worker.", unit="CPUs", ge=0, le=MOST_CPUS)
    gpus: float = option(
        0.5,
        "GPUs of each worker; in layout colocated `share` counts instead, unless it is 0.",
        unit="GPUs",
        ge=0,
        le=512,
    )
    memory_gb: float = option(16.0, "Memory of each worker.", unit="GB", ge=0, le=MOST_GB)


class LearnerResources(WorkerResources):
    cpus: float = option(4.0, "CPUs of each worker.", unit="CPUs", ge=0, le=MOST_CPUS)


class FrozenResources(WorkerResources):
    placement: Literal["trial", "shared"] = option(
        "trial",
        "trial: workers of the trial's own; shared: one service of the sweep answers every trial whose models are "
        "equal, with `workers` replicas.",
    )
    merge: bool = option(
        False,
        "Placement shared: requests of several trials go through the model together, equal to about 1e-6 of "
        "their size and not bit for bit.",
    )


class RoleResources(Group):
    rollout: RolloutResources = group(RolloutResources, "Rollout workers.")
    learner: LearnerResources = group(LearnerResources, "Learner.")
    critic: WorkerResources = group(WorkerResources, "Critic.")
    reference: FrozenResources = group(FrozenResources, "Reference.")
    reward: FrozenResources = group(FrozenResources, "Reward.")
    fused: LearnerResources = group(LearnerResources, "The one process of layout fused.")


class SharedGpus(Group):
    """Roles whose workers share GPUs, each in a process of its own."""

    roles: tuple[str, ...] = option((), "Roles that share.")
    gpus: int = option(
        1,
        "GPUs they share; worker i of a role sits on GPU i modulo this.",
        unit="GPUs",
        ge=1,
        le=512,
    )


class ResourcesConfig(Group):
    layout: Literal["fused", "colocated", "split"] = option(
        "fused",
        "fused: the roles in one process; colocated: a process for each worker, the roles of a `colocate` "
        "group on the same GPUs; split: each worker in a process with GPUs of its own.",
    )
    colocate: tuple[SharedGpus, ...] = option(
        (
            SharedGpus(roles=("learner", "rollout")),
            SharedGpus(roles=("critic", "reference", "reward")),
        ),
        "Layout colocated: groups of roles that share GPUs, as [{roles: [...], gpus: N}], one bundle for each "
        "GPU; a role in no group has bundles of its own.",
    )
    threads: int = option(
        1, "Compute threads of each process; sums change in their last bits with it.", ge=1, le=1024
    )
    cpus_per_gpu: float | None = option(
        None,
        "CPUs of each GPU-bearing bundle = this x its GPUs; null keeps the template.",
        gt=0,
        le=MOST_CPUS,
    )
    gpu_memory_gb: float | None = option(
        None,
        "Memory of each GPU, against which a trial is checked before it is launched; null: not known.",
        unit="GB",
        gt=0,
        le=MOST_GB,
    )
    head_cpus: float = option(
        0.1, "CPUs of the coordinator's bundle.", unit="CPUs", gt=0, le=MOST_CPUS
    )
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = option(
        "PACK", "How the bundles of a trial are laid over nodes."
    )
    affinity: Literal["none", "node", "gpu_domain", "zone"] = option(
        "none",
        "node: learner and rollouts on one node; gpu_domain, zone: the whole trial on nodes of one "
        "ray.io/gpu-domain or ray.io/availability-zone.",
    )
    labels: Labels = option(
        {},
        "Node labels that every bundle asks for, as {key: value}, {key: [one, of, these]} or {key: '!not this'}.",
    )
    max_replacements: int = option(
        2,
        "Rollout, reference and reward processes that die in a trial are replaced so many times without a trace "
        "in its numbers; after that, as when another process dies, it is run again from its last checkpoint.",
        unit="processes",
        ge=0,
    )
    roles: RoleResources = group(RoleResources, "What each worker of each role is given.")

    def is_shared(self, role: str) -> bool:
        """Whether a service of the sweep has the role."""
        return role in FROZEN and getattr(self.roles, role).placement == "shared"


def broken_resource_rules(resources: ResourcesConfig, roles: Sequence[str]) -> list[str]:
    """Rules between the options that ``resources`` breaks, one line each.

    Args:
        resources: The trial's resources.
        roles: Roles that the trial uses.
    """
    problems = _broken_services(resources)
    roles = [role for role in roles if not resources.is_shared(role)]
    workers = resources.roles.fused.workers
    if workers != 1:
        problems.append(
            f"resources.roles.fused.workers must be 1, but is {workers}: fused is one process"
        )
    for role in (*ROLES, "fused"):
        problems += _broken_amounts(f"resources.roles.{role}", getattr(resources.roles, role))
    labelled = {"resources": resources.labels}
    labelled |= {
        f"resources.roles.{r}": getattr(resources.roles, r).labels for r in (*ROLES, "fused")
    }
    for key, labels in labelled.items():
        problems += _broken_labels(f"{key}.labels", labels)
    if resources.layout == "colocated":
        problems += _broken_sharing(resources, roles)
    if resources.layout == "split" and resources.affinity == "node":
        problems += _two_places("resources.affinity 'node'", resources, ("rollout", "learner"))
    if resources.affinity == "node" and resources.strategy == "STRICT_SPREAD":
        problems.append(
            "resources.affinity 'node' and resources.strategy 'STRICT_SPREAD' exclude each other; change one"
        )
    return problems


def _broken_services(resources: ResourcesConfig) -> list[str]:
    problems = []
    for role in FROZEN:
        worker: FrozenResources = getattr(resources.roles, role)
        key = f"resources.roles.{role}"
        if worker.placement == "trial":
            off = f"{key}.placement 'shared', but that is 'trial'"
            problems += in_vain(worker, ("merge",), f"{key}.", off)
        else:
            off = f"{key}.placement 'trial', but that is 'shared'"
            problems += in_vain(worker, ("share",), f"{key}.", off)
    return problems


def _broken_amounts(key: str, worker: WorkerResources) -> Iterator[str]:
    if worker.gpus > 1 and worker.gpus != int(worker.gpus):
        yield (
            f"{key}.gpus above 1 must be whole, but is {worker.gpus:g}: Ray shares out one GPU, "
            "or whole ones"
        )
    if not (worker.cpus or worker.gpus or worker.memory_gb or worker.custom):
        yield (
            f"{key} needs an amount above 0 in one of cpus, gpus or memory_gb: Ray places no "
            "empty bundle"
        )
    for name, amount in worker.custom.items():
        if name in ("CPU", "GPU", "memory", "object_store_memory"):
            yield f"{key}.custom: {name!r} is not a custom resource; set cpus, gpus or memory_gb"
        elif amount > 1 and amount != int(amount):
            yield f"{key}.custom: {name} above 1 must be whole, but is {amount:g}"


def _broken_labels(key: str, labels: Mapping[str, str | tuple[str, ...]]) -> Iterator[str]:
    for name, value in labels.items():
        wanted = value if isinstance(value, tuple) else (value.removeprefix("!"),)
        if not _LABEL_KEY.fullmatch(name):
            yield f"{key}: {name!r} is no label key; write it as Ray does, such as 'zone' or 'ray.io/market-type'"
        if not wanted:
            yield f"{key}.{name} must name a value, but is an empty list; remove it or name one"
        for text in wanted:
            if not _LABEL_VALUE.fullmatch(text):
                yield (
                    f"{key}.{name}: {text!r} is no label value (letters, digits, '-', '_', '.'); several are a "
                    "list, and '!value' stands alone"
                )


def _broken_sharing(resources: ResourcesConfig, roles: Sequence[str]) -> Iterator[str]:
    """Rules of layout colocated: who shares, and that no GPU is overbooked."""
    seen: dict[str, int] = {}
    for number, shared in enumerate(resources.colocate):
        key = f"resources.colocate[{number}]"
        for role in shared.roles:
            if role not in ROLES:
                yield f"{key}: no role {role!r}; there is {', '.join(ROLES)}{nearest(role, ROLES)}"
            elif role in seen:
                yield f"{key}: {role} already shares in colocate[{seen[role]}]; name it once"
            seen.setdefault(role, number)
        members = [role for role in shared.roles if role in ROLES and role in roles]
        yield from _overbooked(key, resources, shared, members)
        yield from _two_places(key, resources, members)
    together = seen.get("learner", -1) == seen.get("rollout", -2)
    one = together and resources.colocate[seen["learner"]].gpus == 1
    if resources.affinity == "node" and not one and resources.strategy != "STRICT_PACK":
        yield (
            "resources.affinity 'node' in layout colocated needs learner and rollout in one colocate group of "
            "1 GPU, or resources.strategy STRICT_PACK; change one of them"
        )


def _overbooked(
    key: str, resources: ResourcesConfig, shared: SharedGpus, members: Sequence[str]
) -> Iterator[str]:
    booked: list[tuple[str, int, float]] = []
    unnamed = 0
    for role in members:
        worker: WorkerResources = getattr(resources.roles, role)
        if role in ("learner", "critic") and worker.workers > shared.gpus:
            yield (
                f"{key}: {worker.workers} workers of {role} need a GPU each, but {shared.gpus} "
                f"{'is' if shared.gpus == 1 else 'are'} shared; raise {key}.gpus or lower "
                f"resources.roles.{role}.workers"
            )
        here = -(-worker.workers // shared.gpus) if worker.gpus else 0
        if worker.share is None:
            unnamed += here
        elif here:
            booked.append((role, here, worker.share))
    total = sum(count * share for _, count, share in booked)
    if total > 1 + EPS or (unnamed and total > 1 - EPS):
        words = " + ".join(f"{count} x {share:g} of {role}" for role, count, share in booked)
        rest = "" if total > 1 + EPS else ", which leaves nothing for the others"
        yield (
            f"{key}: the shares of one GPU must sum to at most 1, but {words} is {total:g}{rest}; lower "
            f"resources.roles.{booked[-1][0]}.share or another, or raise {key}.gpus"
        )


def _two_places(key: str, resources: ResourcesConfig, members: Sequence[str]) -> Iterator[str]:
    """Roles in one bundle must not ask for different nodes."""
    asked: dict[str, tuple[str, object]] = {}
    for role in members:
        for label, value in getattr(resources.roles, role).labels.items():
            other, before = asked.setdefault(label, (role, value))
            if before != value:
                yield (
                    f"{key}: {other} and {role} lie in one bundle, but ask for {label} {before!r} and {value!r}; "
                    "make them equal"
                )
