"""``rlhf-sweep prepare``: rated text -> tokenizer, SFT policy and reward models."""

from __future__ import annotations

import argparse
from typing import Any

from sweeps.commands.files import path_argument
from sweeps.terminal import make_console, print_notes


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "prepare",
        help="make a task from rated texts",
        description="Train a tokenizer, an SFT policy, a reward model and a held-out reward model on "
        "rated texts (TSV, CSV, JSONL or Parquet). Use the folder as data.task.",
    )
    parser.add_argument(
        "--data",
        type=path_argument,
        required=True,
        metavar="FILE",
        help="the rated texts, one a row",
    )
    parser.add_argument(
        "--out", type=path_argument, required=True, metavar="DIR", help="the task folder to make"
    )
    parser.add_argument(
        "--text-column", default="text", metavar="NAME", help="column of the texts (default: text)"
    )
    parser.add_argument(
        "--rating-column",
        default="rating",
        metavar="NAME",
        help="column of the ratings, numbers, higher is better (default: rating)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the weights, of the orders and of which rows go where (default: 0)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from rlhf_core.tasks.prepare import PrepareRecipe, prepare
    from rlhf_core.tasks.report import advice, description
    from sweeps.stages import stages

    console = make_console()
    recipe = replace(
        PrepareRecipe(),
        seed=args.seed,
        text_column=args.text_column,
        rating_column=args.rating_column,
    )
    with stages(console, "preparing") as note:
        task = prepare(args.data, args.out, recipe, note)
    for line in description(task.metrics):
        console.print(line, soft_wrap=True)
    print_notes(console, advice(task.metrics))
    console.print(f"use it: --set base.data.task={args.out}", soft_wrap=True)
    return 0
