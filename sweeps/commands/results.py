"""``rlhf-sweep status``, ``best`` and ``samples``: what a run directory holds."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import analysis
from analysis import shapes
from analysis.files import read_object
from analysis.finalists import tested_as
from analysis.leaderboard import objectives_of
from analysis.packed import is_packed
from analysis.params import parameters_of
from analysis.smoothed import smoothed_of
from rlhf_core.errors import ConfigError
from sweeps.commands.files import path_argument
from sweeps.record import strict_json
from sweeps.terminal import make_console, print_judgement, print_samples

DIRECTORY = "a run directory, which `rlhf-sweep run` wrote or is writing"


def register(subparsers: Any) -> None:
    status = subparsers.add_parser(
        "status",
        help="show how far a sweep is, running or not",
        description="Show how many trials of a run directory have ended, and how, what runs now and how far "
        "it is, and the best trial so far. It only reads, also while the sweep runs.",
    )
    status.add_argument("directory", type=path_argument, metavar="DIR", help=DIRECTORY)
    status.add_argument("--json", action="store_true", help="for programs")
    status.set_defaults(run=run_status)
    best = subparsers.add_parser(
        "best",
        help="show the best trial of a sweep",
        description="Show the best trial of a run directory that may be chosen: its objective, its parameters, "
        "its last judgement where there is one, and how to run it alone.",
    )
    best.add_argument("directory", type=path_argument, metavar="DIR", help=DIRECTORY)
    best.add_argument("--json", action="store_true", help="for programs")
    best.add_argument(
        "--within",
        metavar="REACH",
        help="with --cheapest: how far behind the best value a trial may be, as a share of it such as 5%%, or as "
        "an amount such as 0.1",
    )
    best.add_argument(
        "--cheapest", action="store_true", help="with --within: the one of these that cost least"
    )
    best.set_defaults(run=run_best)
    samples = subparsers.add_parser(
        "samples",
        help="show what the best trial writes, before and after",
        description="Show answers of the first and of the final policy of the best trial to the same test "
        "prompts, as its last judgement recorded them, with reward, length and distinct-n of all answers.",
    )
    samples.add_argument("directory", type=path_argument, metavar="DIR", help=DIRECTORY)
    samples.add_argument("--json", action="store_true", help="for programs")
    samples.set_defaults(run=run_samples)


def run_status(args: argparse.Namespace) -> int:
    sweep = analysis.load(args.directory)
    if args.json:
        print(strict_json(analysis.status(sweep, now=time.time())))
    else:
        make_console().print(analysis.render_status(sweep, now=time.time()))
    return 0


def run_best(args: argparse.Namespace) -> int:
    if args.cheapest != (args.within is not None):
        given, other = (
            ("--cheapest", "--within 5%") if args.cheapest else ("--within", "--cheapest")
        )
        raise ConfigError(f"{given} needs {other} beside it")
    within = analysis.Within.parse(args.within) if args.cheapest else None
    sweep = analysis.load(args.directory)
    found = None if within is None else analysis.cheapest(sweep, within)
    trial = analysis.best(sweep) if found is None else found.trial
    place = f"trials/{trial}/params.json"
    params = read_object(args.directory / place, place, [], shapes.PARAMS)
    if params is None:
        params = parameters_of(sweep, trial)
    document = {
        "trial": trial,
        "objective": sweep.objective.metric,
        "value": float(sweep.trials.loc[trial, "value"]),
        "smoothed": smoothed_of(sweep, trial),
        "objectives": objectives_of(sweep, trial),
        "front": analysis.front(sweep) if len(sweep.objectives) > 1 else [trial],
        "params": params,
        "test": tested_as(sweep, trial),
        "cheapest": None if found is None else found._asdict(),
        "judgement": _judgement(args.directory, trial),
    }
    if args.json:
        print(strict_json(document))
        return 0
    console = make_console()
    console.print(f"[bold]{trial}[/bold]  {document['objective']} {document['value']:.4f}")
    several = _front_lines(document["objectives"], document["front"], trial)
    told = _tested_line(document["test"]) or _smoothed_line(document["smoothed"])
    for line in (*several, told, _cheapest_line(found)):
        if line:
            console.print(line, soft_wrap=True)
    for key, value in params.items():
        console.print(
            f"  {key:<28} {value:.6g}" if isinstance(value, float) else f"  {key:<28} {value}"
        )
    if document["judgement"]:
        print_judgement(console, trial, document["judgement"])
    alone = args.directory / "best.yaml"
    if found is not None or not alone.exists():
        alone = args.directory / f"trials/{trial}/config.json"
    # A packed sweep holds no file that could be run.
    if not is_packed(args.directory):
        console.print(f"run it alone: rlhf-sweep train {alone}", soft_wrap=True)
    return 0


def _front_lines(
    values: Mapping[str, float | None], front: Sequence[str], trial: str
) -> Iterator[str]:
    """Of several objectives: what the trial has of the others, and who else nobody beats."""
    first, *others = values
    if not others:
        return
    told = ((metric, values[metric]) for metric in others)
    yield "  " + ", ".join(f"{m} {'not measured' if v is None else f'{v:.4f}'}" for m, v in told)
    among = f", {trial} among them" if trial in front else ""
    yield f"  ranked by {first}; {len(front)} on the front{among}: {', '.join(front) or 'none'}"


def run_samples(args: argparse.Namespace) -> int:
    trial = analysis.best(analysis.load(args.directory))
    judgement = _judgement(args.directory, trial)
    if judgement is None:
        raise ConfigError(
            f"samples: {args.directory} holds no last judgement of {trial}, its best trial; it is made when a "
            "sweep ends whose selection.test_prompts is above 0"
        )
    if args.json:
        print(strict_json({"trial": trial, "judgement": judgement}))
        return 0
    print_samples(make_console(), trial, judgement)
    return 0


def _tested_line(test: Mapping[str, Any] | None) -> str:
    if test is None or not test["seeds"]:
        return ""
    span = "" if test["low"] != test["low"] else f" ({test['low']:.4f} to {test['high']:.4f})"
    seeds = f"{test['seeds']} test seed{'s' * (test['seeds'] > 1)}"
    return f"  {test['test']:.4f}{span} on {seeds}. {test['verdict']}".rstrip()


def _smoothed_line(value: float | None) -> str:
    if value is None:
        return ""
    return f"  {value:.4f} smoothed over the parameters, by which trials rank"


def _cheapest_line(found: analysis.Cheapest | None) -> str:
    if found is None:
        return ""
    if found.trial == found.best:
        return (
            f"  the best is the cheapest of {found.within} trials within reach: {found.cost:.4g} s"
        )
    share = 1 - found.cost / found.best_cost if found.best_cost else 0.0
    return (
        f"  cheapest of {found.within} within reach of {found.best} ({found.best_value:.4f}): "
        f"{found.cost:.4g} s of {found.metric}, {share:.0%} less"
    )


def _judgement(directory: Path, trial: str) -> dict[str, Any] | None:
    """The recorded last judgement, where it is about this trial and whole."""
    recorded = read_object(directory / "best.json", "best.json", [], shapes.JUDGED) or {}
    judgement = recorded.get("judgement") if recorded.get("trial") == trial else None
    needed = ("before", "after", "gain", "stderr", "standard_errors", "kl_response")
    whole = isinstance(judgement, dict) and all(
        isinstance(judgement.get(key), int | float) for key in needed
    )
    return judgement if whole else None
