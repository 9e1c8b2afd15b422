"""A run directory as dataframes: ``load(path) -> Sweep``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.files import read_document, read_lines, read_object
from analysis.objective import Constraint, Objective, read_constraints
from analysis.space import Axis, axes
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.frames import Curves


@dataclass(frozen=True, eq=False)
class Sweep:
    """One sweep, read from its directory. The frames are the caller's to change.

    Attributes:
        path: The run directory.
        info: Content of ``sweep.json``.
        space: Content of ``space.json``; empty where it is missing.
        trials: One row per trial, also for those that never reported. Index ``trial`` (str).
            Columns: ``number`` Int64, ``state`` and ``outcome`` category (no outcome before the
            end), ``reason`` str, ``parent_id`` str, ``fork_iteration`` Int64, ``iteration`` Int64
            (the last one), ``value`` float64 (the objective; of a trial that has not ended the last
            one measured), ``started`` float64 (seconds since the epoch), ``params.<dotted key>``
            (Int64, float64, boolean or category), ``duration.<phase>`` float64 seconds, and
            ``final.<metric>`` float64, the last finite value, in the unit of the catalogue.
        iterations: One row per trial and iteration: ``trial`` str, ``iteration`` int64,
            ``timestamp`` float64 (seconds since the epoch), then a float64 column per metric, NaN
            where it was not measured.
        placements: One row per worker: ``trial``, ``worker``, ``roles`` (comma separated), ``node``
            str, ``bundle`` Int64, ``cpus``, ``gpus``, ``memory_gb`` float64. Resources are those of
            the bundle and repeat for each of its workers: drop duplicates of (trial, bundle) before
            summing. A bundle without a worker has a row without ``worker``.
        events: One row per ledger line, ``durations`` as ``duration.<phase>`` columns, unknown keys
            as columns.
        warnings: What was missing or could not be read, one line each.
    """

    path: Path
    info: dict[str, Any]
    space: dict[str, Any]
    trials: pd.DataFrame
    iterations: pd.DataFrame
    placements: pd.DataFrame
    events: pd.DataFrame
    warnings: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """The sweep's name, or that of its directory."""
        return str(self.info.get("name") or self.path.name)

    @property
    def objective(self) -> Objective:
        """Metric and direction; ConfigError where ``sweep.json`` states none."""
        return Objective.read(self.info.get("objective"))

    @property
    def metric(self) -> str:
        """Name of the objective's metric."""
        return self.objective.metric

    @property
    def direction(self) -> str:
        """``maximize`` or ``minimize``."""
        return self.objective.direction

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """Bounds on final metrics; ConfigError where one cannot be read."""
        return read_constraints(self.info.get("constraints"))

    @property
    def axes(self) -> dict[str, Axis]:
        """The searched parameters by key: those of the space, then others that trials recorded."""
        known = axes(self.space)
        columns = map(str, self.trials.columns)
        recorded = [c.removeprefix("params.") for c in columns if c.startswith("params.")]
        return known | {key: Axis(key) for key in recorded if key not in known}

    @property
    def asked(self) -> int:
        """How many trials the sweep wants; at least as many as there are."""
        wanted = self.info.get("trials")
        return max(wanted if isinstance(wanted, int) else 0, len(self.trials))


def load(path: str | Path) -> Sweep:
    """Read a run directory, also one that is being written or was interrupted.

    Args:
        path: The directory that holds ``sweep.json``.

    Returns:
        The sweep; what was missing or torn stands in its ``warnings``.

    Raises:
        ConfigError: There is no readable ``sweep.json``, or a file has a newer schema.
    """
    from analysis import frames

    root = Path(path)
    warnings: list[str] = []
    info = _sweep_file(root)
    space = _space_file(root, warnings)
    ledger = _lines(root / "trials.jsonl", "trials.jsonl", warnings)
    states = frames.last_states(ledger)
    _add_unlisted(root, states, warnings)
    stored = _read_trials(root, states, warnings)
    iterations = frames.iterations_frame(stored.metrics)
    odd = sorted({name for own in stored.metrics.values() for name in own.odd})
    if odd:
        warnings.append(f"metrics.jsonl: not only numbers in {', '.join(odd)}; the rest left out")
    placed = [row for t, doc in stored.placements.items() for row in frames.placement_rows(t, doc)]
    return Sweep(
        path=root,
        info=info,
        space=space,
        trials=_with_metrics(
            frames.trials_frame(states, stored.params, axes(space)), iterations, info
        ),
        iterations=iterations,
        placements=frames.placements_frame(placed),
        events=frames.events_frame(ledger),
        warnings=tuple(warnings),
    )


@dataclass
class _Stored:
    params: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: dict[str, Curves] = field(default_factory=dict)
    placements: dict[str, dict[str, Any]] = field(default_factory=dict)


def _sweep_file(root: Path) -> dict[str, Any]:
    try:
        return read_document(root / "sweep.json", "sweep.json")
    except (FileNotFoundError, NotADirectoryError):
        what = "has none" if root.is_dir() else "is no directory"
        raise ConfigError(
            f"a run directory holds sweep.json, {root} {what}; "
            "point at a directory that `rlhf-sweep run` wrote"
        ) from None


def _space_file(root: Path, warnings: list[str]) -> dict[str, Any]:
    try:
        return read_document(root / "space.json", "space.json")
    except FileNotFoundError:
        warnings.append("space.json: missing; scales and choices of the parameters are unknown")
        return {}


def _lines(path: Path, name: str, warnings: list[str]) -> list[dict[str, Any]]:
    try:
        return read_lines(path, name, warnings)
    except FileNotFoundError:
        warnings.append(f"{name}: missing")
        return []


def _add_unlisted(root: Path, states: dict[str, dict[str, Any]], warnings: list[str]) -> None:
    folder = root / "trials"
    found = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    for trial in found:
        if trial not in states:
            warnings.append(f"trials.jsonl: no line of trial {trial}, which has a folder")
            states[trial] = {"state": "unknown", "durations": {}}


def _read_trials(root: Path, states: Mapping[str, Any], warnings: list[str]) -> _Stored:
    from analysis.frames import curves

    stored = _Stored()
    missing: dict[str, list[str]] = {}
    for trial, state in states.items():
        folder, name = root / "trials" / trial, f"trials/{trial}"
        params = read_object(folder / "params.json", f"{name}/params.json", warnings)
        placement = read_object(folder / "placement.json", f"{name}/placement.json", warnings)
        try:
            lines = read_lines(folder / "metrics.jsonl", f"{name}/metrics.jsonl", warnings)
            stored.metrics[trial] = curves(lines)
        except FileNotFoundError:
            if _should_have_reported(state):
                missing.setdefault("metrics.jsonl", []).append(trial)
        if params is not None:
            stored.params[trial] = params
        elif _should_have_reported(state):
            missing.setdefault("params.json", []).append(trial)
        if placement is not None:
            stored.placements[trial] = placement
        elif _should_have_reported(state):
            missing.setdefault("placement.json", []).append(trial)
    warnings += [f"{file}: missing for {_listed(trials)}" for file, trials in missing.items()]
    return stored


def _should_have_reported(state: Mapping[str, Any]) -> bool:
    return state.get("outcome") in ("completed", "stopped")


def _listed(trials: Sequence[str]) -> str:
    shown = ", ".join(trials[:5])
    return shown + (f" and {len(trials) - 5} more trials" if len(trials) > 5 else "")


def _with_metrics(
    trials: pd.DataFrame, iterations: pd.DataFrame, info: Mapping[str, Any]
) -> pd.DataFrame:
    from analysis.frames import final_values

    final = final_values(iterations)
    joined = trials.join(final)
    reached = iterations.groupby("trial")["iteration"].max().reindex(joined.index)
    ended = joined["state"] == "ended"
    known = joined["iteration"].where(ended)
    joined["iteration"] = known.fillna(reached.astype("Int64")).fillna(joined["iteration"])
    objective = info.get("objective")
    column = f"final.{objective.get('metric')}" if isinstance(objective, Mapping) else ""
    if column in joined:
        joined["value"] = joined["value"].where(ended, joined[column])
    return joined
