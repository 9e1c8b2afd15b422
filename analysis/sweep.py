"""What is known of a sweep: four frames that share the trial's id, and what its directory states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.names import no_such
from analysis.objective import Constraint, Objective, read_constraints, read_objectives
from analysis.space import Axis, axes
from rlhf_core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

FRAMES = ("trials", "iterations", "placements", "events")
UNDER_WAY = ("queued", "waiting", "placed", "started", "retried")


@dataclass(frozen=True)
class Sweep:
    """A sweep, or several, as dataframes.

    Attributes:
        path: The run directory, or what the sweep was read from.
        info: Content of ``sweep.json``; of several sweeps what they share, and ``sweeps`` by name.
        space: Content of ``space.json``; empty where it is missing.
        trials: One row per trial, also for those that never reported. Index ``trial`` (str; of
            several sweeps ``name/trial``). Columns: ``sweep`` category, ``number`` Int64, ``state``
            and ``outcome`` category (no outcome before the end), ``reason`` str, ``purpose`` category
            (``search``, or ``test`` of a finalist on a fresh seed), ``of`` str (the finalist that a
            test run repeats), ``parent_id`` str,
            ``fork_iteration`` Int64, ``iteration`` Int64 (the last one), ``value`` float64 (the
            objective; of a trial that has not ended the last one measured), ``started`` float64
            (seconds since the epoch), ``params.<dotted key>`` (Int64, float64, boolean or
            category), ``duration.<phase>`` float64 seconds, and ``final.<metric>`` float64, the
            last finite value, in the unit of the catalogue.
        iterations: One row per trial and iteration, the rows of a trial together and in order:
            ``trial`` category, ``iteration`` int64, ``timestamp`` float64 (seconds since the
            epoch), then a float64 column per metric, NaN where it was not measured.
        placements: One row per worker: ``trial`` and ``node`` category, ``worker`` and ``roles``
            (comma separated) str, ``bundle`` Int64, ``cpus``, ``gpus``, ``memory_gb`` float64.
            Resources are those of the bundle and repeat for each of its workers: drop duplicates of
            (trial, bundle) before summing. A bundle without a worker has a row without ``worker``.
        events: One row per ledger line: ``time`` float64 (seconds since the epoch), ``trial``,
            ``state`` and ``outcome`` category, ``number``, ``fork_iteration`` and ``iteration``
            Int64, ``value`` float64, ``purpose`` category, ``reason``, ``of`` and ``parent_id`` str,
            ``duration.<phase>`` float64
            seconds, and unknown keys as they are.
        warnings: What was missing, unfinished or could not be read, one line each.
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
        """Metric and direction; of several objectives the first, which ranks. ConfigError where
        ``sweep.json`` states none.
        """
        return Objective.read(self.info.get("objective"))

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """All of them, the one that ranks first; ConfigError as ``objective``."""
        return read_objectives(self.info)

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
        columns = map(str, self.searched.trials.columns)
        recorded = [c.removeprefix("params.") for c in columns if c.startswith("params.")]
        return known | {key: Axis(key) for key in recorded if key not in known}

    @property
    def asked(self) -> int:
        """How many trials of the search the sweep wants; at least as many as there are."""
        wanted = self.info.get("trials")
        searched = int((self.trials["purpose"] == "search").sum())
        return max(wanted if isinstance(wanted, int) else 0, searched)

    @cached_property
    def searched(self) -> Sweep:
        """The sweep without its test runs: what the search tried."""
        return self._only("search")

    @cached_property
    def tests(self) -> Sweep:
        """The test runs of the finalists alone."""
        return self._only("test")

    @cached_property
    def smoothed(self) -> pd.Series[float] | None:
        """The objective of each trial of the search smoothed over the parameters (``analysis.smoothed``); None
        where the sweep ranks by measured values.
        """
        from analysis.smoothed import smoothed_values

        return smoothed_values(self)

    def ranked_by(self, metric: str) -> Sweep:
        """The same trials, ranked by another one of the sweep's objectives.

        ``value`` is then the last value of that metric, and every table, statistic and plot is about it.

        Raises:
            ConfigError: The sweep has no such objective; near misses are named.
        """
        goals = {goal.metric: goal.direction for goal in self.objectives}
        if metric not in goals:
            raise ConfigError(no_such("objective", metric, goals))
        if metric == self.metric:
            return self
        ranking = {"objective": {"metric": metric, "direction": goals[metric]}, "objectives": goals}
        value = self.trials.get(f"final.{metric}", float("nan"))
        return replace(self, info=self.info | ranking, trials=self.trials.assign(value=value))

    def _only(self, purpose: str) -> Sweep:
        chosen = self.trials["purpose"] == purpose
        if chosen.all():
            return self
        trials = self.trials[chosen]
        known = axes(self.space)
        # The seed of a test run is no parameter of the search.
        foreign = [
            column
            for column in map(str, trials.columns)
            if column.startswith("params.")
            and column.removeprefix("params.") not in known
            and trials[column].isna().all()
        ]
        trials = trials.drop(columns=foreign)
        kept: dict[str, Any] = {"trials": trials}
        for name in FRAMES[1:]:
            frame = getattr(self, name)
            kept[name] = frame[frame["trial"].isin(trials.index)].reset_index(drop=True)
        return replace(self, **kept)

    def __repr__(self) -> str:
        """Name, trials by outcome and the best: frames and the record of ``info`` would fill pages."""
        counts = self.trials["outcome"].astype("object").fillna("not ended").value_counts()
        parts = [f"{count} {outcome}" for outcome, count in counts.items()]
        return f"Sweep({self.name!r}: {', '.join(parts) or 'no trials'}{self._lead()})"

    def _lead(self) -> str:
        from analysis.leaderboard import best

        try:
            trial = best(self)
            value = float(self.trials["value"].loc[trial])
            return f"; best {trial}, {self.metric} {value:.4g}"
        except ConfigError:
            return ""

    def to_parquet(self, folder: str | Path) -> list[Path]:
        """Write each frame as ``folder/<frame>.parquet``, and what else ``analysis.load(folder)`` needs."""
        from analysis.files import replacing
        from analysis.packed import write_document

        written = []
        for name, frame in self._frames(folder).items():
            with replacing(Path(folder) / f"{name}.parquet") as draft:
                _plain_categories(frame).to_parquet(draft, compression="zstd")
            written.append(Path(folder) / f"{name}.parquet")
        return [*written, write_document(self, Path(folder))]

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Write each frame as ``folder/<frame>.csv``, with the trial's id as the first column."""
        from analysis.files import replacing

        written = []
        for name, frame in self._frames(folder).items():
            with replacing(Path(folder) / f"{name}.csv") as draft:
                frame.to_csv(draft, index=name == "trials")
            written.append(Path(folder) / f"{name}.csv")
        return written

    def _frames(self, folder: str | Path) -> Mapping[str, pd.DataFrame]:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return {name: getattr(self, name) for name in FRAMES}


def _plain_categories(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories of one type, which is all that Parquet knows; objects as text."""
    import pandas as pd

    changed: dict[str, Any] = {}
    for name, column in frame.items():
        if isinstance(column.dtype, pd.CategoricalDtype) and column.cat.categories.dtype == object:
            changed[str(name)] = column.cat.rename_categories(
                [str(c) for c in column.cat.categories]
            )
        elif column.dtype == object:
            changed[str(name)] = column.astype("str")
    return frame.assign(**changed)
