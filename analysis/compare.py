"""Small helpers for notebooks: the course of the search, one parameter at a time, what is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.eligible import why_not
from analysis.finalists import finalists, verdict
from analysis.leaderboard import leaderboard
from analysis.load import Sweep
from analysis.names import no_such, number
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

_MOST_GROUPS = 12


def best_so_far(sweep: Sweep) -> pd.DataFrame:
    """The course of the search: trials in the order in which they ended.

    Returns:
        One row per ended trial: ``ended`` int64 (1, 2, ...), ``trial`` str, ``outcome`` category,
        ``seconds`` float64 since the first line of the ledger, ``value`` float64 (the objective),
        ``eligible`` bool, ``best`` float64 (the best eligible value so far, NaN before the first).

    Raises:
        ConfigError: ``sweep.json`` states no objective or an unreadable constraint.
    """
    sweep = sweep.searched
    events = sweep.events
    # A trial that was retried ends twice; its last end is the one that counts.
    ends = events[events["state"] == "ended"].groupby("trial", sort=False)["time"].last()
    done = sweep.trials.index[sweep.trials["state"] == "ended"]
    ends = ends[ends.index.isin(done)].sort_values(kind="stable")
    rows = sweep.trials.loc[ends.index]
    frame = rows[["outcome", "value"]].rename_axis("trial").reset_index()
    frame.insert(0, "ended", range(1, len(frame) + 1))
    frame.insert(3, "seconds", (ends - events["time"].min()).to_numpy())
    frame["eligible"] = (why_not(sweep).loc[ends.index] == "").to_numpy()
    counted = frame["value"].where(frame["eligible"])
    running = counted.cummin() if sweep.objective.ascending else counted.cummax()
    frame["best"] = running.ffill()
    return frame


def final_by(sweep: Sweep, param: str, metric: str | None = None, bins: int = 4) -> pd.DataFrame:
    """A final metric for each value of a parameter, over completed trials.

    Args:
        sweep: A loaded sweep.
        param: Dotted key of the parameter.
        metric: Name of the metric; the objective by default.
        bins: Quantile bins for a numeric parameter of more than 12 values.

    Returns:
        Indexed by the value of the parameter (for bins ``"low to high"``), in its order:
        ``trials`` int64, and ``median``, ``low`` and ``high`` (quartiles), ``min``, ``max`` float64
        in the metric's unit.

    Raises:
        ConfigError: There is no such parameter or metric; near misses are named.
    """
    import pandas as pd

    sweep = sweep.searched
    wanted = metric or sweep.metric
    column = "value" if wanted == sweep.metric else f"final.{wanted}"
    trials = sweep.trials
    _require(f"params.{param}", trials, "params.", "parameter")
    _require(column, trials, "final.", "metric")
    done = trials[trials["outcome"] == "completed"]
    by: pd.Series[Any] = done[f"params.{param}"]
    if by.nunique() > _MOST_GROUPS and pd.api.types.is_numeric_dtype(by):
        by = _binned(by.astype("float64"), bins)
    grouped = done[column].groupby(by.rename(param), observed=True)
    return pd.DataFrame(
        {
            "trials": grouped.count(),
            "median": grouped.median(),
            "low": grouped.quantile(0.25),
            "high": grouped.quantile(0.75),
            "min": grouped.min(),
            "max": grouped.max(),
        }
    )


def _binned(values: pd.Series[Any], bins: int) -> pd.Series[Any]:
    """Quantile bins named by the smallest and the largest value that each holds."""
    import pandas as pd

    codes = pd.qcut(values, bins, labels=False, duplicates="drop")
    held = values.groupby(codes).agg(["min", "max"])
    names = [
        f"{number(low)} to {number(high)}"
        for low, high in zip(held["min"], held["max"], strict=True)
    ]
    named = codes.map(dict(zip(held.index, names, strict=True)))
    return pd.Series(
        pd.Categorical(named, categories=list(dict.fromkeys(names)), ordered=True),
        index=values.index,
    )


def _require(column: str, trials: pd.DataFrame, prefix: str, what: str) -> None:
    if column in trials:
        return
    name = column.removeprefix(prefix)
    known = [c.removeprefix(prefix) for c in map(str, trials.columns) if c.startswith(prefix)]
    raise ConfigError(no_such(what, name, known))


def findings(sweep: Sweep) -> list[str]:
    """What the numbers of a sweep say, as sentences: outcomes, the best trial, the range, the KL.

    Raises:
        ConfigError: ``sweep.json`` states no objective or an unreadable constraint.
    """
    said = [_outcomes(sweep)]
    board = leaderboard(sweep)
    eligible = board[board["why_not"] == ""]
    if eligible.empty:
        return [*said, "No trial is eligible: none completed and satisfied every constraint."]
    first = eligible.iloc[0]
    chosen = finalists(sweep)
    if len(chosen):
        said.append(_tested(chosen.iloc[0], len(chosen), sweep))
    else:
        said.append(
            f"The best of {len(eligible)} eligible trials{_by_the_first(sweep)} is {first['trial']} "
            f"with {sweep.metric} = {number(first['value'])}{_lead(eligible)}."
        )
    said += _front(sweep, board)
    middle = eligible["value"].median()
    said.append(
        f"Eligible trials reach from {number(eligible['value'].min())} to "
        f"{number(eligible['value'].max())}, median {number(middle)}."
    )
    return said + _from_start(sweep, str(first["trial"])) + _kl(eligible, sweep.metric)


def _by_the_first(sweep: Sweep) -> str:
    goals = sweep.objectives
    return f" by the first of {len(goals)} objectives" if len(goals) > 1 else ""


def _front(sweep: Sweep, board: pd.DataFrame) -> list[str]:
    """What the trials on the front reach in each of several objectives, and whether the best is one."""
    from analysis.statistics.goals import objective_front

    if "front" not in board:
        return []
    front = board[board["front"]]
    if front.empty:
        return ["No eligible trial has measured every objective."]
    columns = {goal.metric: f"final.{goal.metric}" for goal in sweep.objectives[1:]}
    spans = " and ".join(
        f"{metric} from {number(front[column].min())} to {number(front[column].max())}"
        for metric, column in ({sweep.metric: "value"} | columns).items()
    )
    first = board.iloc[0]["trial"]
    among = "is one of them" if first in set(front["trial"]) else "is none of them"
    covered = objective_front(sweep).attrs["covered"]
    share = "" if covered != covered else f"; they cover {covered:.0%} of the box"
    many = "trials are" if len(front) > 1 else "trial is"
    return [
        f"{len(front)} eligible {many} on the front of {len(sweep.objectives)} objectives, with "
        f"{spans}{share}; {first} {among}."
    ]


def _tested(first: pd.Series[Any], count: int, sweep: Sweep) -> str:
    seeds = int(first["seeds"])
    span = ""
    if first["low"] == first["low"]:
        span = f" ({number(float(first['low']))} to {number(float(first['high']))})"
    told = (
        f"Of {count} finalists {first['trial']} is the best on test seeds: {sweep.metric} "
        f"{number(float(first['test']))}{span} over {seeds} seed{'s' * (seeds > 1)}."
    )
    return f"{told} {verdict(sweep)}".rstrip()


def _outcomes(sweep: Sweep) -> str:
    counts = sweep.searched.trials["outcome"].value_counts()
    words = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{sweep.asked} trials were asked for; {words or 'none has ended'}."


def _lead(eligible: pd.DataFrame) -> str:
    if len(eligible) < 2:
        return ""
    if "smoothed" in eligible:
        first, second = eligible["smoothed"].iloc[:2]
        return (
            f", smoothed over the parameters {number(first)}, {number(abs(first - second))} ahead of "
            f"{eligible['trial'].iloc[1]}"
        )
    ahead = abs(eligible["value"].iloc[0] - eligible["value"].iloc[1])
    text = f", {number(ahead)} ahead of {eligible['trial'].iloc[1]}"
    errors = eligible["stderr"].iloc[:2] if "stderr" in eligible else None
    if errors is None or errors.isna().any():
        return text
    noise = float((errors**2).sum() ** 0.5)
    verdict = "less than" if ahead < 2 * noise else "more than"
    return f"{text}, {verdict} twice the standard error of that difference ({number(noise, 2)})"


def _from_start(sweep: Sweep, trial: str) -> list[str]:
    curves = sweep.iterations
    if sweep.metric not in curves:
        return []
    own = curves.loc[curves["trial"] == trial, ["iteration", sweep.metric]].dropna()
    if len(own) < 2:
        return []
    start, end = own.iloc[0], own.iloc[-1]
    return [
        f"Its {sweep.metric} went from {number(start[sweep.metric])} at iteration "
        f"{int(start['iteration'])} to {number(end[sweep.metric])} at iteration "
        f"{int(end['iteration'])}."
    ]


def _kl(eligible: pd.DataFrame, metric: str) -> list[str]:
    if metric in ("eval/kl_response", "kl/response"):
        return []
    known = eligible.dropna(subset=["kl", "value"])
    if len(known) < 4 or known["kl"].nunique() < 2 or known["value"].nunique() < 2:
        return []
    rho = float(known["value"].corr(known["kl"], method="spearman"))
    return [
        f"Over eligible trials the rank correlation of the objective with the final KL is "
        f"{rho:+.2f} ({len(known)} trials)."
    ]
