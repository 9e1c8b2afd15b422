"""Which trials may be chosen, why the others may not, and what to do where none may."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from analysis.load import Sweep
from analysis.names import number

if TYPE_CHECKING:
    import pandas as pd

_MOST_REASONS = 3
_GUARD = re.compile(r"(\S+) .*?((?:above|below) guards\.\w+ = [-+.\de]+)")
_ADVICE = {
    "failed": "correct the error",
    "lost": "see whether memory ran out, and raise budget.retries",
    "infeasible": "ask for less in resources, or name a larger cluster",
    "diverged": "lower the learning rates of the space, or raise guards.max_kl",
    "stopped": "raise scheduler.grace, or take scheduler.kind: none",
    "interrupted": "run the sweep again into another folder, and to its end",
    "break": "loosen the constraints, raise the budget or widen the space",
    "no": "see that each trial reports a finite objective",
    "all": "see why they failed, and raise selection.top",
    "still": "wait until a trial has completed",
}


def cause(outcome: str, reason: str) -> str:
    """A reason of the ledger without what one trial measured, so that equal causes add up.

    Of a guard the metric and the limit, of a scheduler its name; other reasons are as they are.
    """
    if outcome == "stopped":
        return reason.split(":")[0]
    match = _GUARD.match(reason) if outcome == "diverged" else None
    return f"{match[1]} {match[2]}" if match else reason


def why_not(sweep: Sweep) -> pd.Series[Any]:
    """Why each trial may not be chosen, by trial id; "" for the eligible ones.

    Eligible is a trial that completed, has a finite objective, and whose final metrics satisfy
    every constraint. A trial that ended otherwise carries the reason that the ledger gives.

    Raises:
        ConfigError: A constraint in ``sweep.json`` cannot be read.
    """
    import pandas as pd

    rows = zip(kinds(sweep), sweep.trials["reason"], sweep.trials["outcome"], strict=True)
    reasons = [
        f"{kind}: {reason}" if kind == outcome and reason else kind
        for kind, reason, outcome in rows
    ]
    return pd.Series(reasons, index=sweep.trials.index, dtype="str", name="why_not")


def kinds(sweep: Sweep) -> list[str]:
    """``why_not`` without the reasons of the ledger."""
    import pandas as pd

    constraints, kinds = sweep.constraints, []
    for row in sweep.trials.to_dict("records"):
        outcome = row["outcome"]
        broken = [c for c in constraints if not c.holds(row.get(f"final.{c.metric}", float("nan")))]
        if outcome != "completed":
            kinds.append(_unfinished(row["state"]) if pd.isna(outcome) else str(outcome))
        elif row["value"] != row["value"]:
            kinds.append(f"no finite {sweep.metric}")
        else:
            kinds.append(
                "; ".join(c.broken_by(row.get(f"final.{c.metric}", float("nan"))) for c in broken)
            )
    return kinds


def _unfinished(state: str) -> str:
    if state == "interrupted":
        return "interrupted"
    return "still running" if state == "started" else f"still {state}"


def none_eligible(sweep: Sweep) -> str:
    """Why no trial may be chosen, in one line: counts, the most frequent reasons, and what to do."""
    found = [_kind(kind) for kind in kinds(sweep)]
    counts = Counter(found).most_common()
    words = ", ".join(f"{count} {kind}" for kind, count in counts)
    advice = dict.fromkeys(_ADVICE[kind.split(" ")[0]] for kind, _ in counts if _advised(kind))
    parts = [
        f"no eligible trial among {len(found)}: {words}",
        *_told_reasons(sweep),
        *_furthest(sweep),
        ", and ".join(advice),
    ]
    return "; ".join(part for part in parts if part)


def _advised(kind: str) -> bool:
    return kind.split(" ")[0] in _ADVICE


def _told_reasons(sweep: Sweep) -> list[str]:
    """The most frequent reasons of the ledger with their counts, and where the whole error is."""
    trials = sweep.trials
    told = trials[(trials["outcome"] != "completed") & (trials["reason"].fillna("") != "")]
    if told.empty:
        return []
    causes = map(cause, told["outcome"].astype("str"), told["reason"])
    counts = Counter(causes).most_common()
    words = [f"{count} x {reason}" for reason, count in counts[:_MOST_REASONS]]
    if len(counts) > _MOST_REASONS:
        words.append(f"{len(counts) - _MOST_REASONS} other reasons")
    errors = [f"trials/{trial}/error.txt" for trial in told.index]
    whole = next((e for e in errors if (sweep.path / e).exists()), None)
    return [" | ".join(words), *([f"the whole error is in {sweep.path / whole}"] if whole else [])]


def _furthest(sweep: Sweep) -> list[str]:
    """Where no trial was completed, how far one came and with what."""
    trials = sweep.trials
    if (trials["outcome"] == "completed").any():
        return []
    seen = trials[trials["value"].notna() & trials["iteration"].notna()]
    if seen.empty:
        return []
    row = int(seen["iteration"].to_numpy("int64").argmax())
    return [
        f"none was completed; the furthest is {seen.index[row]} with {sweep.metric} "
        f"{number(float(seen['value'].iloc[row]), 4)} at iteration {seen['iteration'].iloc[row]}"
    ]


def _kind(reason: str) -> str:
    """The reason without its measured value, so that equal ones add up."""
    broken = [part for part in reason.split("; ") if ", needs " in part]
    return " and ".join(f"break {_rule(part)}" for part in broken) if broken else reason


def _rule(part: str) -> str:
    metric, needs = part.split(" ", 1)[0], part.split(", needs ", 1)[1]
    return f"{metric} {needs}"
