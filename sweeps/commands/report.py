"""``rlhf-sweep report``: a sweep as one page."""

from __future__ import annotations

import argparse
from typing import Any

import analysis
from rlhf_core.errors import ConfigError
from sweeps.commands.files import check_target, path_argument, writing


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "report",
        help="write one self-contained HTML page about a sweep",
        description="Write what was asked, what was found, leaderboard, plots, failures, budget and "
        "reproducibility of a sweep, running or not, as one HTML file. Several sweeps become one report.",
    )
    parser.add_argument(
        "directory",
        type=path_argument,
        nargs="+",
        metavar="DIR",
        help="one run directory or several",
    )
    parser.add_argument(
        "--out", type=path_argument, metavar="FILE", help="the page; by default DIR/report.html"
    )
    parser.add_argument("--pdf", action="store_true", help="print it to a PDF beside it as well")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if len(args.directory) > 1 and args.out is None:
        raise ConfigError("report: several sweeps have no directory in common; name --out FILE")
    out = args.out or args.directory[0] / "report.html"
    # A page is made anew from what it is about: the last one may go.
    check_target(out, overwrite=True)
    sweep = analysis.load(args.directory)
    with writing(out):
        written = analysis.write_report(sweep, out, pdf=args.pdf)
    for path in written:
        print(path)
    return 0
