"""``rlhf-sweep stop``, ``pause``, ``resume-trial``, ``retry``, ``add`` and ``extend``: a sweep while it runs."""

from __future__ import annotations

import argparse
from typing import Any

from rlhf_core.errors import ConfigError
from sweeps.commands.files import path_argument
from sweeps.commands.overrides import parse_overrides

OF_TRIALS = {
    "stop": (
        "end a trial after its current iteration",
        "End a trial after its current iteration, or at once where it waits; what it reported counts as if the "
        "scheduler had stopped it.",
    ),
    "pause": (
        "have a trial give its place back for now",
        "Have a trial write a checkpoint after its current iteration and give its place back. It waits until "
        "`rlhf-sweep resume-trial`; the sweep goes on, and may end, without it.",
    ),
    "resume-trial": (
        "queue a paused trial again",
        "Queue a paused trial again; it goes on from its checkpoint.",
    ),
    "retry": (
        "run a failed or lost trial again",
        "Run a trial that failed or was lost again, from its last checkpoint, with the same parameters; for the "
        "search it is a new trial.",
    ),
}


def register(subparsers: Any) -> None:
    for action, (short, long) in OF_TRIALS.items():
        parser = _parser(subparsers, action, short, long)
        parser.add_argument("trial", metavar="TRIAL", help="its id, such as t0003")
    add = _parser(
        subparsers,
        "add",
        "add a configuration to try next",
        "Add a trial with these parameters; what is left out is sampled.",
    )
    add.add_argument("point", nargs="+", metavar="KEY=VALUE", help="a searched key and its value")
    extend = _parser(
        subparsers, "extend", "ask for more trials", "Raise how many trials the sweep runs."
    )
    extend.add_argument("--trials", type=int, required=True, metavar="N", help="trials in total")


def _parser(subparsers: Any, action: str, short: str, long: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(action, help=short, description=long)
    parser.add_argument(
        "directory",
        type=path_argument,
        metavar="DIR",
        help="a run directory of `rlhf-sweep run`, running or not",
    )
    parser.set_defaults(run=run, action=action)
    return parser


def run(args: argparse.Namespace) -> int:
    from sweeps.claim import is_claimed
    from sweeps.control import Command, Inbox, check, send
    from sweeps.history import read_config, read_states
    from sweeps.load import load_sweep

    loaded = load_sweep(read_config(args.directory)["config"])
    command = Command(args.action, getattr(args, "trial", None), _values(args))
    states, answered = read_states(args.directory)
    check(loaded, command, states, Inbox(args.directory, answered).read())
    send(args.directory, command)
    if is_claimed(args.directory):
        print(f"{args.action}: asked; {args.directory / 'events.jsonl'} will tell the answer")
    else:
        print(
            f"{args.action}: no driver runs this sweep now; `rlhf-sweep resume {args.directory}` carries it out"
        )
    return 0


def _values(args: argparse.Namespace) -> dict[str, Any]:
    if args.action == "add":
        return parse_overrides(args.point)
    if args.action == "extend":
        if args.trials < 1:
            raise ConfigError(f"extend: --trials must be at least 1, but is {args.trials}")
        return {"trials": args.trials}
    return {}
