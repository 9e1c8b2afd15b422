"""An Optuna study made of a sweep's frames: of sweeps that left none of their own, or come from other tools."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis.leaderboard import objectives_of
from analysis.params import parameters_of
from analysis.statistics.parameters import distribution
from analysis.sweep import Sweep

if TYPE_CHECKING:
    import optuna

_STATES = {"completed": "COMPLETE", "failed": "FAIL", "lost": "FAIL"}


def study_of(sweep: Sweep) -> optuna.Study:
    """The trials of the search that have ended, in a study in memory.

    Values are the last ones of the objectives. A completed trial without one of them is failed, and
    one that ended otherwise pruned, or failed where its outcome is. Of a single objective the curve
    becomes intermediate values; outcome, reason and the trial's id become attributes.

    Raises:
        ConfigError: The sweep states no objective.
    """
    import optuna

    sweep = sweep.searched
    goals = sweep.objectives
    study = optuna.create_study(study_name=sweep.name, directions=[g.direction for g in goals])
    axes = {k: axis for k, axis in sweep.axes.items() if f"params.{k}" in sweep.trials}
    held = {k: sweep.trials[f"params.{k}"].dropna() for k in axes}
    spans = {k: distribution(held[k], axis) for k, axis in axes.items() if len(held[k])}
    curves = _curves(sweep) if len(goals) == 1 else {}
    ended = sweep.trials.index[sweep.trials["state"] == "ended"]
    study.add_trials([_frozen(sweep, str(t), spans, curves.get(str(t), {})) for t in ended])
    return study


def _curves(sweep: Sweep) -> dict[str, dict[int, float]]:
    if sweep.metric not in sweep.iterations:
        return {}
    rows = sweep.iterations[["trial", "iteration", sweep.metric]].dropna()
    return {
        str(trial): dict(zip(own["iteration"].tolist(), own[sweep.metric].tolist(), strict=True))
        for trial, own in rows.groupby("trial", observed=True)
    }


def _frozen(
    sweep: Sweep, trial: str, spans: Mapping[str, Any], curve: Mapping[int, float]
) -> optuna.trial.FrozenTrial:
    from optuna.trial import TrialState, create_trial

    row = sweep.trials.loc[trial].to_dict()
    measured = [*objectives_of(sweep, trial).values()]
    values = [value for value in measured if value is not None]
    state = _STATES.get(str(row["outcome"]), "PRUNED")
    if state == "COMPLETE" and len(values) < len(measured):
        state = "FAIL"
    params = {k: v for k, v in parameters_of(sweep, trial).items() if k in spans}
    made = create_trial(
        state=TrialState[state],
        values=values if state == "COMPLETE" else None,
        params={key: _offered(value, spans[key]) for key, value in params.items()},
        distributions={key: spans[key] for key in params},
        user_attrs={"trial": trial, "outcome": str(row["outcome"]), "reason": str(row["reason"])},
        intermediate_values=dict(curve),
    )
    if math.isfinite(row["started"]):
        made.datetime_start = datetime.datetime.fromtimestamp(row["started"])
    return made


def _offered(value: Any, span: Any) -> Any:
    """A list or null as the text under which the distribution knows it."""
    choices = getattr(span, "choices", None)
    if choices is None or value in choices:
        return value
    return "null" if value is None else str(value)
