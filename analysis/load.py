"""Where a sweep is read from: run directories, and what other tools leave behind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError
from rlhf_core.paths import user_path

__all__ = ["Sweep", "load"]

_PATTERN = "*?["


def load(
    source: Any,
    *,
    metric: str | None = None,
    direction: str | None = None,
    study: str | None = None,
    cache: bool | None = None,
) -> Sweep:
    """Read a sweep, also one that is being written, was interrupted, or was made by another tool.

    Args:
        source: A run directory; a folder that ``Sweep.to_parquet`` wrote; a folder of
            ``ray.tune``; an Optuna study, the URL of its storage or its journal (``*.log``); a CSV
            export of Weights & Biases; a pattern such as ``"runs/*"``; or a list of such, which
            become one sweep.
        metric: Objective of a source that states none, or another one than it states.
        direction: ``maximize`` or ``minimize``, with ``metric``; may be left out of an objective that the
            source states.
        study: Name of the study in a storage that holds several.
        cache: Whether metrics are kept in ``metrics.parquet`` beside the ``.jsonl`` files, from
            which the next load is many times faster. By default where there is much to read and
            no trial is under way; a folder that cannot be written is left as it is.

    Returns:
        The sweep; what was missing, unfinished or torn stands in its ``warnings``.

    Raises:
        ConfigError: Nothing readable is there, or a file has a newer schema.
    """
    if isinstance(source, str | Path):
        found = _matching(str(source))
    elif isinstance(source, Iterable):
        found = list(source)
    else:
        found = [source]
    if not found:
        raise ConfigError(
            f"no run directory matches {source!r}; name one that `rlhf-sweep run` wrote"
        )
    once, again = _without_repeats(found)
    loaded = [_load_one(item, study, cache) for item in once]
    sweep = loaded[0] if len(loaded) == 1 else _combined(loaded)
    if again:
        sweep = replace(sweep, warnings=(*sweep.warnings, *again))
    return sweep if metric is None and direction is None else _aimed(sweep, metric, direction)


def _without_repeats(found: list[Any]) -> tuple[list[Any], list[str]]:
    """Every source once, and a line for each that was named again: its trials would count twice."""
    once: dict[Any, Any] = {}
    again: list[str] = []
    for item in found:
        key: Any = id(item)
        if isinstance(item, str | Path):
            key = str(item) if "://" in str(item) else user_path(item).resolve()
        if key in once:
            again.append(f"{item} was named more than once; it is read once")
        once.setdefault(key, item)
    return list(once.values()), again


def _matching(source: str) -> list[Any]:
    if "://" in source or not any(sign in source for sign in _PATTERN):
        return [source]
    path = user_path(source)
    if path.exists():
        return [path]
    source = str(path)
    start = Path(os.sep if source.startswith(os.sep) else ".")
    found = sorted(start.glob(source.lstrip(os.sep)))
    return [path for path in found if _readable(path)]


def _readable(path: Path) -> bool:
    stated = any((path / name).is_file() for name in ("sweep.json", "packed.json"))
    return stated or any(path.glob("*/result.json"))


def _combined(loaded: list[Sweep]) -> Sweep:
    from analysis.combine import combine

    return combine(loaded)


def _load_one(source: Any, study: str | None, cache: bool | None) -> Sweep:
    if not isinstance(source, str | Path):
        from analysis.foreign.optuna import from_study

        return from_study(source)
    storage = "://" in str(source)
    path = Path() if storage else user_path(source)
    if storage or path.suffix == ".log":
        from analysis.foreign.optuna import from_storage

        return from_storage(str(source if storage else path), study)
    if path.suffix == ".csv":
        from analysis.foreign.wandb import from_csv

        return from_csv(path)
    from analysis.packed import from_packed, is_packed

    if is_packed(path):
        return from_packed(path)
    if not (path / "sweep.json").exists():
        from analysis.foreign.tune import from_experiment, trial_folders

        if folders := trial_folders(path):
            return from_experiment(path, folders)
    from analysis.run_directory import from_run_directory

    return from_run_directory(path, cache)


def _aimed(sweep: Sweep, metric: str | None, direction: str | None) -> Sweep:
    """The sweep under one other objective; ``value`` becomes the last finite value of its metric."""
    from analysis.objective import named_objective
    from rlhf_core.errors import nearest

    aim = named_objective(sweep.info, metric, direction)
    wanted = aim.metric
    stated = {"metric": wanted, "direction": aim.direction}
    info = sweep.info | {"objective": stated, "objectives": {wanted: aim.direction}}
    if wanted == (sweep.info.get("objective") or {}).get("metric"):
        return replace(sweep, info=info)
    column = f"final.{wanted}"
    if column not in sweep.trials:
        known = [c.removeprefix("final.") for c in sweep.trials.columns if c.startswith("final.")]
        hint = nearest(wanted, known) or f"; there are {', '.join(known) or 'none'}"
        raise ConfigError(f"metric: no trial reports {wanted!r}{hint}")
    trials = sweep.trials.assign(value=sweep.trials[column])
    return replace(sweep, info=info, trials=trials)
