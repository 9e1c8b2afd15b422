"""``rlhf-sweep replay``: a sweep against recorded learning curves, in virtual time."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sweeps.commands.files import path_argument
from sweeps.commands.overrides import add_set_option, parse_overrides
from sweeps.record import strict_json
from sweeps.terminal import make_console

if TYPE_CHECKING:
    from sweeps.replay.replay import Played
    from sweeps.replay.table import Table
    from sweeps.replay.truth import Truth

EQUIVALENT = 24.0


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "replay",
        help="play a sweep against recorded learning curves",
        description="Play a sweep against a recorded table of learning curves: its own searcher, scheduler, "
        "guards and choice decide, virtual workers take the recorded time. It tells what was chosen, how good "
        "that is by seeds no sweep saw, and what it cost.",
    )
    parser.add_argument(
        "table",
        type=path_argument,
        metavar="TABLE",
        help="a recorded table (Parquet), or tiny or epochs: 240 and 108 configurations of the built-in task",
    )
    parser.add_argument(
        "--sweep",
        metavar="FILE|PRESET",
        help="how to search; where it runs does not matter (default: the table's space, all else default)",
    )
    parser.add_argument(
        "--trials-equivalent",
        type=at_least(1, float),
        metavar="N",
        help="what search and test runs may cost together, in trials of full length (default: what the "
        f"sweep says, {EQUIVALENT:g} without --sweep)",
    )
    parser.add_argument("--workers", type=at_least(1, int), default=4, help="trials at a time (4)")
    parser.add_argument("--seed", type=at_least(0, int), default=0, help="of the first repeat (0)")
    parser.add_argument(
        "--repeats", type=at_least(1, int), default=1, help="sweeps on seeds in turn (1)"
    )
    add_set_option(parser, "scheduler.kind=asha")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def at_least(low: float, kind: Callable[[str], float]) -> Callable[[str], float]:
    """The ``type`` of an option that is a number from ``low`` on."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (value >= low and math.isfinite(value)):
            rule = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{rule} from {low:g} on is needed, but is {text!r}")
        return value

    return read


def run(args: argparse.Namespace) -> int:
    # With Optuna and pandas, which the other commands do without.
    from sweeps.replay.replay import in_full_trials, replay, sweep_on
    from sweeps.replay.table import read_table
    from sweeps.replay.truth import truth

    table = read_table(args.table)
    equivalent = args.trials_equivalent or (None if args.sweep else EQUIVALENT)
    limits = in_full_trials(equivalent) if equivalent else {}
    overrides = {**limits, **parse_overrides(args.overrides)}
    sweeps = [
        sweep_on(table, args.sweep, overrides, args.seed + repeat) for repeat in range(args.repeats)
    ]
    search = sweeps[0].config.search
    judge = truth(table, search.objective, search.direction == "minimize")
    began = time.perf_counter()
    played = [replay(table, loaded, judge, args.workers) for loaded in sweeps]
    seconds = time.perf_counter() - began
    if args.json:
        print(strict_json(_document(table, judge, played, seconds)))
        return 0
    console = make_console()
    for line in _lines(table, judge, played, seconds):
        console.print(line, soft_wrap=True)
    return 0


def _document(
    table: Table, judge: Truth, played: Sequence[Played], seconds: float
) -> dict[str, Any]:
    points = table.header.configurations
    return {
        "cost": table.header.cost,
        "configurations": len(points),
        "good": len(judge.good),
        "noise": judge.noise,
        "target": judge.target,
        "seconds": seconds,
        "speedup": _speedup(played, seconds),
        "repeats": [
            {**asdict(one), "params": None if one.chosen is None else points[one.chosen]}
            for one in played
        ],
    }


def _speedup(played: Sequence[Played], seconds: float) -> float:
    """Recorded seconds of all trials, as if one ran after the other, for each second of the replay."""
    return sum(one.trained for one in played) / max(seconds, 1e-9)


def _lines(table: Table, judge: Truth, played: Sequence[Played], seconds: float) -> list[str]:
    header, count = table.header, len(table.header.configurations)
    lines = [
        f"{count} configurations, {len(judge.good)} of them truly good; noise of a run {judge.noise:.3g}; "
        f"{header.cost}"
    ]
    lines += [_line(table, judge, one) for one in played]
    if len(played) > 1:
        good = sum(one.good for one in played)
        reached = [one.to_target for one in played if one.to_target is not None]
        middle = f", {statistics.median(reached):.1f} full trials in the median" if reached else ""
        lines.append(
            f"truly good: {good} of {len(played)}; came to 90 % of the best: {len(reached)} of "
            f"{len(played)}{middle}"
        )
    trained = sum(one.trained for one in played)
    lines.append(
        f"{trained:.0f} recorded seconds of trials took {seconds:.2f} s "
        f"({_speedup(played, seconds):,.0f} times faster)"
    )
    return lines


def _line(table: Table, judge: Truth, one: Played) -> str:
    told = ", ".join(f"{count} {name}" for name, count in sorted(one.outcomes.items()))
    spent = f"{one.spent:.1f} full trials: {told}"
    if one.chosen is None:
        return f"nothing chosen after {spent}"
    params = ", ".join(
        f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}"
        for k, v in table.header.configurations[one.chosen].items()
    )
    rank = judge.ranked.index(one.chosen) + 1 if one.chosen in judge.values else None
    place = f"true rank {rank}" if rank else "not among the best that ran on test seeds"
    verdict = "truly good" if one.good else "not truly good"
    return f"chose configuration {one.chosen} ({params}): {verdict}, {place}; {spent}"
