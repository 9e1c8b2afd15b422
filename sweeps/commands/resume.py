"""``rlhf-sweep resume``: a sweep goes on, whatever ended its driver."""

from __future__ import annotations

import argparse
from typing import Any

from sweeps.commands.files import path_argument
from sweeps.commands.overrides import add_set_option, parse_overrides
from sweeps.commands.run import launch


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "resume",
        help="go on with a sweep after an interruption, a crash or its end",
        description="Go on with the sweep in a run directory after Ctrl-C, a killed driver, a lost cluster, a "
        "full disk or a reboot. What ended is kept, trials that had begun go on from their last checkpoint, and "
        "the search goes on as if nothing had happened. Of a sweep that is over, --set search.trials=N runs more.",
    )
    parser.add_argument(
        "directory", type=path_argument, metavar="DIR", help="a run directory of `rlhf-sweep run`"
    )
    add_set_option(parser, "search.trials=20")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    # Imported here, with Ray and all: the other commands and --help answer at once.
    from sweeps.sweep import Sweep

    sweep = Sweep.from_directory(args.directory, parse_overrides(args.overrides))
    return launch(sweep, args.directory, resume=True)
