"""The finalists of a sweep: trials of the search that ran again on test seeds, by which they rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.eligible import kinds
from analysis.names import number
from analysis.selection import Comparison, FreshRuns, compare, interval, rank
from analysis.sweep import Sweep

if TYPE_CHECKING:
    import pandas as pd


def fresh_runs(sweep: Sweep) -> dict[str, FreshRuns]:
    """The test runs that have ended, by finalist in the order of the search."""
    runs = sweep.tests
    ended = (runs.trials["state"] == "ended").to_numpy()
    found: dict[str, FreshRuns] = {}
    rows = zip(runs.trials["of"], runs.trials["value"], kinds(runs), ended, strict=True)
    for finalist, value, kind, over in rows:
        if not over:
            continue
        so_far = found.get(finalist, FreshRuns((), 0))
        counts = kind == ""
        values = (*so_far.values, float(value)) if counts else so_far.values
        found[finalist] = FreshRuns(values, so_far.failed + (not counts))
    return {trial: found[trial] for trial in map(str, sweep.trials.index) if trial in found}


def finalists(sweep: Sweep) -> pd.DataFrame:
    """The finalists, the best first.

    Returns:
        Columns ``trial`` str, ``test`` float64 (interquartile mean of the objective over its test
        runs), ``low`` and ``high`` float64 (95 % bootstrap interval, seeds resampled; NaN of a
        single run), ``seeds`` int64 (test runs that count), ``failed`` int64 (those that did not
        complete or break a constraint), and of several objectives ``test.<metric>`` float64 for each
        further one (interquartile mean of the same runs). Empty where no test run has ended.

    Raises:
        ConfigError: ``sweep.json`` states no objective or an unreadable constraint.
    """
    import pandas as pd

    runs = fresh_runs(sweep)
    order = rank(runs, sweep.objective.ascending) if runs else []
    lost = [trial for trial in runs if trial not in order]
    rows = [
        (trial, *interval(runs[trial]), len(runs[trial].values), runs[trial].failed)
        for trial in [*order, *lost]
    ]
    names = ["trial", "test", "low", "high", "seeds", "failed"]
    kinds_of = {"trial": "str", "seeds": "int64", "failed": "int64"}
    table = pd.DataFrame(rows, columns=names).astype(kinds_of)
    for goal in sweep.objectives[1:]:
        table[f"test.{goal.metric}"] = _of_the_same(sweep, goal.metric, table["trial"])
    return table


def _of_the_same(sweep: Sweep, metric: str, order: pd.Series[str]) -> list[float]:
    """The interquartile mean of another objective over the test runs that count, by finalist."""
    from analysis.statistics.robust import iqm

    runs = sweep.tests
    counts = [kind == "" for kind in kinds(runs)]
    values = runs.ranked_by(metric).trials.loc[counts, ["of", "value"]].dropna()
    held = {str(of): own.to_numpy() for of, own in values.groupby("of")["value"]}
    return [iqm([held[trial]]) if trial in held else float("nan") for trial in order]


def runner_up(sweep: Sweep) -> Comparison | None:
    """The first finalist against the second; None where there are not two."""
    runs = fresh_runs(sweep)
    order = rank(runs, sweep.objective.ascending) if runs else []
    return compare(runs, order[0], order[1]) if len(order) > 1 else None


def verdict(sweep: Sweep) -> str:
    """Whether the two best finalists can be told apart, in a sentence; "" without two finalists."""
    found = runner_up(sweep)
    if found is None:
        return ""
    if found.low != found.low:
        return f"{found.first} and {found.second} cannot be told apart: each ran on one test seed only."
    difference = f"difference {number(found.difference)}, {number(found.low)} to {number(found.high)} at 95 %"
    if found.apart:
        return f"{found.first} is better than {found.second} on test seeds: {difference}."
    return f"{found.first} and {found.second} cannot be told apart on test seeds: {difference}."


def tested_as(sweep: Sweep, trial: str) -> dict[str, Any] | None:
    """A row of ``finalists`` as plain data, with the verdict; None of a trial that is no finalist."""
    table = finalists(sweep)
    rows = table[table["trial"] == trial].to_dict("records")
    if not rows:
        return None
    return {str(key): value for key, value in rows[0].items()} | {"verdict": verdict(sweep)}
