"""What is exported: the configuration of a run directory's best trial, of another trial, or of a file."""

from __future__ import annotations

from pathlib import Path

from analysis import shapes
from analysis.files import read_object
from analysis.packed import from_packed, is_packed
from rlhf_core.config import TrialConfig, apply, load_trial, resolve_trial
from rlhf_core.errors import ConfigError, nearest


def trial_config(place: Path, trial: str | None) -> tuple[TrialConfig, str]:
    """The configuration and what it came from, in words.

    Args:
        place: A run directory, a sweep packed as Parquet, or a ``TrialConfig`` file.
        trial: A trial of the run directory instead of its best one.

    Raises:
        ConfigError: There is no such file or trial, or it is no ``TrialConfig``.
    """
    if not place.is_dir():
        if trial is not None:
            raise ConfigError(f"--trial: names a trial of a run directory, but {place} is none")
        return load_trial(place), str(place)
    if is_packed(place):
        return _unpacked(place, trial)
    trials = sorted(folder.parent.name for folder in place.glob("trials/*/config.json"))
    file = place / "best.yaml" if trial is None else place / f"trials/{trial}/config.json"
    # A trial is one of those, never a way out of the folder.
    if (trial is None or trial in trials) and file.is_file():
        return load_trial(file), f"{file}{_choice(place) if trial is None else ''}"
    if trial is not None:
        raise ConfigError(f"--trial: {place} has no trial {trial!r}{nearest(trial, trials)}")
    if trials:
        raise ConfigError(
            f"{place}: has no best.yaml, which a sweep writes at its end; name a trial, such as "
            f"--trial {trials[0]}"
        )
    raise ConfigError(
        f"{place}: has no best.yaml and no trials; point at what `rlhf-sweep run` wrote"
    )


def _unpacked(place: Path, trial: str | None) -> tuple[TrialConfig, str]:
    """A trial of a sweep that was packed as Parquet: its base with the trial's parameters in place."""
    from analysis.leaderboard import best
    from analysis.params import parameters_of

    sweep = from_packed(place)
    if trial is not None and trial not in sweep.trials.index:
        hint = nearest(trial, map(str, sweep.trials.index))
        raise ConfigError(f"--trial: {place} has no trial {trial!r}{hint}")
    chosen = best(sweep) if trial is None else trial
    base = (sweep.info.get("config") or {}).get("base")
    if base is None:
        raise ConfigError(f"{place}: records no base configuration, of which {chosen} is a variant")
    config = apply(resolve_trial(base, "base"), parameters_of(sweep, chosen), chosen)
    if trial is not None:
        return config, f"{chosen} of {place}"
    return config, f"{place} ({chosen}, the best by {_among(sweep.metric, len(sweep.objectives))})"


def _among(metric: str, objectives: int) -> str:
    return f"{metric}, the first of {objectives} objectives" if objectives > 1 else metric


def _choice(place: Path) -> str:
    """Which trial the best one is, and of several objectives by which of them."""
    chosen = read_object(place / "best.json", "best.json", [], shapes.CHOSEN) or {}
    trial, objective, goals = (chosen.get(key) for key in ("trial", "objective", "objectives"))
    if not trial or not objective:
        return ""
    return f" ({trial}, the best by {_among(objective, len(goals or ()))})"
