"""How far a sweep is, from its directory alone: while it runs and after an interruption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.eligible import cause
from analysis.leaderboard import leaderboard
from analysis.names import duration, number
from analysis.sweep import UNDER_WAY, Sweep
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Group

_FAULTS = ("failed", "lost", "infeasible", "diverged")
_BUSY = ("duration.start", "duration.run", "duration.stop")
_MOST_LINES = 8
_WORDS = {"started": "running"}


def status(sweep: Sweep, now: float | None = None) -> dict[str, Any]:
    """Counts, progress, running trials, time left, best so far, faults.

    Args:
        sweep: A loaded sweep.
        now: Seconds since the epoch; the last sign of life in the directory by default, so that a
            directory gives the same answer whenever it is read.

    Returns:
        Plain data. ``name``, ``asked``, ``passed_over`` (proposals that broke a rule of the
        space), ``ended``, ``finished`` (bool), ``states`` and ``outcomes``
        (name: count), ``elapsed`` and ``idle`` (seconds since the first ledger line, and since the
        last sign of life; ``elapsed`` ends with the last ledger line where no trial is under way,
        and leaves out the time between the end of a driver and the resumption of its sweep),
        ``tests`` (test runs of finalists: ``begun``, ``ended``; the other counts leave them out),
        ``left`` (estimated seconds, None where nothing can be said), ``running`` (list of
        ``trial, iteration, elapsed, value``), ``best`` (``trial, value``, of several objectives also
        ``others``: metric and value of the further ones; or None), ``failures``
        (list of ``outcome, reason, count, trials``, by cause, most frequent first), ``warnings``.
    """
    trials, tests = sweep.searched.trials, sweep.trials[sweep.trials["purpose"] == "test"]
    first, last = _span(sweep)
    over = not sweep.trials["state"].isin(UNDER_WAY).any()
    clock = last if now is None else now
    running = _running(sweep, clock)
    ended, tested = (int((rows["state"] == "ended").sum()) for rows in (trials, tests))
    return {
        "name": sweep.name,
        "metric": _metric(sweep),
        "asked": sweep.asked,
        "passed_over": int(sweep.info.get("passed_over") or 0),
        "ended": ended,
        "finished": ended >= sweep.asked and tested == len(tests),
        "tests": {"begun": len(tests), "ended": tested},
        "states": _counts(trials["state"]),
        "outcomes": _counts(trials["outcome"]),
        "elapsed": _elapsed(sweep, _last_line(sweep) if over else clock, first),
        "idle": _difference(clock, last),
        "left": _left(sweep, running),
        "running": running,
        "best": _best(sweep),
        "failures": _failures(sweep.trials),
        # How many have not ended stands in the counts already.
        "warnings": [w for w in sweep.warnings if not w.startswith("unfinished:")],
    }


def _span(sweep: Sweep) -> tuple[float | None, float | None]:
    times = sweep.events["time"].dropna()
    reports = sweep.iterations["timestamp"].dropna()
    first = float(times.min()) if len(times) else None
    seen = [float(t.max()) for t in (times, reports) if len(t)]
    return first, max(seen, default=None)


def _elapsed(sweep: Sweep, end: float | None, first: float | None) -> float | None:
    """Seconds during which a driver ran, from its start or the first line to its last sign of life."""
    whole = _difference(end, first)
    if whole is None:
        return None
    signs = [*sweep.events["time"].dropna(), *sweep.iterations["timestamp"].dropna()]
    away = 0.0
    for began in sweep.info.get("began", ())[1:]:
        before = [sign for sign in signs if sign < began]
        away += began - max(before) if before else 0.0
    return max(0.0, whole - away)


def _last_line(sweep: Sweep) -> float | None:
    times = sweep.events["time"].dropna()
    return float(times.max()) if len(times) else None


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else max(0.0, later - earlier)


def _counts(values: pd.Series[Any]) -> dict[str, int]:
    return {str(k): int(v) for k, v in values.value_counts(sort=False).items() if v}


def _metric(sweep: Sweep) -> str | None:
    try:
        return sweep.metric
    except ConfigError:
        return None


def _running(sweep: Sweep, now: float | None) -> list[dict[str, Any]]:
    import pandas as pd

    started = sweep.trials[sweep.trials["state"] == "started"]
    return [
        {
            "trial": str(trial),
            "iteration": None if pd.isna(row["iteration"]) else int(row["iteration"]),
            "elapsed": _difference(now, _finite(row["started"])),
            "value": _finite(row["value"]),
        }
        for trial, row in started.iterrows()
    ]


def _finite(value: Any) -> float | None:
    return float(value) if value == value else None


def _left(sweep: Sweep, running: list[dict[str, Any]]) -> float | None:
    """Work that is left over the width at which it is done.

    The typical trial is the median of those that completed or that the scheduler stopped.
    """
    trials = sweep.searched.trials
    ended = trials["state"] == "ended"
    if int(ended.sum()) >= sweep.asked:
        return 0.0
    busy = trials[[c for c in _BUSY if c in trials]].sum(axis=1, min_count=1)
    counted = busy[ended & trials["outcome"].isin(["completed", "stopped"])].dropna()
    if counted.empty:
        return None
    typical = float(counted.median())
    rest = [max(0.0, typical - (r["elapsed"] or 0.0)) for r in running]
    waiting = sweep.asked - int(ended.sum()) - len(running)
    width = len(running) or _peak(sweep.events)
    return max([(sum(rest) + waiting * typical) / width, *rest])


def _peak(events: pd.DataFrame) -> int:
    """The most trials that ever ran at once, at least one."""
    changes = events.dropna(subset=["trial"])
    active: set[str] = set()
    peak = 1
    for trial, state in zip(changes["trial"], changes["state"], strict=True):
        if state == "started":
            active.add(trial)
        elif state in ("ended", "retried", "paused", "interrupted", "queued", "waiting"):
            active.discard(trial)
        peak = max(peak, len(active))
    return peak


def _best(sweep: Sweep) -> dict[str, Any] | None:
    try:
        board = leaderboard(sweep, top=1)
    except ConfigError:
        return None
    if board.empty or board["why_not"].iloc[0] != "":
        return None
    first = board.iloc[0]
    found = {"trial": str(first["trial"]), "value": float(first["value"])}
    others = [goal.metric for goal in sweep.objectives[1:]]
    return found | ({"others": {m: _finite(first[f"final.{m}"]) for m in others}} if others else {})


def _failures(trials: pd.DataFrame) -> list[dict[str, Any]]:
    bad = trials[trials["outcome"].isin(_FAULTS)]
    causes = list(map(cause, bad["outcome"].astype("str"), bad["reason"]))
    groups = [
        {
            "outcome": str(outcome),
            # One trial tells what it measured; several have the rule in common.
            "reason": str(rows["reason"].iloc[0] if rows["reason"].nunique() == 1 else why),
            "count": len(rows),
            "trials": [str(t) for t in rows.index],
        }
        for (outcome, why), rows in bad.groupby([bad["outcome"].astype("str"), causes])
    ]
    return sorted(groups, key=lambda g: -len(g["trials"]))


def render_status(sweep: Sweep, now: float | None = None) -> Group:
    """The same for a terminal of 100 columns: a headline, then only what there is to say."""
    from rich.console import Group
    from rich.text import Text

    found = status(sweep, now)
    return Group(
        *[
            Text(line, style=style, no_wrap=True, overflow="ellipsis")
            for line, style in [
                *_headline(found),
                *_running_lines(found),
                *_failure_lines(found),
                *_listed("warnings", found["warnings"], "yellow"),
            ]
        ]
    )


Lines = list[tuple[str, str]]


def _headline(found: dict[str, Any]) -> Lines:
    share = found["ended"] / found["asked"] if found["asked"] else 0.0
    bar = "█" * round(30 * share) + "░" * (30 - round(30 * share))
    outcomes = " · ".join(f"{n} {name}" for name, n in found["outcomes"].items())
    unfinished = {k: n for k, n in found["states"].items() if k != "ended"}
    waiting = " · ".join(f"{n} {_WORDS.get(name, name)}" for name, n in unfinished.items())
    lines = [
        (found["name"], "bold"),
        (f"  {bar}  {found['ended']} of {found['asked']} trials ended", ""),
        *((f"  {line}", "") for line in (outcomes, waiting) if line),
    ]
    if found["tests"]["begun"]:
        tests = found["tests"]
        lines.append((f"  {tests['ended']} of {tests['begun']} test runs of finalists ended", ""))
    times = [f"elapsed {duration(found['elapsed'])}"]
    if not found["finished"]:
        left = found["left"]
        times.append("time left unknown" if left is None else f"about {duration(left)} left")
        if found["idle"]:
            times.append(f"last sign of life {duration(found['idle'])} ago")
    lines.append(("  " + " · ".join(times), ""))
    if found["passed_over"]:
        made = found["passed_over"] + sum(found["states"].values())
        share = found["passed_over"] / made
        lines.append((f"  {share:.0%} of {made} proposals broke a rule of the space", ""))
    if found["best"]:
        best = found["best"]
        values = {found["metric"]: best["value"]} | best.get("others", {})
        told = ", ".join(f"{metric} {number(value, 4)}" for metric, value in values.items())
        lines.append((f"  best so far {best['trial']}: {told}", "green"))
    return lines


def _running_lines(found: dict[str, Any]) -> Lines:
    texts = []
    for row in found["running"]:
        iteration = (
            "not reported yet" if row["iteration"] is None else f"iteration {row['iteration']}"
        )
        value = "" if row["value"] is None else f", {found['metric']} {number(row['value'])}"
        texts.append(f"{row['trial']}  {iteration}, {duration(row['elapsed'])}{value}")
    return _listed("running", texts, "")


def _failure_lines(found: dict[str, Any]) -> Lines:
    texts = [
        f"{group['count']} {group['outcome']} "
        f"({', '.join(group['trials'][:3])}{', ...' if group['count'] > 3 else ''}): "
        f"{group['reason'] or 'no reason given'}"
        for group in found["failures"]
    ]
    return _listed("failures", texts, "red")


def _listed(title: str, texts: list[str], style: str) -> Lines:
    if not texts:
        return []
    rest = len(texts) - _MOST_LINES
    shown = [(f"  {text}", style) for text in texts[:_MOST_LINES]]
    more = [(f"  and {rest} more", style)] if rest > 0 else []
    return [(title, "bold"), *shown, *more]
