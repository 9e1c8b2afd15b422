"""Dataframes from the records of a run directory. Pure: no file is read here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.space import Axis

Record = Mapping[str, Any]

STATES = ("queued", "waiting", "placed", "started", "retried", "interrupted", "ended")
OUTCOMES = ("completed", "stopped", "diverged", "infeasible", "failed", "lost")
DURATIONS = ("queue", "placement", "start", "run", "stop")
_LASTING = ("number", "parent_id", "fork_iteration", "iteration", "value", "reason")
_PLACEMENT = {
    "trial": "str",
    "worker": "str",
    "roles": "str",
    "bundle": "Int64",
    "node": "str",
    "cpus": "float64",
    "gpus": "float64",
    "memory_gb": "float64",
}


def events_frame(lines: Sequence[Record]) -> pd.DataFrame:
    """The ledger as written: a row per line, ``durations`` spread over ``duration.*`` columns."""
    flat = []
    for line in lines:
        row = {k: v for k, v in line.items() if k != "durations"}
        row |= {f"duration.{k}": v for k, v in _durations(line).items()}
        flat.append(row)
    first = ("time", "trial", "number", "state", "outcome", "reason", *_LASTING[1:5])
    columns = list(dict.fromkeys([*first, *(k for row in flat for k in row)]))
    frame = pd.DataFrame(flat, columns=columns)
    for name in ("number", "fork_iteration", "iteration"):
        frame[name] = _integers(frame[name])
    for name in ["time", "value", *(c for c in columns if c.startswith("duration."))]:
        frame[name] = _floats(frame[name])
    return frame.astype(dict.fromkeys(("trial", "state", "outcome", "reason", "parent_id"), "str"))


def last_states(lines: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """What the ledger says last of each trial, in order of first appearance.

    State, outcome and reason come from the last line alone, since a retried trial has no outcome
    any more. Everything else keeps its last known value.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        trial = line.get("trial")
        if trial is None:
            continue
        row = found.setdefault(str(trial), {"durations": {}})
        row["state"] = line.get("state")
        row["outcome"] = line.get("outcome")
        row["reason"] = ""
        row |= {k: line[k] for k in _LASTING if line.get(k) is not None}
        if row["state"] == "ended":
            row["value"] = line.get("value")
        row["durations"] |= {k: v for k, v in _durations(line).items() if v is not None}
        if row["state"] == "started":
            row["started"] = line.get("time")
    return found


class Curves(NamedTuple):
    """The metrics of one trial, compact: ``iteration`` int64 and float64 columns of equal length.

    ``odd`` names what held something else than numbers.
    """

    iteration: np.ndarray
    columns: dict[str, np.ndarray]
    odd: frozenset[str]


def curves(lines: Sequence[Record]) -> Curves:
    """Columns of the lines of one ``metrics.jsonl``; of equal iterations the later line counts."""
    latest: dict[int, Record] = {}
    for line in lines:
        iteration = line.get("iteration")
        if isinstance(iteration, int):
            latest[iteration] = line
    order = sorted(latest)
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, iteration in enumerate(order):
        groups.setdefault(tuple(latest[iteration]), []).append(place)
    columns: dict[str, np.ndarray] = {}
    odd: set[str] = set()
    for names, places in groups.items():
        block, unclean = _block([latest[order[p]] for p in places], names)
        odd |= unclean
        for name, values in zip(names, block.T, strict=True):
            columns.setdefault(name, np.full(len(order), np.nan))[places] = values
    columns.pop("iteration", None)
    return Curves(np.array(order, dtype=np.int64), columns, frozenset(odd))


def _block(rows: Sequence[Record], names: Sequence[str]) -> tuple[np.ndarray, set[str]]:
    """Lines of equal keys as one float64 matrix; at once where they hold numbers only."""
    raw = [list(row.values()) for row in rows]
    unclean: set[str] = set()
    try:
        block = np.array(raw)
    except ValueError:
        block = np.array([], dtype=object)
    if block.dtype.kind not in "fiu":
        good = [[v is None or isinstance(v, int | float) for v in row] for row in raw]
        unclean = {
            n for n, fine in zip(names, zip(*good, strict=True), strict=True) if not all(fine)
        }
        block = np.array([[_float(v) for v in row] for row in raw])
    block = block.astype(np.float64)
    block[~np.isfinite(block)] = np.nan
    return block, unclean


def iterations_frame(metrics: Mapping[str, Curves]) -> pd.DataFrame:
    """All trials' metrics as one wide frame; a name that never held a number has no column."""
    lengths = [len(own.iteration) for own in metrics.values()]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    odd = {name for own in metrics.values() for name in own.odd}
    names = {name for own in metrics.values() for name in own.columns} - {"timestamp"}
    parts = [own.iteration for own in metrics.values()]
    frame: dict[str, Any] = {
        "trial": pd.array(np.repeat(np.array(list(metrics), dtype=object), lengths), dtype="str"),
        "iteration": np.concatenate(parts) if parts else np.array([], dtype=np.int64),
    }
    for name in ["timestamp", *sorted(names)]:
        values = np.full(starts[-1], np.nan)
        for start, own in zip(starts, metrics.values(), strict=False):
            if name in own.columns:
                values[start : start + len(own.iteration)] = own.columns[name]
        if name not in odd or np.isfinite(values).any():
            frame[name] = values
    return pd.DataFrame(frame)


def final_values(iterations: pd.DataFrame) -> pd.DataFrame:
    """The last finite value of every metric by trial, as ``final.<metric>`` float64 columns."""
    metrics = [c for c in iterations.columns if c not in ("trial", "iteration", "timestamp")]
    last = iterations.groupby("trial", sort=False)[metrics].last()
    return last.add_prefix("final.")


def placement_rows(trial: str, stored: Record) -> list[dict[str, Any]]:
    """One row per worker of a ``placement.json``; a bundle that hosts none has a row of its own."""
    bundles = {b.get("index"): b for b in stored.get("bundles") or [] if isinstance(b, Mapping)}
    workers = [w for w in stored.get("workers") or [] if isinstance(w, Mapping)]
    used = {w.get("bundle") for w in workers}
    rows = [_placed(trial, w, bundles.get(w.get("bundle"), {})) for w in workers]
    idle = [({"name": None, "bundle": i}, b) for i, b in bundles.items() if i not in used]
    return [_placed(trial, w, b) for w, b in idle] + rows


def _placed(trial: str, worker: Record, bundle: Record) -> dict[str, Any]:
    roles = worker.get("roles") or []
    return {
        "trial": trial,
        "worker": worker.get("name"),
        "roles": roles if isinstance(roles, str) else ",".join(map(str, roles)),
        "bundle": worker.get("bundle"),
        "node": bundle.get("node"),
        **{k: bundle.get(k) for k in ("cpus", "gpus", "memory_gb")},
    }


def placements_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of ``placement_rows`` with their dtypes."""
    frame = pd.DataFrame(list(rows), columns=list(_PLACEMENT))
    for name in ("cpus", "gpus", "memory_gb"):
        frame[name] = _floats(frame[name])
    frame["bundle"] = _integers(frame["bundle"])
    return frame.astype({c: kind for c, kind in _PLACEMENT.items() if kind == "str"})


def trials_frame(
    states: Mapping[str, Record], params: Mapping[str, Record], axes: Mapping[str, Axis]
) -> pd.DataFrame:
    """One row per trial, without the metrics: state, lineage, parameters and durations."""
    ids = list(states)
    index = pd.Index(ids, name="trial", dtype="str")

    def column(name: str) -> pd.Series[Any]:
        return pd.Series([states[i].get(name) for i in ids], index=index, dtype="object")

    frame = pd.DataFrame(index=index)
    frame["number"] = _integers(column("number"))
    frame["state"] = _category(column("state").fillna("unknown"), STATES)
    frame["outcome"] = _category(column("outcome"), OUTCOMES)
    frame["reason"] = column("reason").fillna("").astype("str")
    frame["parent_id"] = column("parent_id").astype("str")
    frame["fork_iteration"] = _integers(column("fork_iteration"))
    frame["iteration"] = _integers(column("iteration"))
    frame["value"] = _floats(column("value"))
    frame["started"] = _floats(column("started"))
    keys = dict.fromkeys([*axes, *(key for stored in params.values() for key in stored)])
    for key in keys:
        values = [params.get(i, {}).get(key, _MISSING) for i in ids]
        frame[f"params.{key}"] = parameter_column(values, axes.get(key), index)
    spent = dict.fromkeys([*DURATIONS, *(k for s in states.values() for k in s["durations"])])
    for name in spent:
        values = [states[i]["durations"].get(name) for i in ids]
        frame[f"duration.{name}"] = _floats(pd.Series(values, index=index, dtype="object"))
    order = frame.assign(_id=frame.index).sort_values(["number", "_id"], kind="stable").index
    return frame.loc[order]


class _Missing:
    """Marks a parameter that a trial does not have, since None is a value one may choose."""


_MISSING = _Missing()


def parameter_column(values: Sequence[Any], axis: Axis | None, index: pd.Index) -> pd.Series[Any]:
    """A parameter's values with the dtype that suits them.

    Integers become Int64, numbers float64, truth values boolean; anything else is categorical in
    the order of the space, with null written as ``"null"`` and lists as text.
    """
    known = [v for v in values if not isinstance(v, _Missing)]
    held = pd.Series(
        [None if isinstance(v, _Missing) else v for v in values], index=index, dtype="object"
    )
    if known and all(isinstance(v, bool) for v in known):
        return held.astype("boolean")
    plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in known)
    if plain and (axis is None or axis.kind != "float") and all(isinstance(v, int) for v in known):
        return held.astype("Int64")
    if plain:
        return _floats(held)
    offered = [_label(v) for v in (axis.values if axis else ())]
    seen = sorted({_label(v) for v in known} - set(offered), key=str)
    labels = [None if isinstance(v, _Missing) else _label(v) for v in values]
    categories = list(dict.fromkeys([*offered, *seen]))
    return pd.Series(pd.Categorical(labels, categories=categories), index=index)


def _label(value: Any) -> Any:
    if value is None:
        return "null"
    # A category cannot tell True from 1.
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _durations(line: Record) -> dict[str, Any]:
    stored = line.get("durations")
    return dict(stored) if isinstance(stored, Mapping) else {}


def _category(values: pd.Series[Any], known: Sequence[str]) -> pd.Series[Any]:
    others = sorted({str(v) for v in values.dropna()} - set(known))
    text = values.map(str, na_action="ignore")
    return pd.Series(pd.Categorical(text, categories=[*known, *others]), index=values.index)


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _floats(values: pd.Series[Any]) -> pd.Series[Any]:
    numbers = values.map(_float).astype("float64")
    return numbers.where(np.isfinite(numbers))


def _integers(values: pd.Series[Any]) -> pd.Series[Any]:
    whole = [int(v) if isinstance(v, int | float) and v == v else None for v in values]
    return pd.Series(whole, index=values.index, dtype="Int64")
