"""``rlhf-sweep plan``: what a sweep would do, without doing it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rlhf_core.errors import ConfigError
from sweeps.commands.overrides import add_set_option, parse_overrides
from sweeps.terminal import make_console, print_notes

if TYPE_CHECKING:
    from rich.table import Table

    from sweeps.plan import Shape, SweepPlan
    from sweeps.sweep import Sweep


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("plan", help="show placement, concurrency and cost of a sweep")
    parser.add_argument("sweep", metavar="FILE|PRESET")
    add_set_option(parser, "cluster.rehearse.gpus=8")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from sweeps.sweep import Sweep

    sweep = Sweep.from_yaml(args.sweep, parse_overrides(args.overrides))
    console = make_console()
    plan = _plan(sweep)
    config = sweep.loaded.config
    rehearsed = " (logical GPUs)" if config.cluster.rehearse else ""
    console.print(
        f"[bold]{config.name}[/bold]: {plan.trials} trials of "
        f"{plan.iterations or '?'} iterations, {plan.max_concurrent} at a time{rehearsed}: {plan.limit}"
    )
    print_notes(console, sweep.notes())
    for shape in plan.shapes:
        console.print(_shape_table(shape))
        console.print(_shape_line(shape), soft_wrap=True)
    for problem in plan.problems:
        console.print(f"[red]{problem}[/red]", soft_wrap=True)
    return 2 if plan.problems else 0


def _plan(sweep: Sweep) -> SweepPlan:
    """Against the nodes a rehearsal or this machine has, or those of the running cluster."""
    if sweep.loaded.config.cluster.address is None:
        return sweep.plan()
    from sweeps.plan import plan_sweep
    from sweeps.tuning import cluster

    with cluster.running(sweep.loaded.config.cluster) as nodes:
        if not nodes:
            raise ConfigError("cluster.address: the cluster has no live node")
        return plan_sweep(sweep.loaded, nodes)


def _shape_table(shape: Shape) -> Table:
    from rich.table import Table

    title = ", ".join(f"{k} = {v}" for k, v in shape.params.items()) or "every trial"
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for name in ("bundle", "for", "CPUs", "GPUs", "memory"):
        table.add_column(name, justify="left" if name == "for" else "right")
    for index, bundle in enumerate(shape.plan.bundles):
        hosted = [w.roles for w in shape.plan.workers if w.bundle == index]
        roles = "+".join(hosted[0]) if hosted else bundle.owner
        table.add_row(
            str(index), roles, f"{bundle.cpus:g}", f"{bundle.gpus:g}", f"{bundle.memory_gb:g} GB"
        )
    return table


def _shape_line(shape: Shape) -> str:
    total = shape.plan.total
    line = (
        f"  sum {amount(total('cpus'), 'CPU')}, {amount(total('gpus'), 'GPU')}, "
        f"{total('memory_gb'):g} GB; the nodes hold {shape.at_once} at once"
    )
    if shape.stranded:
        stays = "stays" if shape.stranded == 1 else "stay"
        line += f", {amount(shape.stranded, 'GPU')} {stays} unused then"
    return line + "\n"


def amount(count: float, unit: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{count:g} {unit}" + ("" if count == 1 else "s")
