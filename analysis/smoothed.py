"""The values of a sweep smoothed over its parameters, by which it ranks where no test runs decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis.finalists import fresh_runs
from analysis.space import axes

if TYPE_CHECKING:
    import pandas as pd

    from analysis.sweep import Sweep

# What was cut off tells which parameters are worse.
CUT_OFF = ("stopped", "diverged")
# Where parameters change under way a value belongs to none of them.
POPULATIONS = ("pbt", "pb2")


def is_smooth(config: Mapping[str, Any]) -> bool:
    """Whether a sweep of these settings ranks by smoothed values; one that does not say so does not."""
    selection, scheduler = config.get("selection") or {}, config.get("scheduler") or {}
    return selection.get("smooth") is True and scheduler.get("kind") not in POPULATIONS


def smoothed_values(sweep: Sweep) -> pd.Series[float] | None:
    """The smoothed objective of each trial of the search, NaN of those that did not complete.

    None where the sweep ranks by measured values, or its trials are too few to smooth anything.
    """
    import pandas as pd

    if not is_smooth(sweep.info.get("config") or {}):
        return None
    from analysis.statistics.smoothing import Run, smoothed

    sweep = sweep.searched
    trials = sweep.trials
    kinds = trials["outcome"].isin(["completed", *CUT_OFF]) & trials["value"].notna()
    used = trials[kinds & (trials["state"] == "ended")]
    rows = zip(_parameters(used), used["value"], used["outcome"], strict=True)
    runs = [Run(params, float(value), outcome == "completed") for params, value, outcome in rows]
    values = smoothed(runs, axes(sweep.space), sweep.objective.ascending)
    if values is None:
        return None
    return pd.Series(values, index=used.index).reindex(trials.index)


def _parameters(trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Of each trial by dotted key, without those that it does not have."""
    import pandas as pd

    names = [name for name in map(str, trials.columns) if name.startswith("params.")]
    columns = {name.removeprefix("params."): list(trials[name]) for name in names}
    return [
        {key: held[i] for key, held in columns.items() if not pd.isna(held[i])}
        for i in range(len(trials))
    ]


def smoothed_of(sweep: Sweep, trial: str) -> float | None:
    """The smoothed value of a trial; None where ranks are not by it, or it has none."""
    values = sweep.smoothed
    value = float("nan") if values is None else float(values.get(trial, float("nan")))
    return value if value == value else None


def ranked_by(sweep: Sweep) -> str:
    """That ranks are by smoothed values, in a line; "" where they are not."""
    if sweep.smoothed is None:
        return ""
    others = "trials without test runs are " if fresh_runs(sweep) else ""
    return f"{others}ranked by values smoothed over the parameters: what each would reach on an average seed"
