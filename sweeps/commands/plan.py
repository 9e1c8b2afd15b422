"""``rlhf-sweep plan``: what a sweep would do, without doing it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rlhf_core.errors import ConfigError
from rlhf_core.runtime.placement import in_words
from sweeps.commands.overrides import add_set_option, parse_overrides
from sweeps.picture import amount, draw_trial, numbered, planned, with_services
from sweeps.terminal import make_console, print_notes

if TYPE_CHECKING:
    from sweeps.plan import ServiceShape, Shape, SweepPlan
    from sweeps.sweep import Sweep


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="show placement and concurrency of a sweep",
        description="Show where the roles of a trial would go, how many trials run at once and what limits them, "
        "which GPUs stay unused, and what object stores should hold. Nothing is started; the exit code is 2 "
        "where a trial fits nowhere.",
    )
    parser.add_argument("sweep", metavar="FILE|PRESET", help="sweep.yaml, or a preset's name")
    add_set_option(parser, "cluster.rehearse.gpus=8")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from rich.text import Text

    from sweeps.plan import fit_note, spill_note
    from sweeps.sweep import Sweep

    sweep = Sweep.from_yaml(args.sweep, parse_overrides(args.overrides))
    console = make_console()
    plan = _plan(sweep)
    config = sweep.loaded.config
    rehearsed = " (logical GPUs)" if config.cluster.rehearse else ""
    console.print(
        f"[bold]{config.name}[/bold]: {plan.trials} trials of "
        f"{plan.iterations or '?'} iterations, {plan.max_concurrent} at a time{rehearsed}: {plan.limit}",
        soft_wrap=not console.is_terminal,
    )
    print_notes(console, [*sweep.notes(), *filter(None, [spill_note(plan), fit_note(plan)])])
    for shape in plan.shapes:
        need = _memory_lines(sweep, shape)
        for line in [*_picture(shape, plan), *need, _shape_line(shape)]:
            console.print(Text(line), soft_wrap=True)
    for service in plan.services:
        console.print(Text(_service_line(service)), soft_wrap=True)
    if plan.max_concurrent:
        console.print(Text(_store_line(plan)), soft_wrap=True)
    for problem in plan.problems:
        console.print(f"[red]{problem}[/red]", soft_wrap=True)
    return 2 if plan.problems else 0


def _plan(sweep: Sweep) -> SweepPlan:
    """Against the nodes a rehearsal or this machine has, or those of the running cluster."""
    if sweep.loaded.config.cluster.address is None:
        return sweep.plan()
    from sweeps.tuning import cluster

    with cluster.running(sweep.loaded.config.cluster) as nodes:
        if not nodes:
            raise ConfigError("cluster.address: the cluster has no live node")
        return sweep.plan(nodes)


def _picture(shape: Shape, plan: SweepPlan) -> list[str]:
    """The bundles on their nodes, those of services beside them; or in a list where they fit nowhere."""
    title = ", ".join(f"{k} = {v}" for k, v in shape.params.items()) or "every trial"
    if shape.place is not None:
        services = [planned(s.plan, s.place) for s in plan.services if s.place is not None]
        record = with_services(planned(shape.plan, shape.place), services)
        return [title, *draw_trial("", record, numbered(plan.nodes))]
    bundles = [
        f"  bundle {i}  {b.owner}: {in_words(b.amounts())}"
        for i, b in enumerate(shape.plan.bundles)
    ]
    return [title, f"layout {shape.plan.layout}, {shape.plan.strategy}, fits nowhere", *bundles]


def _memory_lines(sweep: Sweep, shape: Shape) -> list[str]:
    """What each worker needs of the memory it is given, by what it is for."""
    from rlhf_core.memory import in_parts

    loaded = sweep.loaded
    workers = loaded.program.memory(loaded.base, shape.params)
    if workers is None:
        return ["  memory: known once every model is built or downloaded"]
    lines = []
    for worker in workers:
        size, limit = (
            (worker.gpu, worker.gpu_limit) if worker.on_gpu else (worker.host, worker.host_limit)
        )
        of = f" of {limit / 1e9:.2f}" if limit is not None else ""
        kind = "GPU memory" if worker.on_gpu else "memory"
        name = "the process" if worker.name == "trial" else f"a worker of {worker.name}"
        lines.append(f"  {kind}: {name} needs {size / 1e9:.2f}{of} GB: {in_parts(worker)}")
    return lines


def _service_line(service: ServiceShape) -> str:
    """What a service reserves for the whole sweep."""
    total = service.plan.total
    return (
        f"shared {service.role}: {amount(len(service.plan.workers), 'replica')} for all trials, "
        f"{amount(total('cpus'), 'CPU')}, {amount(total('gpus'), 'GPU')}, {total('memory_gb'):g} GB"
    )


def _store_line(plan: SweepPlan) -> str:
    """What a node's object store should hold."""
    if plan.store is None:
        return "object store: what trials need is known once their policy is built or downloaded"
    if not plan.store.total:
        return "object store: trials keep nothing in it"
    weights, batch, ahead = (
        size / 1e6 for size in (plan.store.weights, plan.store.batch, plan.store.ahead)
    )
    parts = [
        f"{plan.store.versions} weight versions of {weights:,.1f} MB",
        f"a batch of {batch:,.1f} MB",
    ]
    parts += [f"{ahead:,.1f} MB of batches sampled ahead"] if ahead else []
    return (
        f"object store: {plan.store_gb * 1e3:,.0f} MB a node for {amount(plan.max_concurrent, 'trial')} at once: "
        f"each {', '.join(parts[:-1])} and {parts[-1]}, with a margin"
    )


def _shape_line(shape: Shape) -> str:
    from sweeps.plan import runs_out

    total = shape.plan.total
    line = (
        f"  sum {amount(total('cpus'), 'CPU')}, {amount(total('gpus'), 'GPU')}, "
        f"{total('memory_gb'):g} GB"
    )
    if shape.shortfall is not None:
        return line + "\n"
    line += f"; the nodes hold {shape.at_once} at once"
    line += f" ({runs_out(shape)})" if shape.scarce else ""
    if shape.stranded:
        stays = "stays" if shape.stranded == 1 else "stay"
        line += f", {amount(shape.stranded, 'GPU')} {stays} unused then"
    return line + "\n"
