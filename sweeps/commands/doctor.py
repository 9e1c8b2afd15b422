"""``rlhf-sweep doctor``: what is installed, whether names clash, which devices there are, whether Ray starts."""

from __future__ import annotations

import argparse
from typing import Any

from sweeps.terminal import make_console


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check this installation",
        description="Check what is installed, whether names of packages clash, which devices there are and "
        "whether Ray starts; each thing that is wrong comes with its remedy. The exit code is 1 then.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from sweeps.doctor import examine

    console = make_console()
    findings = examine()
    for finding in findings:
        mark = "[green]ok[/green]  " if finding.ok else "[red]bad[/red] "
        console.print(f"{mark} {finding.what}", soft_wrap=True)
        if not finding.ok:
            console.print(f"     {finding.remedy}", soft_wrap=True)
    return 0 if all(finding.ok for finding in findings) else 1
