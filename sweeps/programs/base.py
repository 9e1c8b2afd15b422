"""What a trial runs, as Tune sees it: parameters in, metrics out. PPO is one case, a script of yours another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import yaml

from rlhf_core.errors import ConfigError
from rlhf_core.imports import import_named
from rlhf_core.memory import WorkerMemory
from rlhf_core.metrics import IterationMetrics
from rlhf_core.runtime.object_store import StoreNeed
from rlhf_core.runtime.placement import PlacementPlan
from rlhf_core.runtime.shared import SharedRole
from rlhf_core.store import Store
from rlhf_core.tasks.recipe import Progress


@dataclass(frozen=True)
class TrialContext:
    """What a running trial is given.

    Attributes:
        trial: Its id.
        base: The sweep's ``base``, as plain values.
        params: ``{dotted key: value}`` of this trial.
        store: Its own store; a trial that finds a checkpoint there goes on from it.
        placement_group: Ray's group with the bundles of ``TrialProgram.placement``, or None outside Ray.
        services: ``{role: a ray_service.Seat as plain values}`` of what ``TrialProgram.services`` asked for.
        warm: Whether other trials may follow in the same processes.
    """

    trial: str
    base: Mapping[str, Any]
    params: Mapping[str, Any]
    store: Store
    placement_group: Any = None
    services: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warm: bool = False


@runtime_checkable
class RunningTrial(Protocol):
    """A started trial: an iterator of metrics.

    It may also have ``events() -> list[str]``: what happened to its processes since last asked, for the ledger;
    ``recalled``, an ``IterationMetrics`` or None: those of the checkpoint it goes on from, which no driver may
    have heard; ``restart(TrialContext) -> bool``: begins another trial of the same program in its processes, or
    False once it has ended them; and ``save()``: writes a checkpoint of the iteration yielded last into its store,
    for a trial that is to pause. Where its program is ``mutable`` it has ``save``, and keeps checkpoints as
    ``rlhf_core.checkpoint`` lays them out, none removed that ``rlhf_core.forks`` holds.
    """

    def __iter__(self) -> Iterator[IterationMetrics]: ...
    @property
    def is_last(self) -> bool:
        """Whether the metrics yielded last were the final ones."""
        ...

    def placement(self) -> dict[str, Any]:
        """What ``placement.json`` holds."""
        ...

    def close(self) -> None:
        """Ends everything the trial started."""
        ...


@runtime_checkable
class TrialProgram(Protocol):
    """A kind of trial.

    A program subclasses it and gives at least ``keys``, ``resolve``, ``placement`` and ``start``. All but
    ``start`` and ``judge`` are cheap and run on the driver of a sweep.

    Attributes:
        warm: Whether a process of it may serve one trial after the other.
        mutable: Dotted keys whose values take effect anew when a trial starts from a checkpoint; empty: its trials
            cannot be copied, nor paused unless the program ``waits``.
        waits: Whether a scheduler may have its trials wait, though nothing is ``mutable``.
    """

    warm: ClassVar[bool] = False
    mutable: ClassVar[tuple[str, ...]] = ()
    waits: ClassVar[bool] = False

    def keys(self) -> tuple[str, ...]:
        """Dotted keys a space may use; a part ``NAME`` stands for any name."""
        ...

    def resolve(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """The whole configuration of a trial, as ``config.json`` holds it."""
        ...

    def placement(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> PlacementPlan:
        """Where the processes of a trial go."""
        ...

    def start(self, context: TrialContext) -> RunningTrial:
        """Starts a trial, from its latest checkpoint where there is one."""
        ...

    def services(
        self, base: Mapping[str, Any], params: Mapping[str, Any]
    ) -> tuple[SharedRole, ...]:
        """Roles of a trial that the sweep is to serve, equal ones once for all trials."""
        return ()

    def check(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> list[str]:
        """Problems of a configuration, one line each."""
        return []

    def absolute(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """``{dotted key: value}`` with paths made absolute: workers have another working directory."""
        return dict(values)

    def prepare(self, base: Mapping[str, Any], progress: Progress | None = None) -> None:
        """Builds what all trials read, once, before the sweep starts."""
        return None

    def processes(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> int:
        """Processes of a trial that compute at the same time, times their threads."""
        return 1

    def store_need(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> StoreNeed | None:
        """What a trial keeps in Ray's object store; None where that is not known yet."""
        return StoreNeed(0, 0)

    def memory(
        self, base: Mapping[str, Any], params: Mapping[str, Any]
    ) -> tuple[WorkerMemory, ...] | None:
        """What its workers need; None where that is not known yet."""
        return ()

    def metrics(self, base: Mapping[str, Any], space: Collection[str]) -> tuple[str, ...] | None:
        """Names of metrics it reports under ``base`` and the keys of a space; None where any name may come."""
        return None

    def unmeasured(
        self, base: Mapping[str, Any], params: Mapping[str, Any], metrics: Collection[str]
    ) -> dict[str, str]:
        """Those of ``metrics`` that such a trial never reports, each with why and the remedy, as a line's tail."""
        return {}

    def model_parameters(self, base: Mapping[str, Any]) -> int | None:
        """Parameters of the model that is trained, by which presets of spaces scale; None where not known."""
        return None

    def iterations(self, base: Mapping[str, Any]) -> int | None:
        """Length of a full trial, or None where it is not known beforehand."""
        return None

    def notes(
        self, base: Mapping[str, Any], params: Mapping[str, Any], objective: str
    ) -> list[str]:
        """What is easily taken for something else in such trials, one line each."""
        return []

    def judge(
        self, config: Mapping[str, Any], store: Store, selection: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """A last judgement of a trial from its checkpoints, or None where the program has none."""
        return None

    def dump(self, config: Mapping[str, Any], header: str) -> str:
        """A configuration as the text of ``best.yaml``."""
        comment = "".join(f"# {line}\n" for line in header.splitlines())
        return comment + yaml.safe_dump(dict(config), sort_keys=False)


def load_program(path: str) -> TrialProgram:
    """The program behind ``package.module:Class``."""
    kind = import_named(path, "program", "Class")
    rule = f"program: {path!r} must be 'package.module:Class' of a TrialProgram"
    # Nothing is called before it is known to be what is asked for.
    if not isinstance(kind, type):
        raise ConfigError(f"{rule}: it is a {type(kind).__name__}, no class")
    missing = [m for m in dir(TrialProgram) if not m.startswith("_") and not hasattr(kind, m)]
    if missing:
        raise ConfigError(f"program: {path!r} is no TrialProgram: it lacks {', '.join(missing)}")
    try:
        program: TrialProgram = kind()
    # Making it runs the user's code, and whatever it raises.
    except Exception as error:
        raise ConfigError(f"{rule}, made without arguments: {error!r}") from error
    return program
