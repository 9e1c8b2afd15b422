"""Which trial is best, and why the others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.load import Sweep
from analysis.names import DASH, number, shorten
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

WIDTH = 100
_REASON_WIDTH = 24


def why_not(sweep: Sweep) -> pd.Series[Any]:
    """Why each trial may not be chosen, by trial id; "" for the eligible ones.

    Eligible is a trial that completed, has a finite objective, and whose final metrics satisfy
    every constraint.

    Raises:
        ConfigError: A constraint in ``sweep.json`` cannot be read.
    """
    import pandas as pd

    trials, constraints = sweep.trials, sweep.constraints
    reasons = []
    for row in trials.to_dict("records"):
        outcome = row["outcome"]
        broken = [c for c in constraints if not c.holds(row.get(f"final.{c.metric}", float("nan")))]
        if outcome != "completed":
            reasons.append(_unfinished(row["state"]) if pd.isna(outcome) else str(outcome))
        elif row["value"] != row["value"]:
            reasons.append(f"no finite {sweep.metric}")
        else:
            reasons.append(
                "; ".join(c.broken_by(row.get(f"final.{c.metric}", float("nan"))) for c in broken)
            )
    return pd.Series(reasons, index=trials.index, dtype="str", name="why_not")


def _unfinished(state: str) -> str:
    if state == "interrupted":
        return "interrupted"
    return "still running" if state == "started" else f"still {state}"


def leaderboard(sweep: Sweep, top: int | None = None) -> pd.DataFrame:
    """All trials by objective, the eligible ones ranked above the others.

    Args:
        sweep: A loaded sweep.
        top: Keep this many rows.

    Returns:
        Columns ``rank`` Int64 (no rank for the ineligible), ``trial`` str, ``outcome`` category,
        ``value`` float64 (the objective), ``stderr`` float64 (only if the program reports
        ``<objective>_stderr``), ``kl`` float64 (nats, final ``eval/kl_response``, else
        ``kl/response``), ``iterations`` Int64, ``gpu_seconds`` float64, the ``params.*`` columns,
        and ``why_not`` str. Equal values keep the order of trial numbers.

    Raises:
        ConfigError: ``sweep.json`` states no objective or an unreadable constraint.
    """
    import pandas as pd

    trials, objective = sweep.trials, sweep.objective
    board = pd.DataFrame({"trial": trials.index, "outcome": trials["outcome"].array})
    board["value"] = trials["value"].array
    if f"final.{objective.metric}_stderr" in trials:
        board["stderr"] = trials[f"final.{objective.metric}_stderr"].array
    board["kl"] = _first(trials, "final.eval/kl_response", "final.kl/response")
    board["iterations"] = trials["iteration"].array
    board["gpu_seconds"] = _first(trials, "final.cost/gpu_seconds")
    for column in trials.columns[trials.columns.str.startswith("params.")]:
        board[column] = trials[column].array
    board["why_not"] = why_not(sweep).array
    ineligible = board["why_not"] != ""
    board = (
        board.assign(_last=ineligible)
        .sort_values("value", ascending=objective.ascending, kind="stable", na_position="last")
        .sort_values("_last", kind="stable", ignore_index=True)
    )
    ranks = pd.Series(range(1, len(board) + 1), dtype="Int64").where(~board.pop("_last"))
    board.insert(0, "rank", ranks)
    return board if top is None else board.head(top)


def best(sweep: Sweep) -> str:
    """Id of the best eligible trial.

    Raises:
        ConfigError: No trial is eligible; the one line counts the reasons.
    """
    board = leaderboard(sweep, top=1)
    if len(board) and board["why_not"].iloc[0] == "":
        return str(board["trial"].iloc[0])
    reasons = why_not(sweep)
    if not len(reasons):
        raise ConfigError(f"no eligible trial: {sweep.path} holds no trials yet; run the sweep")
    counts = Counter(_kind(reason) for reason in reasons)
    words = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    raise ConfigError(
        f"no eligible trial among {len(reasons)}: {words}; "
        "raise the budget, widen the space or loosen the constraints"
    )


def _kind(reason: str) -> str:
    """The reason without its measured value, so that equal ones add up."""
    broken = [part for part in reason.split("; ") if ", needs " in part]
    return " and ".join(f"break {_rule(part)}" for part in broken) if broken else reason


def _rule(part: str) -> str:
    metric, needs = part.split(" ", 1)[0], part.split(", needs ", 1)[1]
    return f"{metric} {needs}"


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
    from rich.table import Table

    board, objective = leaderboard(sweep, top), sweep.objective
    columns = _fixed_columns(board)
    params = [c for c in board.columns if c.startswith("params.")]
    told = _told_reasons(board)
    taken = min(_width(told), _REASON_WIDTH + 2) if told else 0
    shown = _fitting(board, params, WIDTH - sum(map(_width, columns)) - taken)
    left = len(params) - len(shown)
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=f"{sweep.name}: {objective.direction} {objective.metric}",
        title_justify="left",
        caption=f"{left} more parameters in leaderboard.csv" if left else None,
        caption_justify="left",
    )
    columns += shown
    if told:
        columns.append(told)
    for column in columns:
        _add(table, column)
    for cells in zip(*(c.cells for c in columns), strict=True):
        table.add_row(*cells, style=None if cells[0] != DASH else "dim")
    return table


def _fitting(board: pd.DataFrame, params: Sequence[str], room: int) -> list[_Text]:
    """The parameters, in the order of the space, that find a place in so many columns of text."""
    short = shorten(params)
    shown = []
    for key in params:
        column = _Text(short[key], [number(v) for v in _objects(board[key])])
        if _width(column) <= room:
            room -= _width(column)
            shown.append(column)
    return shown


class _Text:
    def __init__(self, title: str, cells: Sequence[str]) -> None:
        self.title, self.cells = title, list(cells)


def _fixed_columns(board: pd.DataFrame) -> list[_Text]:
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
        _Text("KL", [number(v) for v in board["kl"]]),
        _Text("iter", [DASH if v is None else str(v) for v in _objects(board["iterations"])]),
        _Text("GPU s", [number(v) for v in board["gpu_seconds"]]),
    ]
    # A column without a single number only takes room from the parameters.
    return [c for c in columns if c.title not in ("KL", "GPU s") or set(c.cells) - {DASH}]


def _told_reasons(board: pd.DataFrame) -> _Text | None:
    """The reasons that the column of outcomes does not already give."""
    outcomes = board["outcome"].astype("object")
    told = board["why_not"].where(board["why_not"] != outcomes, "")
    return _Text("why not", list(told)) if told.ne("").any() else None


def _objects(values: pd.Series[Any]) -> list[Any]:
    import pandas as pd

    return [None if pd.isna(v) else v for v in values]


def _width(column: _Text) -> int:
    return max(map(len, [column.title, *column.cells])) + 2


def _add(table: Table, column: _Text) -> None:
    left = column.title in ("trial", "outcome", "why not")
    table.add_column(
        column.title,
        justify="left" if left else "right",
        no_wrap=True,
        overflow="ellipsis",
        max_width=_REASON_WIDTH if column.title == "why not" else None,
    )
