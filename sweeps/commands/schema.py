"""``rlhf-sweep schema``: the JSON schema of sweep.yaml, for editors."""

from __future__ import annotations

import argparse
import json
from typing import Any


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "schema",
        help="print the JSON schema of sweep.yaml",
        description="Print the JSON schema of sweep.yaml, or of a trial's file: an editor that knows it "
        "completes keys and marks what is wrong.",
    )
    parser.add_argument("--trial", action="store_true", help="of a trial's file instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from sweeps.schema import sweep_schema, trial_schema

    print(json.dumps(trial_schema() if args.trial else sweep_schema(), indent=1))
    return 0
