"""``rlhf-sweep prepare``: rated text -> tokenizer, SFT policy and reward models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sweeps.terminal import make_console


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "prepare",
        help="make a task from rated texts",
        description="Train a tokenizer, an SFT policy, a reward model and a held-out reward model on "
        "rated texts (TSV, CSV, JSONL or Parquet). Use the folder as data.task.",
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--text-column", default="text", metavar="NAME")
    parser.add_argument("--rating-column", default="rating", metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from rlhf_core.tasks.prepare import PrepareRecipe, prepare

    console = make_console()
    recipe = replace(
        PrepareRecipe(),
        seed=args.seed,
        text_column=args.text_column,
        rating_column=args.rating_column,
    )
    with console.status("preparing") as status:

        def note(stage: str, done: int, total: int) -> None:
            status.update(f"{stage} {done}/{total}")

        task = prepare(args.data, args.out, recipe, note)
    for name, value in task.metrics.items():
        console.print(f"{name:<32} {value:.4g}")
    console.print(f"use it: --set base.data.task={args.out}", soft_wrap=True)
    return 0
