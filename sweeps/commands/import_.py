"""``rlhf-sweep import``: a launch script of another framework as a ``TrialConfig``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sweeps.commands.files import add_overwrite_option, check_target, path_argument, writing


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "import",
        help="read a launch script of another framework as a start point",
        description="Read a launch script, program or configuration of another framework and write it as a "
        "TrialConfig, with everything that has no counterpart in its first lines.",
    )
    parser.add_argument(
        "file",
        type=path_argument,
        metavar="FILE",
        help="script, program, YAML or JSON, or a file with bare flags; nothing in it is executed",
    )
    parser.add_argument(
        "--from",
        dest="target",
        required=True,
        choices=("openrlhf", "verl", "trl"),
        help="the framework it is for",
    )
    parser.add_argument("--version", help="version of the framework (default: what fits the file)")
    parser.add_argument(
        "--out",
        type=path_argument,
        metavar="FILE",
        help="where to write the YAML (default: the terminal)",
    )
    add_overwrite_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from analysis.export import import_file
    from analysis.files import replacing
    from sweeps.programs.describe import differences_as_yaml

    if args.out is not None:
        check_target(args.out, args.overwrite)
    made = import_file(args.target, args.file, args.version)
    title = f"Read from {args.file} ({args.target} {made.version}) by rlhf-sweep."
    comments = "".join(f"# {line}\n" for line in [title, *made.report()])
    text = comments + differences_as_yaml(made.config)
    if args.out is None:
        sys.stdout.write(text)
    else:
        with writing(args.out), replacing(args.out) as draft:
            draft.write_text(text, encoding="utf-8")
        print(f"{args.out} is written", file=sys.stderr)
        # Without --out the first lines on the terminal are these already.
        for line in made.report():
            print(line, file=sys.stderr)
    return 0
