"""How well sweeps search and choose on a recorded table, at equal total budgets, against plain Tune.

    python tests/benchmarks/search_quality.py [--quick] [--table FILE] [--repeats N] [--all]

Random search, TPE without a scheduler, ASHA, this project's defaults, the defaults without the centres of the
space (blind) and with centres in the worst place (misled), and Tune's OptunaSearch with ASHAScheduler play the
same table on 4 virtual workers at 12, 24 and 48 full trials, test runs included. For each: how often what it chose
is truly good, and the full trials it spent until it had seen 90 % of the best (its whole budget where it did not
get there), with 95 % bootstrap intervals over repeats. Repeats differ by sampler seed and take the table's tuning
seeds in turn; the last rows are paired differences, above zero where the default is better: "difference" to plain
Tune, "centres" to blind. docs/replay.md defines the terms.

With --all the defaults at 24 full trials are played with each sampler and with each scheduler in the place of
theirs, with paired differences to the defaults; pbt and pb2 copy weights, which a table does not have.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from common import report

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

from plain_tune import TunePlayer

from search_spaces import Choice, Domain, Float, Int, Scalar, Space, codec
from sweeps.config import SAMPLERS
from sweeps.replay.play import Clock, play
from sweeps.replay.replay import Course, Played, in_full_trials, replay, sweep_on
from sweeps.replay.table import Table, read_table
from sweeps.replay.truth import Truth, truth
from sweeps.tuning.designs import place
from sweeps.tuning.space import to_distribution

WORKERS, REPEATS, QUICK = 4, 120, 6
BUDGETS, MAIN = (12.0, 24.0, 48.0), 24.0
ALONE: dict[str, Any] = {"selection.test_seeds": 0}
STRATEGIES: dict[str, dict[str, Any]] = {
    "random": {"search.sampler": "random", "scheduler.kind": "none", **ALONE},
    "tpe": {"scheduler.kind": "none", **ALONE},
    "asha": {"scheduler.kind": "asha", **ALONE},
    "default": {},
    "blind": {"search.prior": 0},
}
# What stands in the place of the defaults' own, tpe and median.
INSTEAD: dict[str, dict[str, Any]] = {
    **{name: {"search.sampler": name} for name in SAMPLERS if name != "tpe"},
    **{name: {"scheduler.kind": name} for name in ("none", "asha", "hyperband")},
    "asha, stop: false": {"scheduler.kind": "asha", "scheduler.stop": False},
    "hyperband, stop: false": {"scheduler.kind": "hyperband", "scheduler.stop": False},
}
MISLED = "misled"
TUNE = "plain_tune"


def ours(
    table: Table, judge: Truth, budget: float, seed: int, changes: Mapping[str, Any]
) -> Played:
    """A sweep with the defaults and ``changes``."""
    loaded = sweep_on(table, None, {**in_full_trials(budget), **changes}, seed)
    return replay(table, loaded, judge, WORKERS)


def theirs(table: Table, judge: Truth, budget: float, seed: int) -> Played:
    """Plain Tune, cut off once the budget is spent."""
    tuning, metric = table.header.tuning_seeds, table.header.objective
    clock = Clock()
    player = TunePlayer(table, metric, seed, tuning[seed % len(tuning)])
    course = Course(table, metric, judge)
    course.follow(play(player, clock, WORKERS), limit=budget)
    return course.played(table.header.nearest(player.best()), clock.now, {})


def misled(space: Space) -> Space:
    """The space with each centre at the end of its domain that is farther from where it was."""
    moved = {key: farthest(space[key].domain, centre) for key, centre in space.centres.items()}
    return space.merge(
        Space({key: dataclasses.replace(space[key], centre=end) for key, end in moved.items()})
    )


def farthest(domain: Domain, centre: Scalar) -> Scalar:
    """The end of a domain that is farther from ``centre`` in its scale; of a choice, the last other value."""
    if isinstance(domain, Choice):
        return next((value for value in reversed(domain.values) if value != centre), centre)
    assert isinstance(domain, Float | Int)
    assert isinstance(centre, int | float)
    return domain.low if place(to_distribution(domain), centre) > 0.5 else domain.high


def interval(values: Sequence[float]) -> list[float]:
    """Mean and 95 % bootstrap interval over repeats."""
    held, rng = np.asarray(values, np.float64), np.random.default_rng(0)
    means = held[rng.integers(0, held.size, (10_000, held.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return [round(float(v), 3) for v in (held.mean(), low, high)]


def costs(played: Sequence[Played], budget: float) -> list[float]:
    """Full trials until 90 % of the best was seen."""
    return [budget if one.to_target is None else one.to_target for one in played]


def compare(table: Table, judge: Truth, budget: float, repeats: int) -> dict[str, Any]:
    """Every strategy at one budget, and the paired differences of default and plain Tune."""
    players: dict[str, Callable[[int], Played]] = {
        name: lambda seed, changes=changes: ours(table, judge, budget, seed, changes)
        for name, changes in STRATEGIES.items()
    }
    wrong = {"space": codec.to_dict(misled(table.header.space))}
    players[MISLED] = lambda seed: ours(table, judge, budget, seed, wrong)
    players[TUNE] = lambda seed: theirs(table, judge, budget, seed)
    # The sides alternate, so that none of them has the machine to itself.
    found: dict[str, list[Played]] = {name: [] for name in players}
    for seed in range(repeats):
        for name, player in players.items():
            found[name].append(player(seed))
    rows = {name: row(played, budget) for name, played in found.items()}
    default, plain = found["default"], found[TUNE]
    rows["difference"] = difference(default, plain, budget)
    rows["centres"] = difference(default, found["blind"], budget)
    return {"rows": rows, "costs": (costs(default, budget), costs(plain, budget))}


def row(played: Sequence[Played], budget: float) -> dict[str, Any]:
    """What came of a strategy at one budget."""
    return {
        "good": interval([one.good for one in played]),
        "to_90": interval(costs(played, budget)),
        "reached": round(float(np.mean([one.to_target is not None for one in played])), 3),
        "spent": round(float(np.mean([one.spent for one in played])), 2),
    }


def compare_all(table: Table, judge: Truth, repeats: int) -> dict[str, Any]:
    """The defaults, and each other sampler or scheduler in their place, at the main budget."""
    rows, found = {}, dict[str, list[Played]]()
    for name, changes in {"default": {}, **INSTEAD}.items():
        found[name] = [ours(table, judge, MAIN, seed, changes) for seed in range(repeats)]
        gain = difference(found[name], found["default"], MAIN)
        rows[name] = row(found[name], MAIN) | {"gain": gain}
    return rows


def difference(
    one: Sequence[Played], other: Sequence[Played], budget: float
) -> dict[str, list[float]]:
    """How much better ``one`` is than ``other``, repeat by repeat."""
    gain = [a.good - b.good for a, b in zip(one, other, strict=True)]
    saved = np.subtract(costs(other, budget), costs(one, budget))
    return {"good": interval(gain), "to_90": interval(list(saved))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", type=Path, default=Path("tiny"), help="a recorded table")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--all", action="store_true", help="each sampler and scheduler instead")
    args = parser.parse_args()
    table = read_table(args.table)
    judge = truth(table, table.header.objective, ascending=False)
    repeats = args.repeats or (QUICK if args.quick else REPEATS)
    if args.all:
        rows = compare_all(table, judge, repeats)
        told = {"name": "strategies", "table": str(args.table), "repeats": repeats, "budget": MAIN}
        print(json.dumps({**told, "cost": table.header.cost, "rows": rows}))
        return
    found = {budget: compare(table, judge, budget, repeats) for budget in BUDGETS}
    ahead = all(
        found[budget]["rows"]["difference"][what][1] > 0
        for budget in BUDGETS
        for what in ("good", "to_90")
    )
    mine, other = found[MAIN]["costs"]
    print(
        report(
            "search_quality", mine, other, 1.0, "full trials", ok=ahead, workers=WORKERS,
            table=str(args.table), configurations=len(table.header.configurations),
            good=len(judge.good), noise=round(judge.noise, 4), cost=table.header.cost,
            budgets={f"{budget:g}": of["rows"] for budget, of in found.items()},
            optuna=version("optuna"), ray=version("ray"),
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
