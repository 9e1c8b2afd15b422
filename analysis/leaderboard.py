"""Which trial is best, and why the others are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.eligible import cause, none_eligible, why_not
from analysis.finalists import finalists, verdict
from analysis.load import Sweep
from analysis.names import DASH, number, shorten
from analysis.smoothed import ranked_by
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

WIDTH = 100
_REASON_WIDTH = 24
_MOST_REASONS = 3


def leaderboard(sweep: Sweep, top: int | None = None) -> pd.DataFrame:
    """All trials by objective, the eligible ones ranked above the others.

    Where the sweep says so (``selection.smooth``) the eligible ones rank by the objective smoothed over the
    parameters, unless test runs decide.

    Args:
        sweep: A loaded sweep.
        top: Keep this many rows.

    Returns:
        Columns ``rank`` Int64 (no rank for the ineligible), ``trial`` str, ``outcome`` category,
        ``value`` float64 (the objective, of several ones the first), ``stderr`` float64 (only if the
        program reports ``<objective>_stderr``), ``smoothed`` float64 (only where ranks are by it, NaN
        of what did not complete), of several objectives a column ``final.<metric>``
        float64 for each further one and ``front`` bool (as ``analysis.statistics.objective_front``,
        which does not change ranks), ``kl`` float64 (nats, final ``eval/kl_response``, else
        ``kl/response``), ``iterations`` Int64, ``gpu_seconds`` float64, the ``params.*`` columns,
        and ``why_not`` str. Equal values keep the order of trial numbers. Where finalists ran on test
        seeds they come first, by those runs, and have ``test``, ``test_low``, ``test_high`` float64
        and ``test_seeds`` Int64 (as ``analysis.finalists``); the runs themselves are no rows.

    Raises:
        ConfigError: ``sweep.json`` states no objective or an unreadable constraint.
    """
    import pandas as pd

    runs, smoothed = finalists(sweep).set_index("trial"), sweep.smoothed
    sweep = sweep.searched
    trials, objective = sweep.trials, sweep.objective
    board = pd.DataFrame({"trial": trials.index, "outcome": trials["outcome"].array})
    board["value"] = trials["value"].array
    if f"final.{objective.metric}_stderr" in trials:
        board["stderr"] = trials[f"final.{objective.metric}_stderr"].array
    if smoothed is not None:
        board["smoothed"] = smoothed.array
    for metric in (goal.metric for goal in sweep.objectives[1:]):
        board[f"final.{metric}"] = _first(trials, f"final.{metric}")
    if len(sweep.objectives) > 1:
        board["front"] = on_front(sweep).to_numpy()
    board["kl"] = _first(trials, "final.eval/kl_response", "final.kl/response")
    board["iterations"] = trials["iteration"].array
    board["gpu_seconds"] = _first(trials, "final.cost/gpu_seconds")
    for column in trials.columns[trials.columns.str.startswith("params.")]:
        board[column] = trials[column].array
    board["why_not"] = why_not(sweep).array
    board = _with_tests(board, runs)
    ineligible = board["why_not"] != ""
    counts = board["value"] if smoothed is None else board["smoothed"]
    board = (
        board.assign(_last=ineligible, _counts=counts.mask(ineligible))
        # Of equal parameters the smoothed values are equal, too.
        .sort_values("value", ascending=objective.ascending, kind="stable", na_position="last")
        .sort_values("_counts", ascending=objective.ascending, kind="stable", na_position="last")
        .sort_values(["_last", "_place"], kind="stable", ignore_index=True)
        .drop(columns=["_place", "_counts"])
    )
    ranks = pd.Series(range(1, len(board) + 1), dtype="Int64").where(~board.pop("_last"))
    board.insert(0, "rank", ranks)
    return board if top is None else board.head(top)


def _with_tests(board: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The board with the finalists' columns, and ``_place``: theirs, or behind all of them."""
    import pandas as pd

    places = pd.Series(range(len(runs)), index=runs.index)
    board["_place"] = board["trial"].map(places).fillna(len(runs))
    if runs.empty:
        return board
    own = runs.reindex(board["trial"])
    at = list(board.columns).index("value") + 1
    for name in ("seeds", "high", "low", "test"):
        column = own[name].astype("Int64") if name == "seeds" else own[name]
        column.index = board.index
        board.insert(at, name if name == "test" else f"test_{name}", column)
    lost = (own["seeds"] == 0).to_numpy() & (board["why_not"] == "")
    board["why_not"] = board["why_not"].mask(lost, "all its test runs failed")
    return board


def best(sweep: Sweep) -> str:
    """Id of the best eligible trial.

    Raises:
        ConfigError: No trial is eligible; the one line counts the reasons and says what to do.
    """
    board = leaderboard(sweep, top=1)
    if len(board) and board["why_not"].iloc[0] == "":
        return str(board["trial"].iloc[0])
    if not len(board):
        raise ConfigError(f"no eligible trial: {sweep.path} holds no trials yet; run the sweep")
    raise ConfigError(none_eligible(sweep.searched))


def objectives_of(sweep: Sweep, trial: str) -> dict[str, float | None]:
    """The last value of each objective in a trial, by metric, the one that ranks first; None: not measured."""
    row = sweep.trials.loc[trial].to_dict()
    others = {
        goal.metric: float(row.get(f"final.{goal.metric}", math.nan))
        for goal in sweep.objectives[1:]
    }
    values = {sweep.metric: float(row["value"])} | others
    return {metric: value if math.isfinite(value) else None for metric, value in values.items()}


def front(sweep: Sweep) -> list[str]:
    """The trials on the front of the objectives, in their order; of one objective the best ones.

    Raises:
        ConfigError: As ``leaderboard``.
    """
    chosen = on_front(sweep)
    return [str(trial) for trial in chosen.index[chosen]]


def on_front(sweep: Sweep) -> pd.Series[bool]:
    """Which trials of the search are on the front of the objectives, by trial id."""
    from analysis.statistics.goals import objective_front

    return objective_front(sweep)["front"]


def _first(trials: pd.DataFrame, *columns: str) -> Any:
    import numpy as np

    for column in columns:
        if column in trials:
            return trials[column].array
    return np.full(len(trials), np.nan)


def render_leaderboard(sweep: Sweep, top: int | None = 20) -> Table:
    """The leaderboard as a table of at most 100 columns of text.

    Parameters carry their last distinct parts as names; those that do not fit are counted in the
    caption.

    Raises:
        ConfigError: As ``leaderboard``.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    board = leaderboard(sweep, top)
    columns = _fixed_columns(board, [goal.metric for goal in sweep.objectives])
    params = [c for c in board.columns if c.startswith("params.")]
    told = _broken_rules(board)
    taken = min(_width(told), _REASON_WIDTH + 2) if told else 0
    columns, cut = _within(columns, sweep, WIDTH - taken)
    room = WIDTH - sum(map(_width, columns))
    shown = _fitting(board, params, room - taken)
    left = [key for key in params if key not in shown]
    several = _several(board, sweep.metric, cut)
    told_by = [verdict(sweep), ranked_by(sweep), several]
    caption = "\n".join(filter(None, [*told_by, _caption(board, left, params)]))
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=f"{sweep.name}: {', '.join(map(str, sweep.objectives))}",
        title_justify="left",
        caption=escape(caption) if caption else None,
        caption_justify="left",
    )
    columns += shown.values()
    if told:
        columns.append(told)
    reason_width = room - sum(map(_width, shown.values())) - 2
    for column in columns:
        _add(table, column, reason_width)
    for cells in zip(*(c.cells for c in columns), strict=True):
        table.add_row(*cells, style=None if cells[0] != DASH else "dim")
    return table


def _within(columns: list[_Text], sweep: Sweep, room: int) -> tuple[list[_Text], list[str]]:
    """The columns without the last objectives that find no place, and those objectives."""
    names = {goal.metric: _goal_name(goal.metric) for goal in sweep.objectives[1:]}
    cut: list[str] = []
    while len(cut) < len(names) and sum(map(_width, columns)) > room:
        cut.insert(0, [*names][-1 - len(cut)])
        place = max(i for i, c in enumerate(columns) if c.title == names[cut[0]])
        columns = columns[:place] + columns[place + 1 :]
    return columns, cut


def _several(board: pd.DataFrame, metric: str, cut: Sequence[str]) -> str:
    if "front" not in board:
        return ""
    told = f"ranked by {metric}; *: on the front, no other trial is as good in every objective"
    return f"{told}\nfurther objectives in leaderboard.csv: {', '.join(cut)}" if cut else told


def _goal_name(metric: str) -> str:
    return metric.rsplit("/", 1)[-1]


def _caption(board: pd.DataFrame, left: Sequence[str], params: Sequence[str]) -> str | None:
    """The parameters that are not shown, and the ledger's reasons of the first ineligible trials."""
    lines = []
    if left:
        short = shorten(params)
        names = ", ".join(short[key] for key in left)
        lines.append(
            f"{len(left)} more parameter{'s' * (len(left) > 1)} in leaderboard.csv: {names}"
        )
    told = board[board["why_not"].str.contains(": ", regex=False)]
    parts = told["why_not"].str.split(": ", n=1)
    causes = [f"{outcome}: {cause(outcome, reason)}" for outcome, reason in parts]
    # One reason tells what was measured; several have the cause in common.
    groups = [
        (list(rows["trial"]), rows["why_not"].iloc[0] if rows["why_not"].nunique() == 1 else why)
        for why, rows in told.groupby(causes, sort=False)
    ]
    for trials, why in groups[:_MOST_REASONS]:
        lines.append(f"{', '.join(trials[:3])}{', ...' if len(trials) > 3 else ''} {why}")
    if len(groups) > _MOST_REASONS:
        lines.append("further reasons in leaderboard.csv")
    return "\n".join(lines) or None


def _fitting(board: pd.DataFrame, params: Sequence[str], room: int) -> dict[str, _Text]:
    """The parameters that find a place in so many columns of text, in the order of the space.

    Those that go with the objective come first.
    """
    short = shorten(params)
    made = {key: _Text(short[key], [number(v) for v in _objects(board[key])]) for key in params}
    chosen = []
    strength = {key: _strength(board[key], board["value"]) for key in params}
    for key in sorted(params, key=lambda key: -strength[key]):
        if _width(made[key]) <= room:
            room -= _width(made[key])
            chosen.append(key)
    return {key: made[key] for key in params if key in chosen}


def _strength(values: Any, objective: Any) -> float:
    """How far the objective goes with a parameter, from 0 to 1; -1 for one that did not vary.

    The rank correlation of numbers; of names the share of the ranks' spread that lies between them.
    """
    import pandas as pd

    both = pd.DataFrame({"value": values.array, "rank": objective.rank().array}).dropna()
    if both["value"].nunique() < 2:
        return -1.0
    if both["rank"].nunique() < 2:
        return 0.0
    plain = pd.api.types.is_numeric_dtype(both["value"])
    if plain and not pd.api.types.is_bool_dtype(both["value"]):
        return abs(float(both["value"].astype("float64").rank().corr(both["rank"])))
    middles = both.groupby("value", observed=True)["rank"].transform("mean")
    return float(middles.std() / both["rank"].std())


class _Text:
    def __init__(self, title: str, cells: Sequence[str]) -> None:
        self.title, self.cells = title, list(cells)


def _fixed_columns(board: pd.DataFrame, goals: Sequence[str]) -> list[_Text]:
    values = [number(v, 4) for v in board["value"]]
    if "stderr" in board:
        values = [
            v if s != s or v == DASH else f"{v} ± {number(s, 2)}"
            for v, s in zip(values, board["stderr"], strict=True)
        ]
    columns = [
        _Text("#", [DASH if r is None else str(r) for r in _objects(board["rank"])]),
        _Text("trial", list(board["trial"])),
        _Text("outcome", [o if isinstance(o, str) else DASH for o in board["outcome"]]),
        _Text("value", values),
        *_smoothed_column(board),
        *_further_goals(board, goals[1:]),
        *_test_column(board),
        _Text("KL", [number(v) for v in board["kl"]]),
        _Text("iter", [DASH if v is None else str(v) for v in _objects(board["iterations"])]),
        _Text("GPU s", [number(v) for v in board["gpu_seconds"]]),
    ]
    # A column without a single number, or with those of an objective, only takes room from the parameters.
    twice = {"KL": "eval/kl_response", "GPU s": "cost/gpu_seconds"}
    return [
        c
        for c in columns
        if c.title not in twice or (set(c.cells) - {DASH} and twice[c.title] not in goals)
    ]


def _smoothed_column(board: pd.DataFrame) -> list[_Text]:
    if "smoothed" not in board:
        return []
    return [_Text("smoothed", [number(v, 4) for v in board["smoothed"]])]


def _further_goals(board: pd.DataFrame, metrics: Sequence[str]) -> list[_Text]:
    if not metrics:
        return []
    told = [_Text(_goal_name(m), [number(v, 4) for v in board[f"final.{m}"]]) for m in metrics]
    return [*told, _Text("front", ["*" if on else "" for on in board["front"]])]


def _test_column(board: pd.DataFrame) -> list[_Text]:
    if "test" not in board:
        return []
    pairs = zip(board["test"], _objects(board["test_seeds"]), strict=True)
    return [_Text("test (seeds)", [f"{number(v, 4)} ({n})" if n else DASH for v, n in pairs])]


def _broken_rules(board: pd.DataFrame) -> _Text | None:
    """Why trials that completed are not eligible; the others have an outcome that says so."""
    told = board["why_not"].where(
        board["outcome"].isin(["completed"]) | board["outcome"].isna(), ""
    )
    return _Text("why not", list(told)) if told.ne("").any() else None


def _objects(values: pd.Series[Any]) -> list[Any]:
    import pandas as pd

    return [None if pd.isna(v) else v for v in values]


def _width(column: _Text) -> int:
    return max(map(len, [column.title, *column.cells])) + 2


def _add(table: Table, column: _Text, reason_width: int) -> None:
    left = column.title in ("trial", "outcome", "why not")
    table.add_column(
        column.title,
        justify="left" if left else "right",
        no_wrap=True,
        overflow="ellipsis",
        max_width=reason_width if column.title == "why not" else None,
    )
