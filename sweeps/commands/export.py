"""``rlhf-sweep export``: a configuration for another framework, or the trials for another program."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rlhf_core.errors import ConfigError, nearest
from rlhf_core.paths import user_path
from sweeps.commands.files import add_overwrite_option, check_target, path_argument, writing
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
        type=path_argument,
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
    add_overwrite_option(parser)
    add_set_option(parser, "ppo.clip_range_high=0.2")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    known = (*CONFIGS, *TRIALS)
    if args.to not in known:
        raise ConfigError(
            f"--to: no target {args.to!r}{nearest(args.to, known)}; there are {', '.join(known)}"
        )
    # A storage URL of Optuna is no path; what it may hold already is the storage's affair.
    url = args.to == "optuna" and "://" in (args.out or "")
    out = None if args.out is None or url else user_path(args.out, "--out")
    if out is not None:
        check_target(out, args.overwrite)
    if args.to in TRIALS:
        return _trials(args, out)
    from analysis.export import export_config, trial_config
    from analysis.files import replacing
    from rlhf_core.config import apply

    config, origin = trial_config(args.source, args.trial)
    config = apply(config, parse_overrides(args.overrides), "--set")
    made = export_config(config, args.to, version=args.version, origin=origin, role=args.role)
    if out is None:
        sys.stdout.write(made.text)
    else:
        with writing(out), replacing(out) as draft:
            draft.write_text(made.text, encoding="utf-8")
        print(f"{out} is written", file=sys.stderr)
    for line in made.report[:1]:
        print(line, file=sys.stderr)
    return 0


def _trials(args: argparse.Namespace, out: Path | None) -> int:
    import analysis
    from analysis.export import copy_study, has_study, write_table
    from analysis.files import replacing

    if args.out is None:
        raise ConfigError(f"--out: --to {args.to} needs a file to write; name one")
    if args.trial or args.overrides or args.version is not None or args.role != "policy":
        rule = f"--to {args.to} writes all trials as they are"
        raise ConfigError(f"{rule}; leave out --trial, --set, --version and --role")
    sweep = analysis.load(args.source)
    for warning in sweep.warnings:
        print(warning, file=sys.stderr)
    with writing(args.out):
        if out is None:
            count = copy_study(sweep, args.out)
        else:
            with replacing(out) as draft:
                study = args.to == "optuna"
                count = (
                    copy_study(sweep, str(draft)) if study else write_table(sweep, args.to, draft)
                )
    made = args.to == "optuna" and not has_study(sweep)
    told = ", made of what was recorded, since there is no study.log" if made else ""
    print(f"{args.out}: {count} trials{told}", file=sys.stderr)
    return 0
