"""Several sweeps as one: the ids of their trials get the sweep's name, frames are put one below another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import union_categoricals

from analysis.sweep import FRAMES, Sweep
from rlhf_core.errors import ConfigError


def combine(sweeps: Sequence[Sweep]) -> Sweep:
    """One sweep of all trials, ``name/trial`` each; the column ``sweep`` tells where each is from.

    Objective and constraints are kept where all agree; a parameter of several spaces has the span
    of the first. Equal names get the name of their directory, then a number.
    """
    names = _names(sweeps)
    renamed = [_renamed(sweep, name) for sweep, name in zip(sweeps, names, strict=True)]
    parts = {name: _stacked([getattr(sweep, name) for sweep in renamed]) for name in FRAMES}
    parts["trials"].index = pd.Index(parts["trials"].index, dtype="str", name="trial")
    found = Sweep(
        path=_common([sweep.path for sweep in sweeps]),
        info=_info(sweeps, names),
        space=_space(sweeps),
        warnings=tuple(f"{s.name}: {line}" for s in renamed for line in s.warnings),
        **parts,
    )
    trials = found.trials
    for column in [c for c in trials if str(c).startswith(("params.", "duration."))]:
        if trials[column].dtype == object:
            trials[column] = trials[column].astype("category")
    return found


def _names(sweeps: Sequence[Sweep]) -> list[str]:
    own = [sweep.name for sweep in sweeps]
    twice = {name for name in own if own.count(name) > 1}
    wanted = [s.path.name or s.name if s.name in twice else s.name for s in sweeps]
    names: list[str] = []
    for name in wanted:
        count, free = 1, name
        while free in names:
            count += 1
            free = f"{name}#{count}"
        names.append(free)
    return names


def _renamed(sweep: Sweep, name: str) -> Sweep:
    trials = sweep.trials.set_axis(name + "/" + sweep.trials.index.astype("str"))
    trials["sweep"] = pd.Categorical([name] * len(trials))
    for column in ("parent_id", "of"):
        trials[column] = (name + "/" + trials[column]).where(trials[column].notna())
    longer = {}
    for frame in FRAMES[1:]:
        held = getattr(sweep, frame)
        ids = held["trial"].cat.rename_categories(lambda trial: f"{name}/{trial}")
        longer[frame] = held.assign(trial=ids)
    return replace(sweep, info=sweep.info | {"name": name}, trials=trials, **longer)


def _stacked(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One below another; categories of a column are joined instead of becoming text."""
    columns = list(dict.fromkeys(c for part in parts for c in part.columns))
    index = None if "trial" in columns else pd.Index([i for part in parts for i in part.index])
    made: dict[Any, Any] = {}
    for column in columns:
        held = [p[column] if column in p else pd.Series(index=p.index) for p in parts]
        if all(isinstance(h.dtype, pd.CategoricalDtype) or h.isna().all() for h in held) and any(
            isinstance(h.dtype, pd.CategoricalDtype) for h in held
        ):
            made[column] = _joined(held)
            continue
        filled = [h.astype(_dtype(held)) if h.isna().all() else h for h in held]
        made[column] = pd.concat(filled, ignore_index=True).array
    return pd.DataFrame(made, index=index)


def _joined(held: Sequence[pd.Series[Any]]) -> Any:
    """One categorical; without order, and of text where the categories are of several types."""
    parts = [h.astype("category") for h in held]
    if len({p.cat.categories.dtype for p in parts if len(p.cat.categories)}) > 1:
        parts = [p.cat.rename_categories([str(c) for c in p.cat.categories]) for p in parts]
    kind = next(p.cat.categories.dtype for p in parts if len(p.cat.categories) or p is parts[-1])
    empty = [p.cat.set_categories(pd.Index([], dtype=kind)) if p.isna().all() else p for p in parts]
    return union_categoricals(empty, ignore_order=True)


def _dtype(held: Sequence[pd.Series[Any]]) -> Any:
    return next((h.dtype for h in held if not h.isna().all()), held[0].dtype)


def _common(paths: Sequence[Path]) -> Path:
    absolute = [str(path.resolve()) for path in paths]
    return Path(os.path.commonpath(absolute))


def _info(sweeps: Sequence[Sweep], names: Sequence[str]) -> dict[str, Any]:
    info: dict[str, Any] = {
        "name": " + ".join(names),
        "trials": sum(sweep.asked for sweep in sweeps),
        "rehearsed": any(sweep.info.get("rehearsed") for sweep in sweeps),
        "sweeps": {name: sweep.info for name, sweep in zip(names, sweeps, strict=True)},
    }
    for key in ("objective", "constraints"):
        first = sweeps[0].info.get(key)
        if all(sweep.info.get(key) == first for sweep in sweeps):
            info[key] = first
    if "objective" in info and (goals := _goals(sweeps)):
        info["objectives"] = goals
    return info


def _goals(sweeps: Sequence[Sweep]) -> dict[str, str]:
    """Metric and direction of several objectives that all sweeps share; empty where they differ."""
    try:
        found = {sweep.objectives for sweep in sweeps}
    except ConfigError:
        return {}
    shared = found.pop() if len(found) == 1 else ()
    return {goal.metric: goal.direction for goal in shared} if len(shared) > 1 else {}


def _space(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    from analysis.space import axes

    entries: dict[str, dict[str, Any]] = {}
    for sweep in sweeps:
        for key, axis in axes(sweep.space).items():
            entry = {"key": key, "type": axis.kind, "log": axis.log, "values": list(axis.values)}
            entries.setdefault(key, entry | {"low": axis.low, "high": axis.high})
    return {"parameters": list(entries.values())}
