"""How busy the roles of trials were, from their metrics; what was not measured is left out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.config.resources import ROLES
from sweeps.picture import WIDTH

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
# What recordings from before a stage was timed have of one that holds a single phase.
SINGLE = {"rollout_wait": ("generate",)}
# Clocks of different processes: phases in turns may add up to this much of an iteration.
SLACK = 1.02
# A smaller share would read 0%.
LEAST = 0.005
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
        measured = rows[named].dropna(axis="columns", how="all")
        # An evaluation or a checkpoint is not in every iteration: it took no time in the others.
        spent = [c for c in measured.columns if c.startswith("time/")]
        means = measured.assign(**measured[spent].fillna(0.0)).mean()
        yield str(trial), {str(k): float(v) for k, v in means.items()}


def _path(row: Row) -> str:
    """``rollout_wait 40% -> scoring 10% (reference) -> update 45% (learner, all-reduce 3%), rest 5%``."""
    whole = row.get(WHOLE)
    if not whole:
        return "-"
    steps = _steps(row, whole)
    steps = [step for step in steps if step[1] >= LEAST * whole]
    shown = [
        f"{name} {_percent(spent / whole)}{_why(row, whole, parts)}" for name, spent, parts in steps
    ]
    rest = 1 - sum(spent for _, spent, _ in steps) / whole
    left = [f"rest {_percent(rest)}"] if rest >= LEAST else []
    return ", ".join([*filter(None, [" -> ".join(shown)]), *left])


def _steps(row: Row, whole: float) -> list[tuple[str, float, Sequence[str]]]:
    """Stages in order: name, seconds, and the phases inside of which one decided.

    The phases of a stage that was not timed stand for it: all where they fit into the iteration one after
    another, else the longest alone.
    """
    phases = {
        stage: {p: row[f"time/{p}"] for p in parts or SINGLE.get(stage, ()) if row.get(f"time/{p}")}
        for stage, parts in STAGES.items()
        if f"time/{stage}" not in row
    }
    stages = {stage: row[f"time/{stage}"] for stage in STAGES if row.get(f"time/{stage}")}
    total = sum(stages.values()) + sum(sum(own.values()) for own in phases.values())
    in_turns = total <= SLACK * whole
    steps: list[tuple[str, float, Sequence[str]]] = []
    for stage, parts in STAGES.items():
        if stage in stages:
            steps.append((stage, stages[stage], parts))
        own = phases.get(stage, {})
        kept = own if in_turns else sorted(own, key=own.__getitem__)[-1:]
        steps += [(name, own[name], ()) for name in kept]
    return steps


def _why(row: Row, whole: float, parts: Sequence[str]) -> str:
    """`` (learner, all-reduce 5%)``: the phase that decided how long a stage took."""
    longest = max(parts, key=lambda part: row.get(f"time/{part}", 0.0), default="")
    reduced = row.get(f"time/allreduce_{longest}")
    said = [longest, f"all-reduce {_percent(reduced / whole)}" if reduced else ""]
    return f" ({', '.join(filter(None, said))})" if longest else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right; a last one without heading to the left, folded."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        left = (0, len(head) - 1) if not head[-1] else (0,)
        cells: list[Any] = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    indent = " " * sum(width + 2 for width in widths[:-1])
    return [part for row in [head, *rows] for part in _folded(line(row), indent)]


def _folded(line: str, indent: str) -> list[str]:
    """The line, on several of at most ``WIDTH`` columns where its arrows are."""
    # A line is broken at plain spaces only.
    bound = line.replace(" ", "\xa0").replace("\xa0->", " ->")
    parts = textwrap.wrap(bound, WIDTH, subsequent_indent=indent)
    return [part.replace("\xa0", " ") for part in parts]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
