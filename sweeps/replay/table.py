"""Recorded learning curves of a grid of configurations: what a sweep is replayed against.

One Parquet file, one row for each configuration, seed and iteration; docs/replay.md describes the columns.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhf_core.errors import ConfigError, nearest
from search_spaces import Choice, Constant, Domain, Float, Int, Parameter, Space
from sweeps.replay.centres import known_centres, within

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FORMAT = 1
KEY = b"rlhf_sweeps_table"
FIXED = ("config", "seed", "phase", "iteration", "seconds", "outcome", "reason")
COMPLETED, DIVERGED = "completed", "diverged"


@dataclass(frozen=True)
class Run:
    """One configuration on one seed.

    Attributes:
        iterations: Numbers of the iterations, ascending.
        metrics: What each of them reported; a metric that was not measured is left out.
        seconds: What each of them took.
        outcome: ``completed`` or ``diverged``.
        reason: Why it diverged, in words.
    """

    iterations: tuple[int, ...]
    metrics: tuple[Mapping[str, float], ...]
    seconds: tuple[float, ...]
    outcome: str = COMPLETED
    reason: str = ""

    def last(self, metric: str) -> float | None:
        """Its last value of a metric; None of a run that did not complete, or never measured it."""
        if self.outcome != COMPLETED:
            return None
        return next((row[metric] for row in reversed(self.metrics) if metric in row), None)


@dataclass(frozen=True)
class Header:
    """What holds for the whole table.

    Attributes:
        base: What every trial had beside its parameters, as plain values.
        levels: ``{dotted key: its values}``, numbers ascending; the configurations are all combinations, the
            last key varying fastest.
        tuning_seeds: Seeds on which every configuration ran.
        test_seeds: Seeds on which only the best configurations ran; no sweep sees them.
        iterations: Length of a full trial, the evaluation before the first update not counted.
        objective: Metric that decides, unless a sweep names another one.
        tied: ``{dotted key: the parameter whose value it had}``, beside the parameters.
        cost: What ``seconds`` are, in words.
    """

    base: Mapping[str, Any]
    levels: Mapping[str, tuple[Any, ...]]
    tuning_seeds: tuple[int, ...]
    test_seeds: tuple[int, ...]
    iterations: int
    objective: str
    tied: Mapping[str, str] = field(default_factory=dict)
    cost: str = "seconds"

    def __post_init__(self) -> None:
        if both := set(self.tuning_seeds) & set(self.test_seeds):
            raise ConfigError(
                f"table: tuning and test seeds must differ, but both hold {sorted(both)}; record others"
            )
        if not self.levels or not self.tuning_seeds:
            raise ConfigError("table: a table has at least one parameter and one tuning seed")

    @cached_property
    def configurations(self) -> list[dict[str, Any]]:
        """The parameters of every configuration, by its number."""
        keys = list(self.levels)
        return [
            dict(zip(keys, point, strict=True))
            for point in itertools.product(*self.levels.values())
        ]

    @cached_property
    def space(self) -> Space:
        """The continuous space around the levels, with the centres that presets know for its base."""
        centres = known_centres(self.base)
        domains = {key: domain_of(levels) for key, levels in self.levels.items()}
        return Space(
            {
                key: Parameter(domain, centre=within(domain, centres.get(key)))
                for key, domain in domains.items()
            }
        )

    def nearest(self, params: Mapping[str, Any]) -> int:
        """Number of the configuration nearest to ``params``, each coordinate by itself.

        Distances are taken on the scale of ``space``, logarithmic for a log domain.

        Raises:
            ConfigError: A parameter is missing, or has a value that lies near no level.
        """
        place = 0
        for key, levels in self.levels.items():
            place = place * len(levels) + self._level(key, params.get(key))
        return place

    def snapped(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``values`` that are parameters, each moved to the nearest recorded one."""
        own = {key: levels for key, levels in self.levels.items() if key in values}
        return {key: levels[self._level(key, values[key])] for key, levels in own.items()}

    def _level(self, key: str, value: Any) -> int:
        levels, domain = self.levels[key], self.space[key].domain
        if isinstance(domain, Float | Int) and _is_number(value):
            scale = math.log if domain.log else float
            if not domain.log or value > 0:
                distances = [abs(scale(value) - scale(level)) for level in levels]
                return distances.index(min(distances))
        if value is None and None not in levels:
            raise ConfigError(f"table: {key} is not given; it is in neither the space nor the base")
        if value in levels:
            return levels.index(value)
        raise ConfigError(
            f"table: {key} = {value!r} is near none of the recorded values {list(levels)}; "
            "name one of them in the space"
        )


def domain_of(levels: tuple[Any, ...]) -> Domain:
    """The domain around ordered levels: their span, logarithmic where their ratios are the more even steps."""
    if len(levels) == 1:
        return Constant(levels[0])
    if not all(_is_number(level) for level in levels):
        return Choice(levels)
    low, high = levels[0], levels[-1]
    log = bool(low > 0 and _unevenness([math.log(v) for v in levels]) < _unevenness(levels))
    if all(isinstance(level, int) for level in levels):
        return Int(low, high, log=log)
    return Float(float(low), float(high), log=log)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _unevenness(values: Any) -> float:
    steps = np.diff(np.asarray(values, dtype=np.float64))
    return float(steps.std() / steps.mean())


@dataclass(frozen=True)
class Table:
    """A header and the runs by ``(configuration, seed)``."""

    header: Header
    runs: Mapping[tuple[int, int], Run] = field(repr=False)

    def run(self, params: Mapping[str, Any], seed: int) -> Run:
        """The run nearest to ``params``.

        Raises:
            ConfigError: The seed was not recorded for that configuration.
        """
        number = self.header.nearest(params)
        run = self.runs.get((number, seed))
        if run is None:
            known = sorted(s for n, s in self.runs if n == number)
            raise ConfigError(
                f"table: configuration {number} was not recorded with seed {seed}; it was with {known}"
            )
        return run

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics that some run reports."""
        names = (name for run in self.runs.values() for row in run.metrics for name in row)
        return tuple(dict.fromkeys(names))

    def finals(self, metric: str, seeds: tuple[int, ...]) -> dict[int, list[float | None]]:
        """The last value of a metric by configuration, for those that ran on all of ``seeds``."""
        numbers = range(len(self.header.configurations))
        return {
            n: [self.runs[n, seed].last(metric) for seed in seeds]
            for n in numbers
            if all((n, seed) in self.runs for seed in seeds)
        }

    def write(self, path: Path) -> None:
        """Writes it as Parquet: zstd, float32 metrics, dictionaries for what repeats."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        frame = self.frame()
        arrays = {str(name): pa.array(frame[name], from_pandas=True) for name in frame}
        note = json.dumps({"format": FORMAT, **asdict(self.header)})
        split = [name for name in frame if frame[name].dtype == np.float32]
        pq.write_table(
            pa.table(arrays).replace_schema_metadata({KEY: note}),
            path,
            compression="zstd",
            compression_level=19,
            use_dictionary=[str(name) for name in frame if name not in split],
            use_byte_stream_split=[str(name) for name in split],
        )

    def frame(self) -> pd.DataFrame:
        """The table in long form, one row for each configuration, seed and iteration.

        Columns: ``config`` int32, ``seed`` int64, ``phase`` (``tune`` or ``test``), ``iteration`` int32,
        ``seconds`` float32, ``outcome`` and ``reason`` of the run, ``params.<key>``, and a float32 column for
        each metric, NaN where it was not measured.
        """
        import pandas as pd

        rows = list(self._rows())
        frame = pd.DataFrame([row for row, _ in rows]).astype(
            {"config": "int32", "iteration": "int32"}
        )
        kinds = {"phase": "category", "outcome": "category", "reason": "category"}
        frame = frame.astype({**kinds, "seconds": "float32"})
        points = self.header.configurations
        for key in self.header.levels:
            frame[f"params.{key}"] = [points[n][key] for n in frame["config"]]
        values = {
            name: np.array([own.get(name, math.nan) for _, own in rows], np.float32)
            for name in self.metrics
        }
        return pd.concat([frame, pd.DataFrame(values)], axis=1)

    def _rows(self) -> Iterator[tuple[dict[str, Any], Mapping[str, float]]]:
        for (number, seed), run in sorted(self.runs.items()):
            phase = "tune" if seed in self.header.tuning_seeds else "test"
            own = {"config": number, "seed": seed, "phase": phase}
            ended = {"outcome": run.outcome, "reason": run.reason}
            for i, seconds, metrics in zip(run.iterations, run.seconds, run.metrics, strict=True):
                yield {**own, "iteration": i, "seconds": seconds, **ended}, metrics


RECORDED = Path(__file__).with_name("tables")


def recorded_names() -> tuple[str, ...]:
    """Names of the tables that come with the package."""
    return tuple(sorted(file.stem for file in RECORDED.glob("*.parquet")))


def read_table(path: Path) -> Table:
    """The table that ``Table.write`` wrote, or the one of that name that comes with the package.

    Raises:
        ConfigError: The file is none, or of a newer format.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if str(path) in recorded_names() and not path.exists():
        path = RECORDED / f"{path}.parquet"
    try:
        # As pq.read_table, but without its dataset, which imports pandas.
        with pq.ParquetFile(path) as file:
            stored = file.read()
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or "no Parquet file"
        raise ConfigError(
            f"table: {path} cannot be read: {reason}; name a recorded table, a file or one of "
            f"{', '.join(recorded_names())}{nearest(str(path), recorded_names())}"
        ) from None
    note = (stored.schema.metadata or {}).get(KEY)
    if note is None:
        raise ConfigError(
            f"table: {path} is no recorded table; docs/replay.md says how one is made"
        )
    values = json.loads(note)
    if values.pop("format") > FORMAT:
        raise ConfigError(f"table: {path} has a newer format than {FORMAT}; update this package")
    return Table(_header(values), _runs(stored))


def _header(values: Mapping[str, Any]) -> Header:
    levels = {key: tuple(found) for key, found in values["levels"].items()}
    seeds = {key: tuple(values[key]) for key in ("tuning_seeds", "test_seeds")}
    return Header(**{**values, "levels": levels, **seeds})


def _runs(stored: pa.Table) -> dict[tuple[int, int], Run]:
    # Lists, as pyarrow's way to numpy imports pandas, which takes several times as long as to play a sweep.
    columns = {
        name: stored[name].to_pylist()
        for name in stored.column_names
        if name != "phase" and not name.startswith("params.")
    }
    order = np.lexsort([columns[name] for name in ("iteration", "seed", "config")])
    names = [name for name in columns if name not in FIXED]
    values = np.array([columns[name] for name in names], np.float64).T[order]
    fixed = {name: [columns[name][i] for i in order] for name in columns.keys() - {*names}}
    keys = np.column_stack([fixed["config"], fixed["seed"]])
    starts = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
    runs = {}
    for start, end in itertools.pairwise([*starts.tolist(), len(order)]):
        measured = [
            {name: value for name, value in zip(names, row, strict=True) if value == value}
            for row in values[start:end].tolist()
        ]
        runs[fixed["config"][start], fixed["seed"][start]] = Run(
            iterations=tuple(fixed["iteration"][start:end]),
            metrics=tuple(measured),
            seconds=tuple(fixed["seconds"][start:end]),
            outcome=fixed["outcome"][start],
            reason=fixed["reason"][start],
        )
    return runs
