"""How busy the roles of trials were, from their metrics; what was not measured is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.config.resources import ROLES

if TYPE_CHECKING:
    import pandas as pd

BUSY = "util/busy_"
IMBALANCE, WHOLE = "util/imbalance", "time/iteration"
# The stages of an iteration follow one another; of those inside a stage the longest decides.
STAGES = {
    "rollout_wait": (),
    "scoring": ("values", "reference", "score"),
    "update": ("learner", "critic"),
    "sync": (),
    "eval": (),
    "checkpoint": (),
}
Row = dict[str, float]


def busy_lines(iterations: pd.DataFrame, trials: Sequence[str]) -> list[str]:
    """Tables of means over the iterations after the first evaluation; empty where nothing was measured.

    Args:
        iterations: As in ``analysis.Sweep.iterations``.
        trials: Those to show.
    """
    rows = dict(_means(iterations, trials))
    measured = {name for row in rows.values() for name in row}
    roles = [role for role in ROLES if BUSY + role in measured]
    lines: list[str] = []
    if roles:
        columns = {role: BUSY + role for role in roles}
        columns |= {"imbalance": IMBALANCE} if IMBALANCE in measured else {}
        lines.append(
            "Mean busy share of the workers of each role"
            + ", and their imbalance" * (len(columns) > len(roles))
        )
        lines += _table(
            ["trial", *columns],
            [
                [trial, *(_percent(row.get(m)) for m in columns.values())]
                for trial, row in rows.items()
            ],
        )
    if WHOLE in measured:
        lines += ["", "Mean seconds of an iteration, and its critical path"][not lines :]
        rows_of = [[t, _seconds(row.get(WHOLE)), _path(row)] for t, row in rows.items()]
        lines += _table(["trial", "seconds", ""], rows_of)
    return lines


def _means(iterations: pd.DataFrame, trials: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """What was measured of each trial, as means."""
    wanted = iterations["trial"].isin(list(trials)) & (iterations["iteration"] > 0)
    named = [c for c in iterations.columns if c.startswith(("util/", "time/"))]
    for trial, rows in iterations[wanted].groupby("trial", observed=True, sort=False):
        yield str(trial), {str(k): float(v) for k, v in rows[named].mean().dropna().items()}


def _path(row: Row) -> str:
    """``rollout_wait 40% -> scoring 10% (reference) -> update 45% (learner, all-reduce 5%) -> sync 2%``."""
    whole = row.get(WHOLE)
    if not whole:
        return "-"
    steps = []
    for stage, parts in STAGES.items():
        seconds = row.get(f"time/{stage}")
        if not seconds:
            continue
        longest = max(parts, key=lambda part: row.get(f"time/{part}", 0.0), default="")
        reduced = row.get(f"time/allreduce_{longest}")
        why = [longest, f"all-reduce {_percent(reduced / whole)}" if reduced else ""]
        inside = f" ({', '.join(filter(None, why))})" if longest else ""
        steps.append(f"{stage} {_percent(seconds / whole)}{inside}")
    return " -> ".join(steps)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the last one too where it has no heading, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        left = (0, len(head) - 1) if not head[-1] else (0,)
        cells: list[Any] = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(row) for row in [head, *rows]]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
