"""``rlhf-sweep report``: a sweep as one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import analysis
from rlhf_core.errors import ConfigError


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "report",
        help="write one self-contained HTML page about a sweep",
        description="Write what was asked, what was found, leaderboard, plots, failures, budget and "
        "reproducibility of a sweep, running or not, as one HTML file. Several sweeps become one report.",
    )
    parser.add_argument(
        "directory", type=Path, nargs="+", metavar="DIR", help="one run directory or several"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the page; by default DIR/report.html"
    )
    parser.add_argument("--pdf", action="store_true", help="print it to a PDF beside it as well")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if len(args.directory) > 1 and args.out is None:
        raise ConfigError("report: several sweeps have no directory in common; name --out FILE")
    out = args.out or args.directory[0] / "report.html"
    for path in analysis.write_report(analysis.load(args.directory), out, pdf=args.pdf):
        print(path)
    return 0
