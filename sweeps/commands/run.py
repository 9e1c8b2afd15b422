"""``rlhf-sweep run``: a sweep from a file or a preset."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.errors import ConfigError
from sweeps.commands.files import path_argument
from sweeps.commands.overrides import add_set_option, parse_overrides
from sweeps.load import preset_names
from sweeps.terminal import make_console, print_judgement, print_notes

if TYPE_CHECKING:
    from rich.console import Console

    from sweeps.results import Results
    from sweeps.sweep import Sweep

INTERRUPTED = 130


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a sweep",
        description=f"Run a sweep from a file or a preset ({', '.join(preset_names())}).",
    )
    parser.add_argument("sweep", metavar="FILE|PRESET", help="sweep.yaml, or a preset's name")
    parser.add_argument(
        "--out", type=path_argument, help="run directory (default: runs/NAME-DATE-TIME)"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the sweep that --out holds, or begin it there; for what starts a sweep again and again",
    )
    add_set_option(parser, "search.trials=4")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    # Imported here, with Ray and all: the other commands and --help answer at once.
    from sweeps.sweep import Sweep

    if args.resume and args.out is None:
        raise ConfigError("--resume goes on in the folder that --out names; add --out DIR")
    sweep = Sweep.from_yaml(args.sweep, parse_overrides(args.overrides))
    name = sweep.loaded.config.name
    out = args.out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if not args.resume:
        sweep.check(out)
    return launch(sweep, out, resume=args.resume)


def launch(sweep: Sweep, out: Path, *, resume: bool) -> int:
    """Runs a sweep on the terminal; returns the exit code."""
    console, config = make_console(), sweep.loaded.config
    if config.cluster.rehearse is not None:
        shape = config.cluster.rehearse
        console.print(
            f"[bold]Rehearsal:[/bold] {shape.nodes * shape.gpus:g} logical GPUs on {shape.nodes} "
            f"logical node{'s' * (shape.nodes > 1)}; Ray schedules them, the roles compute on this "
            "machine's CPU."
        )
    print_notes(console, sweep.notes())
    try:
        results = sweep.run(out, console, resume=resume)
    except KeyboardInterrupt:
        _print_interruption(console, out)
        return INTERRUPTED
    return _report(console, out, results)


def _print_interruption(console: Console, out: Path) -> None:
    if not (out / "sweep.json").exists():
        console.print("\nInterrupted before the first trial; nothing was written.")
        return
    console.print(
        f"\nInterrupted. {out} holds everything up to now: `rlhf-sweep status {out}` and "
        f"`rlhf-sweep best {out}` read it, `rlhf-sweep resume {out}` goes on with it.",
        soft_wrap=True,
    )


def _report(console: Console, out: Path, results: Results) -> int:
    import analysis

    console.print()
    console.print(analysis.render_leaderboard(analysis.load(out)))
    print_notes(console, results.notes)
    if results.best is None:
        return 1
    if results.judgement:
        print_judgement(console, results.best, results.judgement)
    _print_files(console, out)
    return 0


def _print_files(console: Console, out: Path) -> None:
    console.print(
        f"\nIn {out}:"
        "\n  best.yaml        the best configuration"
        "\n  leaderboard.csv  every trial with all its parameters"
        "\n  curves.png       learning curves"
        "\n  parameters.png   the objective against each parameter"
        f"\nrun it alone: rlhf-sweep train {out}/best.yaml",
        soft_wrap=True,
    )
