"""Dataframes from the records of a run directory. Pure: no file is read here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.space import Axis

Record = Mapping[str, Any]

STATES = ("queued", "waiting", "placed", "started", "retried", "paused", "interrupted", "ended")
OUTCOMES = ("completed", "stopped", "diverged", "infeasible", "failed", "lost")
# ``load`` is a part of ``start``.
DURATIONS = ("queue", "start", "load", "run", "stop")
PURPOSES = ("search", "test")
_LASTING = (
    "number",
    "purpose",
    "of",
    "parent_id",
    "fork_iteration",
    "iteration",
    "value",
    "reason",
)
_PLACEMENT = ("trial", "worker", "roles", "bundle", "node", "cpus", "gpus", "memory_gb")


def events_frame(lines: Sequence[Record]) -> pd.DataFrame:
    """The ledger as written: a row per line, ``durations`` spread over ``duration.*`` columns."""
    known = ("time", "trial", "number", "state", "outcome", "reason", *_LASTING[1:7])
    others = dict.fromkeys(key for line in lines for key in line)
    others.pop("durations", None)
    columns: dict[str, Any] = {
        name: [line.get(name) for line in lines] for name in dict.fromkeys([*known, *others])
    }
    spent = [_durations(line) for line in lines]
    for phase in dict.fromkeys(key for own in spent for key in own):
        columns[f"duration.{phase}"] = [own.get(phase) for own in spent]
    for name in ("number", "fork_iteration", "iteration"):
        columns[name] = _integers(columns[name])
    for name in ["time", "value", *(c for c in columns if c.startswith("duration."))]:
        columns[name] = _floats(columns[name])
    columns["trial"] = _category(columns["trial"], list(dict.fromkeys(columns["trial"])))
    columns["state"] = _category(columns["state"], STATES)
    columns["outcome"] = _category(columns["outcome"], OUTCOMES)
    columns["purpose"] = _category([p or "search" for p in columns["purpose"]], PURPOSES)
    return pd.DataFrame(columns).astype({"reason": "str", "of": "str", "parent_id": "str"})


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
    if len(groups) == 1:
        (names,) = groups
        block, odd = _block([latest[i] for i in order], names)
        columns = dict(zip(names, block.T, strict=True))
        groups = {}
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
        "trial": pd.Categorical.from_codes(
            np.repeat(np.arange(len(metrics)), lengths), categories=pd.Index(metrics, dtype="str")
        ),
        "iteration": np.concatenate(parts) if parts else np.array([], dtype=np.int64),
    }
    for name in ["timestamp", *sorted(names)]:
        values = np.full(starts[-1], np.nan)
        for start, own in zip(starts, metrics.values(), strict=False):
            if name in own.columns:
                values[start : start + len(own.iteration)] = own.columns[name]
        if name not in odd or np.isfinite(values).any():
            frame[name] = values
    return pd.DataFrame(frame, copy=False)


def final_values(iterations: pd.DataFrame) -> pd.DataFrame:
    """The last finite value of every metric by trial, as ``final.<metric>`` float64 columns."""
    trial = iterations["trial"]
    # The rows of a trial stand together.
    starts = np.flatnonzero(np.r_[True, np.diff(trial.cat.codes) != 0][: len(trial)])
    index = pd.Index(trial.iloc[starts].astype("str"), name="trial")
    final = {f"final.{c}": _last_finite(iterations[c], starts) for c in metric_names(iterations)}
    return pd.DataFrame(final, index=index)


def _last_finite(values: pd.Series[Any], starts: np.ndarray) -> np.ndarray:
    held = values.to_numpy()
    if not len(held):
        return held
    places = np.where(np.isfinite(held), np.arange(len(held)), -1)
    last = np.maximum.reduceat(places, starts)
    return np.where(last >= 0, held[last], np.nan)


def metric_names(iterations: pd.DataFrame) -> list[str]:
    """The metrics among the columns of ``Sweep.iterations``."""
    return [str(c) for c in iterations.columns if c not in ("trial", "iteration", "timestamp")]


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
    for name in ("trial", "node"):
        held = list(dict.fromkeys(frame[name].dropna()))
        frame[name] = pd.Categorical(frame[name], categories=pd.Index(held, dtype="str"))
    return frame.astype({"worker": "str", "roles": "str"})


def trials_frame(
    states: Mapping[str, Record],
    params: Mapping[str, Record],
    axes: Mapping[str, Axis],
    sweep: str,
) -> pd.DataFrame:
    """One row per trial, without the metrics: state, lineage, parameters and durations."""
    ids = list(states)
    index = pd.Index(ids, name="trial", dtype="str")

    def column(name: str) -> list[Any]:
        return [states[i].get(name) for i in ids]

    frame = pd.DataFrame(index=index)
    frame["sweep"] = pd.Categorical([sweep] * len(ids))
    frame["number"] = _integers(column("number"))
    frame["state"] = _category([s or "unknown" for s in column("state")], STATES)
    frame["outcome"] = _category(column("outcome"), OUTCOMES)
    frame["reason"] = pd.array([r or "" for r in column("reason")], dtype="str")
    frame["purpose"] = _category([p or "search" for p in column("purpose")], PURPOSES)
    frame["of"] = pd.array(column("of"), dtype="str")
    frame["parent_id"] = pd.array(column("parent_id"), dtype="str")
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
        frame[f"duration.{name}"] = _floats(values)
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
        return pd.Series(_floats(held), index=index)
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


def _category(values: Iterable[Any], known: Sequence[Any]) -> pd.Categorical:
    """Values as text, in the order of ``known`` and then of the alphabet."""
    text = [None if pd.isna(v) else str(v) for v in values]
    first = [str(k) for k in known if k is not None]
    others = sorted({t for t in text if t is not None} - set(first))
    return pd.Categorical(text, categories=pd.Index([*first, *others], dtype="str"))


def _float(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _floats(values: Iterable[Any]) -> np.ndarray:
    numbers = np.array([_float(v) for v in values], dtype=np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers


def _integers(values: Iterable[Any]) -> Any:
    whole = [int(v) if isinstance(v, int | float) and v == v else None for v in values]
    return pd.array(whole, dtype="Int64")
