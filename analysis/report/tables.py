"""The tables of the report, as lists of rows of text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.eligible import cause
from analysis.leaderboard import leaderboard
from analysis.names import DASH, duration, number, shorten
from analysis.plots.learning_curves import best_or_none
from analysis.plots.timeline import timeline_data
from analysis.report.story import judgement
from analysis.statistics.hacking import hacking_signs
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError

MOST_ROWS = 15
_MOST_TRIALS = 4


class Table(NamedTuple):
    """Column heads, whether each holds numbers, and rows."""

    heads: list[str]
    numeric: list[bool]
    rows: list[list[str]]


def defaults(sweep: Sweep) -> dict[str, Any]:
    """What each searched parameter is where it is not searched; empty for programs other than PPO."""
    base = (sweep.info.get("config") or {}).get("base")
    if base is None:
        return {}
    from rlhf_core.config import resolve_trial

    try:
        values = resolve_trial(base, "base").model_dump()
    except ConfigError:
        return {}
    found = {}
    for key in sweep.axes:
        place: Any = values
        for part in key.split("."):
            place = place.get(part) if isinstance(place, Mapping) else None
        found[key] = place
    return found


def space(sweep: Sweep) -> Table:
    """The searched parameters: key, what they may be, default."""
    usual = defaults(sweep)
    rows = []
    for key, axis in sweep.axes.items():
        if axis.values:
            span = ", ".join(number(v) for v in axis.values)
        elif axis.low is not None and axis.high is not None:
            span = f"{number(axis.low)} to {number(axis.high)}{', log scale' * axis.log}"
        else:
            span = "as recorded"
        rows.append([key, span, number(usual.get(key))])
    return Table(["parameter", "searched", "default"], [False, False, True], rows)


def leading(sweep: Sweep) -> Table:
    """The best trials, and in what each differs from the default."""
    board = leaderboard(sweep, MOST_ROWS)
    usual = defaults(sweep)
    params = [c.removeprefix("params.") for c in board.columns if c.startswith("params.")]
    short = shorten(params)
    others = [goal.metric for goal in sweep.objectives[1:]]
    tested, smooth = "test" in board, "smoothed" in board
    with_kl = "eval/kl_response" not in (sweep.metric, *others)
    rows = []
    for row in board.to_dict("records"):
        error = row.get("stderr")
        value = number(row["value"], 4)
        outcome = row["outcome"] if isinstance(row["outcome"], str) else "not ended"
        rows.append(
            [
                DASH if pd.isna(row["rank"]) else str(row["rank"]),
                str(row["trial"]),
                value if error is None or error != error else f"{value} ± {number(error, 2)}",
                *([number(row["smoothed"], 4)] if smooth else []),
                *([_on_tests(row)] if tested else []),
                *(number(row[f"final.{metric}"]) for metric in others),
                *(["yes" if row["front"] else ""] if others else []),
                *([number(row["kl"])] if with_kl else []),
                DASH if row["gpu_seconds"] != row["gpu_seconds"] else duration(row["gpu_seconds"]),
                "; ".join(
                    f"{short[key]} {number(row[f'params.{key}'])}"
                    for key in params
                    if not pd.isna(row[f"params.{key}"])
                    and _differs(row[f"params.{key}"], usual.get(key))
                ),
                str(row["why_not"] or outcome),
            ]
        )
    further = [*others, "front"] if others else []
    heads = [
        "#",
        "trial",
        sweep.metric,
        *["smoothed"] * smooth,
        *["on test seeds"] * tested,
        *further,
        *["KL"] * with_kl,
        "GPU time",
    ]
    heads += ["differs from the default in", "outcome"]
    words = ("trial", "front", "differs from the default in", "outcome")
    return Table(heads, [head not in words for head in heads], rows)


def _on_tests(row: Mapping[Any, Any]) -> str:
    """What a finalist reached on test seeds, with its interval and on how many."""
    if pd.isna(row["test_seeds"]) or not row["test_seeds"]:
        return DASH
    low, high = row["test_low"], row["test_high"]
    span = "" if low != low else f" ({number(low)} to {number(high)})"
    count = int(row["test_seeds"])
    return f"{number(row['test'], 4)}{span}, {count} seed{'s' * (count > 1)}"


def _differs(value: Any, usual: Any) -> bool:
    if isinstance(value, int | float) and isinstance(usual, int | float):
        return bool(abs(float(value) - float(usual)) > 1e-9 * max(1.0, abs(float(usual))))
    return str(value) != str(usual)


def failures(sweep: Sweep) -> Table:
    """Trials that did not complete, by cause: stopped, guards, failures."""
    trials = sweep.trials
    bad = trials[trials["outcome"].notna() & (trials["outcome"] != "completed")]
    told = list(map(cause, bad["outcome"].astype("str"), bad["reason"]))
    causes = pd.Series(told, index=bad.index, dtype="str").replace("", "no reason given")
    rows = []
    for (outcome, why), own in bad.groupby([bad["outcome"].astype("str"), causes], sort=False):
        named = ", ".join(map(str, own.index[:_MOST_TRIALS]))
        more = f" and {len(own) - _MOST_TRIALS} more" if len(own) > _MOST_TRIALS else ""
        last = float(own["iteration"].astype("float64").median())
        rows.append([str(outcome), str(why), str(len(own)), number(last), named + more])
    rows.sort(key=lambda row: -int(row[2]))
    heads = ["outcome", "cause", "trials", "iteration (median)", "which"]
    return Table(heads, [False, False, True, True, False], rows)


def hacked(sweep: Sweep) -> Table:
    """Trials with the signature of reward hacking."""
    signs = hacking_signs(sweep)
    shown = signs[signs["hacked"].astype(bool)].sort_values("drop", ascending=False)
    rows = [
        [
            str(trial),
            str(int(row["peak"])),
            f"{number(float(row['drop']))} ± {number(float(row['error']), 2)}",
            number(float(row["gain"])),
        ]
        for trial, row in shown.head(MOST_ROWS).iterrows()
    ]
    heads = ["trial", "held-out peak at", "held-out fell by", "optimised rose by"]
    return Table(heads, [False, True, True, True], rows)


def bill(sweep: Sweep) -> Table:
    """The budget: trials, iterations and cost by outcome, what stopping saved, and idle time."""
    trials = sweep.trials
    outcome = trials["outcome"].astype("object").fillna("not ended").astype("str")
    costs = {
        "GPU-hours": ("final.cost/gpu_seconds", 3600.0),
        "CPU-hours": ("final.cost/cpu_seconds", 3600.0),
        "episodes": ("final.cost/episodes", 1.0),
        "tokens": ("final.cost/tokens", 1.0),
    }
    held = {name: where for name, where in costs.items() if where[0] in trials}
    rows = []
    for name, own in [*trials.groupby(outcome, sort=False), ("all", trials)]:
        spent = [number(float(own[column].sum()) / size) for column, size in held.values()]
        rows.append([str(name), str(len(own)), number(float(own["iteration"].sum())), *spent])
    rows.append(["asked for", str(sweep.asked), *[DASH] * (1 + len(held))])
    rows += _saved(trials, outcome, held)
    return Table(["", "trials", "iterations", *held], [False, *[True] * (2 + len(held))], rows)


def _saved(
    trials: pd.DataFrame, outcome: pd.Series[str], held: Mapping[str, tuple[str, float]]
) -> list[list[str]]:
    """What trials that were cut off would have cost on to the median length of a completed one."""
    whole = trials.loc[outcome == "completed", "iteration"].astype("float64").median()
    cut = trials[outcome.isin(["stopped", "diverged"]) & (trials["iteration"] > 0)]
    if cut.empty or np.isnan(whole):
        return []
    done = cut["iteration"].astype("float64")
    left = (whole - done).clip(lower=0)
    saved = [float((cut[c] * left / done).sum()) / size for c, size in held.values()]
    amounts = [number(value) for value in saved]
    return [["saved by cutting off", str(len(cut)), number(float(left.sum())), *amounts]]


def checklist(sweep: Sweep) -> Table:
    """What another person needs to repeat the sweep, after the checklist of Eimer et al. 2023."""
    config = sweep.info.get("config") or {}
    search, selection = config.get("search") or {}, config.get("selection") or {}
    best = best_or_none(sweep)
    judged = judgement(sweep, best) if best else None
    seeds = sweep.searched.trials.get("params.seed")
    tuning = f"{seeds.nunique()} seeds" if seeds is not None else "one for all trials (option seed)"
    command = sweep.info.get("command")
    idle = timeline_data(sweep).idle
    versions = sweep.info.get("versions") or {}
    rows = [
        ["search space", f"{len(sweep.axes)} parameters, table above and space.json"],
        ["seed of the sampler", str(search.get("seed", DASH))],
        ["tuning seeds", tuning],
        ["test seeds", _test_seeds(sweep)],
        ["seed of the last judgement", str(selection.get("seed", DASH))],
        ["test prompts", str((judged or {}).get("prompts", "not judged"))],
        [
            "trials",
            f"{sweep.asked} asked for, {int((sweep.searched.trials['state'] == 'ended').sum())} ended",
        ],
        ["GPU time idle", DASH if idle != idle else f"{idle:.0%}"],
        [
            "hardware",
            "logical GPUs, computed on the CPU" if sweep.info.get("rehearsed") else "as listed",
        ],
        ["command", " ".join(map(str, command)) if isinstance(command, list) else DASH],
        ["best configuration", _best_file(sweep, best)],
        ["versions", ", ".join(f"{k} {v}" for k, v in versions.items()) or DASH],
        ["fingerprint of sweep.json", _fingerprint(sweep.info)],
    ]
    return Table(["item", "value"], [False, False], rows)


def _test_seeds(sweep: Sweep) -> str:
    runs = sweep.trials[sweep.trials["purpose"] == "test"]
    if runs.empty:
        return "none: the choice rests on the tuning seeds"
    count, finalists = runs["params.seed"].nunique(), runs["of"].nunique()
    return f"{count} seeds for {finalists} finalists"


def _best_file(sweep: Sweep, best: str | None) -> str:
    if best is None:
        return "none"
    files = ("best.yaml", f"trials/{best}/config.json")
    found = next((name for name in files if (sweep.path / name).exists()), None)
    return f"rlhf-sweep train {found}" if found else f"parameters of {best}, leaderboard above"


def _fingerprint(info: Mapping[str, Any]) -> str:
    text = json.dumps(info, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
