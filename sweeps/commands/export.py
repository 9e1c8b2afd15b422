"""``rlhf-sweep export``: a configuration for another framework, or the trials for another program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf_core.errors import ConfigError, nearest
from sweeps.commands.overrides import add_set_option, parse_overrides

CONFIGS = ("yaml", "json", "env", "openrlhf", "verl", "trl", "deepspeed")
TRIALS = ("optuna", "csv", "parquet")


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "export",
        help="write the best configuration, or the trials, for other programs",
        description="Write the best trial of a run directory, or a TrialConfig file, as a launch script or "
        "configuration of another framework; or the trials as a table or an Optuna study.",
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="DIR|FILE",
        help="a run directory, or YAML or JSON of a TrialConfig",
    )
    parser.add_argument(
        "--to", required=True, metavar="TARGET", help=", ".join((*CONFIGS, *TRIALS))
    )
    parser.add_argument("--version", help="version of the framework (default: the newest known)")
    parser.add_argument("--trial", metavar="ID", help="a trial of DIR instead of the best one")
    parser.add_argument(
        "--role",
        choices=("policy", "critic"),
        default="policy",
        help="whose optimiser a DeepSpeed file is about (default: policy)",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="where to write; for optuna also a storage URL"
    )
    add_set_option(parser, "ppo.clip_range_high=0.2")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    known = (*CONFIGS, *TRIALS)
    if args.to not in known:
        raise ConfigError(
            f"--to: no target {args.to!r}{nearest(args.to, known)}; there are {', '.join(known)}"
        )
    if args.to in TRIALS:
        return _trials(args)
    from analysis.export import export_config, trial_config
    from rlhf_core.config import apply

    config, origin = trial_config(args.source, args.trial)
    config = apply(config, parse_overrides(args.overrides), "--set")
    made = export_config(config, args.to, version=args.version, origin=origin, role=args.role)
    if args.out is None:
        sys.stdout.write(made.text)
    else:
        with writing(args.out):
            Path(args.out).write_text(made.text, encoding="utf-8")
        print(f"{args.out} is written", file=sys.stderr)
    for line in made.report[:1]:
        print(line, file=sys.stderr)
    return 0


def _trials(args: argparse.Namespace) -> int:
    import analysis
    from analysis.export import copy_study, write_table

    if args.out is None:
        raise ConfigError(f"--out: --to {args.to} needs a file to write; name one")
    if args.trial or args.overrides or args.version or args.role != "policy":
        rule = f"--to {args.to} writes all trials as they are"
        raise ConfigError(f"{rule}; leave out --trial, --set, --version and --role")
    sweep = analysis.load(args.source)
    for warning in sweep.warnings:
        print(warning, file=sys.stderr)
    study = args.to == "optuna"
    with writing(args.out):
        count = (
            copy_study(sweep, args.out) if study else write_table(sweep, args.to, Path(args.out))
        )
    print(f"{args.out}: {count} trials", file=sys.stderr)
    return 0


@contextmanager
def writing(out: str | Path) -> Iterator[None]:
    """Turns a place that cannot be written into one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"--out: {out} cannot be written: {reason}") from None
