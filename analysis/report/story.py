"""What was asked and what was found, in sentences made of numbers."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from analysis.compare import findings
from analysis.eligible import none_eligible
from analysis.files import read_object
from analysis.names import duration, number
from analysis.plots.learning_curves import best_or_none
from analysis.shapes import JUDGED
from analysis.statistics.budget import budget_correlation, search_course
from analysis.statistics.hacking import hacking_signs
from analysis.statistics.parameters import importance
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError
from rlhf_core.metrics import MEASURES

SENTENCES = 5
_RESAMPLES = 20


def asked(sweep: Sweep) -> list[str]:
    """Objective, constraints, trials, search, budget and cluster, a line each."""
    config = sweep.info.get("config") or {}
    verbs = {"maximize": "maximise", "minimize": "minimise"}
    goals = " and ".join(f"{verbs[goal.direction]} {goal.metric}" for goal in sweep.objectives)
    rules = " and ".join(map(str, sweep.constraints))
    lines = [
        f"{goals[:1].upper()}{goals[1:]}{f' under {rules}' if rules else ''}, "
        f"over {len(sweep.axes)} parameters in {sweep.asked} trials."
    ]
    if len(sweep.objectives) > 1:
        lines.append(f"Trials rank, stop early and are chosen by the first, {sweep.metric}.")
    search, scheduler = config.get("search") or {}, config.get("scheduler") or {}
    if search.get("sampler"):
        stops = scheduler.get("kind", "none")
        told = "nothing is stopped early" if stops == "none" else f"{stops} stops what is behind"
        lines.append(f"Sampler {search['sampler']}, seed {search.get('seed')}; {told}.")
    lines += _machine(sweep)
    return lines


def _machine(sweep: Sweep) -> Iterator[str]:
    nodes = (sweep.info.get("cluster") or {}).get("nodes") or []
    if nodes:
        gpus, cpus = (sum(float(n.get(k) or 0) for n in nodes) for k in ("gpus", "cpus"))
        kind = "logical GPUs (a rehearsal: times say nothing of real ones)"
        what = kind if sweep.info.get("rehearsed") else "GPUs"
        yield f"On {len(nodes)} node{'s' * (len(nodes) > 1)} with {gpus:g} {what} and {cpus:g} CPUs."
    created = sweep.info.get("created")
    if isinstance(created, int | float):
        began = datetime.datetime.fromtimestamp(created, datetime.UTC)
        yield f"Begun {began:%Y-%m-%d %H:%M} UTC."


def found(sweep: Sweep) -> list[str]:
    """At most five sentences, the weightiest first."""
    said = [_outcomes_and_bill(sweep)]
    best = best_or_none(sweep)
    if best is None:
        reason = none_eligible(sweep) if len(sweep.trials) else "no trial has begun"
        return [*said, f"{reason[:1].upper()}{reason[1:]}."]
    # The second of the findings is about the best trial and its lead; of several objectives the front follows.
    about = findings(sweep)
    weighty = 3 if len(sweep.objectives) > 1 else 2
    said += about[1:weighty]
    told = [_judged(sweep, best), _against_chance(sweep), _what_matters(sweep), _hacked(sweep)]
    said += [line for line in [*told, _when_believed(sweep), *about[weighty:]] if line]
    return said[:SENTENCES]


def _outcomes_and_bill(sweep: Sweep) -> str:
    sentence = findings(sweep)[0].rstrip(".")
    spent = sweep.trials.get("final.cost/gpu_seconds")
    times = sweep.events["time"].dropna()
    parts = []
    if spent is not None and spent.notna().any():
        parts.append(f"{number(float(spent.sum()) / 3600)} GPU-hours")
    if len(times) > 1:
        parts.append(f"{duration(float(times.max() - times.min()))} of wall time")
    return f"{sentence}, in {' and '.join(parts)}." if parts else f"{sentence}."


def judgement(sweep: Sweep, best: str) -> Mapping[str, Any] | None:
    """The recorded last judgement, where it is about this trial."""
    stored = read_object(sweep.path / "best.json", "best.json", [], JUDGED) or {}
    judged = stored.get("judgement")
    return judged if isinstance(judged, dict) and stored.get("trial") == best else None


def _judged(sweep: Sweep, best: str) -> str:
    judged = judgement(sweep, best) or {}
    known = [judged.get(k) for k in ("before", "after", "gain", "stderr", "prompts")]
    if not all(isinstance(value, int | float) for value in known):
        return ""
    before, after, gain, error, prompts = known
    trained_on = judged.get("trained_on")
    which = {None: "test prompts", 0: "prompts never trained on"}.get(
        trained_on, f"prompts, {trained_on} of them trained on"
    )
    measured = str(judged.get("metric") or "")
    reward = f"{MEASURES.get(measured, measured)} reward".lstrip()
    return (
        f"On {prompts} {which}, its {reward} went from {number(before)} to "
        f"{number(after)}, a gain of {number(gain)} ± {number(error, 2)} (standard error)."
    )


def _against_chance(sweep: Sweep) -> str:
    course = search_course(sweep)
    half = course.iloc[: max(1, len(course) // 2)]
    if len(course) < 4 or half["best"].isna().iloc[-1]:
        return ""
    row = half.iloc[-1]
    sign = -1.0 if sweep.objective.ascending else 1.0
    ahead, behind = row["best"] - row["random_high"], row["best"] - row["random_low"]
    if sweep.objective.ascending:
        ahead, behind = behind, ahead
    verdict = "within" if sign * ahead <= 0 <= sign * behind else "outside"
    return (
        f"After {len(half)} of {len(course)} trials the best was {number(float(row['best']))}; of the "
        f"same trials in random order it would have been {number(float(row['random']))} "
        f"({number(float(row['random_low']))} to {number(float(row['random_high']))}), which "
        f"is {verdict} what chance explains."
    )


def _what_matters(sweep: Sweep) -> str:
    table = importance(sweep, repeats=_RESAMPLES)
    if table.empty:
        return ""
    first = table.iloc[0]
    return (
        f"What sets the best trials apart most is {table.index[0]} with {first['importance']:.0%} of "
        f"the importance ({first['low']:.0%} to {first['high']:.0%} over resampled trials)."
    )


def _hacked(sweep: Sweep) -> str:
    signs = hacking_signs(sweep)
    if signs.empty or not signs["hacked"].any():
        return ""
    shown = signs[signs["hacked"]]
    place = int(shown["drop"].to_numpy().argmax())
    worst, row = shown.index[place], shown.iloc[place]
    return (
        f"{int(signs['hacked'].sum())} of {len(signs)} trials show reward hacking: in {worst} the "
        f"held-out reward fell by {number(float(row['drop']))} after iteration {int(row['peak'])} "
        f"while the optimised one rose by {number(float(row['gain']))}."
    )


def _when_believed(sweep: Sweep) -> str:
    try:
        table = budget_correlation(sweep, repeats=_RESAMPLES)
    except ConfigError:
        return ""
    early = table[table["rho"].notna() & (table["iteration"] < table["iteration"].max())]
    if early.empty:
        return ""
    row = early.iloc[len(early) // 2]
    return (
        f"At iteration {int(row['iteration'])} ranks agree with those at the end by "
        f"{row['rho']:+.2f} (Spearman, {int(row['trials'])} trials)."
    )
