"""The scheduler and the guards of a sweep, and what a sweep must have for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rlhf_core.errors import nearest
from search_spaces import Constant, Float
from sweeps.config import GuardsConfig, SchedulerConfig, SweepConfig
from sweeps.decide.guards import LOOKS_AT, Guards, Limits
from sweeps.decide.halving import Asha, HyperBand
from sweeps.decide.population import Perturb, Population
from sweeps.decide.scheduling import (
    RESOURCES,
    NoScheduler,
    Report,
    SavePoints,
    Scheduler,
    Smoothed,
)
from sweeps.decide.stopping import MedianStopping

if TYPE_CHECKING:
    from sweeps.load import Loaded

HALVING, POPULATION = ("asha", "hyperband"), ("pbt", "pb2")


def make_guards(config: GuardsConfig, horizon: int | None = None) -> Guards:
    """The guards with the limits of the configuration, for trials of ``horizon`` iterations."""
    return Guards(Limits(**{f.name: getattr(config, f.name) for f in fields(Limits)}), horizon)


def make_scheduler(loaded: Loaded, places: int) -> Scheduler:
    """The scheduler of a sweep.

    Args:
        loaded: The sweep.
        places: Trials that may run at the same time.
    """
    config = loaded.config.scheduler
    made = _make(loaded, places)
    return Smoothed(made, config.smoothing) if config.smoothing > 1 else made


def _make(loaded: Loaded, places: int) -> Scheduler:
    config = loaded.config.scheduler
    horizon = loaded.program.iterations(loaded.base)
    metric = config.metric or loaded.config.search.objective
    if config.kind == "median":
        return MedianStopping(config.grace, config.min_trials)
    if config.kind in HALVING:
        points = SavePoints(config.resource, config.grace, config.reduction, metric)
        most = horizon if config.resource == "iterations" else None
        if config.kind == "asha":
            return Asha(points, most, not config.stop)
        return HyperBand.of(points, most, config.brackets, not config.stop)
    if config.kind in POPULATION:
        return _population(
            loaded, SavePoints(config.resource, config.interval, None, metric), places
        )
    return NoScheduler()


def _population(loaded: Loaded, points: SavePoints, places: int) -> Population:
    config, search = loaded.config.scheduler, loaded.config.search
    domains = {key: loaded.space[key].domain for key in mutated(loaded)}
    explorer: Any = Perturb(domains, config.perturb, config.resample)
    if config.kind == "pb2":
        # Nothing heavy is imported for a sweep without it.
        from sweeps.decide.bandit import Bandit

        explorer = Bandit(domains, explorer)
    return Population(
        points,
        explorer,
        config.quantile,
        search.seed,
        loaded.program.iterations(loaded.base),
        size=search.trials,
        taking_turns=search.trials > places,
        valid=lambda params: not loaded.space.check(params) and not loaded.program.check(loaded.base, params),
        name=config.kind,
    )  # fmt: skip


def mutated(loaded: Loaded) -> tuple[str, ...]:
    """Keys of the space that change in a copy."""
    asked = loaded.config.scheduler.mutate or loaded.program.mutable
    return tuple(
        key
        for key in asked
        if key in loaded.space and not isinstance(loaded.space[key].domain, Constant)
    )


def pauses(config: SchedulerConfig) -> bool:
    """Whether trials can be taken from their place and go on later."""
    return config.kind in POPULATION or (config.kind in HALVING and not config.stop)


def report(config: SweepConfig, trial: str, iteration: int, metrics: Mapping[str, float]) -> Report:
    """What the scheduler sees of a trial's metrics."""
    value = metrics.get(config.scheduler.metric or config.search.objective)
    if value is not None and config.search.direction == "minimize":
        value = -value
    name = RESOURCES[config.scheduler.resource]
    amount = float(iteration) if name is None else metrics.get(name)
    return Report(trial, iteration, amount, value)


def named_metrics(config: SweepConfig) -> dict[str, str]:
    """``{key of the sweep: metric that the scheduler or a guard looks at}``, where someone asked for it."""
    named, scheduler, guards = {}, config.scheduler, config.guards
    if scheduler.metric:
        named["scheduler.metric"] = scheduler.metric
    resource = RESOURCES[scheduler.resource]
    if resource is not None:
        named["scheduler.resource"] = resource
    for limit, metrics in LOOKS_AT.items():
        value = getattr(guards, limit)
        # A limit that is on by default is silent where its metric is not reported.
        if value is not None and value != GuardsConfig.model_fields[limit].default:
            # Of several the last one is what not every trial measures.
            named[f"guards.{limit}"] = metrics[-1]
    return named


def problems(loaded: Loaded) -> list[str]:
    """What the sweep lacks for its scheduler, one line each."""
    config, found = loaded.config.scheduler, list[str]()
    kind = f"scheduler.kind {config.kind!r}" + (
        " with stop false" if config.kind in HALVING else ""
    )
    goes_on = loaded.program.mutable or (loaded.program.waits and config.kind in HALVING)
    if pauses(config) and not goes_on:
        found.append(
            f"{kind} pauses trials, but program {loaded.config.program} cannot go on from a saved point; use "
            "asha, hyperband or median"
        )
    elif config.kind in POPULATION:
        found += _population_problems(loaded)
    if config.resource == "gpu_seconds" and not _has_gpus(loaded):
        found.append(
            "scheduler.resource is 'gpu_seconds', but trials have no GPUs; count tokens or iterations"
        )
    return found


def _has_gpus(loaded: Loaded) -> bool:
    return loaded.program.placement(loaded.base, {}).total("gpus") > 0


def _population_problems(loaded: Loaded) -> list[str]:
    config, search, program = loaded.config.scheduler, loaded.config.search, loaded.program
    found = [
        f"scheduler.mutate: {key!r} is not searched{nearest(key, loaded.space)}"
        for key in config.mutate
        if key not in loaded.space
    ]
    found += [
        f"scheduler.mutate: {key!r} cannot change in a trial under way; what can are {', '.join(program.mutable)}"
        for key in config.mutate
        if key in loaded.space and key not in program.mutable
    ]
    if not found and not mutated(loaded):
        found.append(
            f"scheduler.kind {config.kind!r} changes parameters of trials under way, but none of "
            f"{', '.join(program.mutable)} is searched; add one to the space"
        )
    if config.kind == "pb2":
        found += [
            f"scheduler.kind 'pb2' models numbers, but {key} is {loaded.space[key].domain}; make it a float, name "
            "others in scheduler.mutate, or use pbt"
            for key in mutated(loaded)
            if not isinstance(loaded.space[key].domain, Float)
        ]
    if search.sampler not in ("random", "qmc"):
        found.append(
            f"search.sampler {search.sampler!r} learns from parameters that scheduler.kind {config.kind!r} "
            "changes; use random or qmc"
        )
    if search.trials < 2:
        found.append(
            f"scheduler.kind {config.kind!r} compares trials; raise search.trials to 2 or more"
        )
    return found
