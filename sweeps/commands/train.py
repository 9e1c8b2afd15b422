"""``rlhf-sweep train``: one trial without a sweep, by the same code."""

from __future__ import annotations

import argparse
from typing import Any

from rlhf_core.config.io import preset_names
from rlhf_core.errors import ConfigError
from rlhf_core.paths import user_path
from sweeps.commands.files import path_argument
from sweeps.commands.overrides import add_set_option, parse_overrides
from sweeps.terminal import make_console


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "train",
        help="run one trial without a sweep",
        description="Run one trial from a TrialConfig file, such as the best.yaml of a sweep, or "
        f"from a preset ({', '.join(preset_names())}).",
    )
    parser.add_argument(
        "config", metavar="FILE|PRESET", help="YAML or JSON of a TrialConfig, or a preset's name"
    )
    parser.add_argument(
        "--out", type=path_argument, help="folder for metrics.jsonl and checkpoints"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the latest checkpoint in --out"
    )
    parser.add_argument(
        "--save-model",
        type=path_argument,
        metavar="DIR",
        help="write the trained policy with its tokenizer as a Hugging Face folder",
    )
    add_set_option(parser, "budget.iterations=50")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from rlhf_core.config import apply, load_trial, resolve_trial
    from sweeps.train import train

    if args.resume and args.out is None:
        raise ConfigError("--resume goes on in the folder that --out names; add --out DIR")
    named = args.config in preset_names()
    config = (
        resolve_trial(args.config, args.config) if named else load_trial(user_path(args.config))
    )
    config = apply(config, parse_overrides(args.overrides), "--set")
    console = make_console()
    for metrics in train(config, args.out, resume=args.resume, save_model=args.save_model):
        console.print(progress_line(metrics.iteration, config.budget.iterations, metrics.values))
    if args.out is not None:
        console.print(
            f"{args.out}/metrics.jsonl and {args.out}/checkpoints are written", soft_wrap=True
        )
    if args.save_model is not None:
        console.print(f"{args.save_model} holds the trained policy", soft_wrap=True)
    return 0


def progress_line(iteration: int, budget: int, values: dict[str, float]) -> str:
    """One iteration in a line."""
    shown = {
        "reward": "reward/proxy",
        "held-out": "reward/heldout",
        "KL": "kl/response",
        "entropy": "policy/entropy",
        "eval held-out": "eval/heldout",
        "tokens/s": "rollout/tokens_per_second",
    }
    parts = [
        f"{label} {values[name]:,.0f}" if label == "tokens/s" else f"{label} {values[name]:.3f}"
        for label, name in shown.items()
        if name in values
    ]
    return f"{iteration:>4}/{budget}  " + "  ".join(parts)
