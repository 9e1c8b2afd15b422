"""``rlhf-sweep run``: a sweep from a file or a preset."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.console import Console

import analysis
from sweeps.commands.overrides import add_set_option, parse_overrides
from sweeps.load import preset_names
from sweeps.results import verdict_line
from sweeps.sweep import Interrupted, Sweep
from sweeps.terminal import make_console

INTERRUPTED = 130


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a sweep",
        description=f"Run a sweep from a file or a preset ({', '.join(preset_names())}).",
    )
    parser.add_argument("sweep", metavar="FILE|PRESET", help="sweep.yaml, or a preset's name")
    parser.add_argument("--out", type=Path, help="run directory (default: runs/NAME-DATE-TIME)")
    add_set_option(parser, "search.trials=4")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    console = make_console()
    sweep = Sweep.from_yaml(args.sweep, parse_overrides(args.overrides))
    config = sweep.loaded.config
    out = args.out or Path("runs") / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    sweep.check(out)
    if config.cluster.rehearse is not None:
        shape = config.cluster.rehearse
        console.print(
            f"[bold]Rehearsal:[/bold] {shape.nodes * shape.gpus:g} logical GPUs on {shape.nodes} "
            f"logical node{'s' * (shape.nodes > 1)}; Ray schedules them, the roles compute on this "
            "machine's CPU."
        )
    try:
        results = sweep.run(out, console)
    except Interrupted:
        console.print(
            f"\nInterrupted. {out} holds everything up to now: `rlhf-sweep status {out}`."
        )
        return INTERRUPTED
    console.print()
    console.print(analysis.render_leaderboard(analysis.load(out)))
    for note in results.notes:
        console.print(f"[yellow]note:[/yellow] {note}")
    if results.best is None:
        return 1
    if results.judgement:
        console.print(f"\n[bold]{results.best}[/bold]: {verdict_line(results.judgement)}")
    _print_files(console, out)
    return 0


def _print_files(console: Console, out: Path) -> None:
    console.print(
        f"\n{out}/best.yaml        the best configuration: rlhf-sweep train {out}/best.yaml"
        f"\n{out}/leaderboard.csv  every trial"
        f"\n{out}/curves.png       learning curves"
        f"\n{out}/parameters.png   the objective against each parameter",
        soft_wrap=True,
    )
