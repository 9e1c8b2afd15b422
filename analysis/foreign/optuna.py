"""An Optuna study, from its storage or in memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.foreign.build import Foreign
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError, nearest

if TYPE_CHECKING:
    import optuna

_STATES = {
    "COMPLETE": ("ended", "completed"),
    "PRUNED": ("ended", "stopped"),
    "FAIL": ("ended", "failed"),
    "RUNNING": ("started", None),
    "WAITING": ("queued", None),
}
_KINDS = {"FloatDistribution": "float", "IntDistribution": "int"}


def from_storage(address: str, name: str | None) -> Sweep:
    """The study ``name`` of an RDB URL or journal file; without a name the only one there.

    Raises:
        ConfigError: The storage cannot be opened, holds no such study, or several and none is named.
    """
    import optuna

    try:
        storage = _storage(address)
        names = [study.study_name for study in optuna.get_all_study_summaries(storage)]
    except (OSError, ValueError, ImportError, optuna.exceptions.StorageInternalError) as error:
        raise ConfigError(f"{address}: no Optuna storage can be opened there: {error}") from None
    listed = ", ".join(names) or "none"
    if name is None and len(names) != 1:
        raise ConfigError(f"{address}: name the study, as in load(..., study=...); it has {listed}")
    if name is not None and name not in names:
        raise ConfigError(
            f"{address}: no study {name!r}{nearest(name, names) or f'; it has {listed}'}"
        )
    study = optuna.load_study(study_name=name or names[0], storage=storage)
    return from_study(study, Path(address) if "://" not in address else Path())


def _storage(address: str) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    if "://" in address:
        return optuna.storages.RDBStorage(address, skip_table_creation=True)
    if not Path(address).is_file():
        raise OSError("no such file")
    return optuna.storages.JournalStorage(JournalFileBackend(address))


def from_study(study: optuna.Study, path: Path = Path()) -> Sweep:
    """Trials, parameters and intermediate values of a study.

    The objective that ranks is the first one of the study, under its metric's name (``value`` where
    it has none); further ones become ``final.<name>``, and so do attributes of users that are numbers.

    Raises:
        ConfigError: It is no study.
    """
    if not hasattr(study, "get_trials"):
        raise ConfigError(
            f"a sweep is read from a path, a URL or an Optuna study, got {type(study).__name__}"
        )
    names = study.metric_names or _numbered(len(study.directions))
    found = Foreign(study.study_name, path)
    ways = [direction.name.lower() for direction in study.directions]
    found.objective = {"metric": names[0], "direction": ways[0]}
    found.objectives = dict(zip(names, ways, strict=True)) if len(names) > 1 else {}
    spans: dict[str, dict[str, Any]] = {}
    for trial in study.get_trials(deepcopy=False):
        key = f"t{trial.number:04d}"
        found.params[key] = dict(trial.params)
        found.states[key] = _state(trial)
        found.lines[key] = [
            {"iteration": step, names[0]: value}
            for step, value in sorted(trial.intermediate_values.items())
        ]
        found.finals[key] = _finals(trial, names)
        for name, distribution in trial.distributions.items():
            spans.setdefault(name, _axis(name, distribution))
    found.space = {"parameters": list(spans.values())}
    return found.sweep()


def _numbered(count: int) -> list[str]:
    return ["value"] if count == 1 else [f"value/{i}" for i in range(count)]


def _state(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    state, outcome = _STATES[trial.state.name]
    values = trial.values if trial.state.name == "COMPLETE" else None
    times = {"started": trial.datetime_start, "ended_at": trial.datetime_complete}
    return {
        "number": trial.number,
        "state": state,
        "outcome": outcome,
        "value": values[0] if values else None,
        **{name: time.timestamp() if time else None for name, time in times.items()},
    }


def _finals(trial: optuna.trial.FrozenTrial, names: list[str]) -> dict[str, float]:
    found = {
        name: float(value)
        for name, value in trial.user_attrs.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    return found | dict(zip(names, trial.values or (), strict=False))


def _axis(name: str, distribution: Any) -> dict[str, Any]:
    kind = _KINDS.get(type(distribution).__name__)
    if kind is None:
        return {"key": name, "type": "choice", "values": list(distribution.choices)}
    span = {"low": distribution.low, "high": distribution.high, "log": distribution.log}
    return {"key": name, "type": kind, **span}
