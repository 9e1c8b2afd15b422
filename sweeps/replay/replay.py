"""A whole sweep against a table, and how well it searched and chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces import codec
from sweeps.load import SEED, Loaded, load_sweep, read_sweep
from sweeps.replay.play import Clock, DriverPlayer, Step, play
from sweeps.replay.program import TableProgram
from sweeps.replay.table import Table
from sweeps.replay.truth import Truth
from sweeps.results import chosen

# Sections of a sweep file that say how it searches; where it runs does not matter here.
SECTIONS = ("name", "space", "search", "scheduler", "guards", "selection", "budget")
# Early stopping makes trials short: their number is no limit where a budget in full trials is one.
TRIALS_PER_EQUIVALENT = 20


@dataclass(frozen=True)
class Played:
    """What came of one sweep.

    Attributes:
        chosen: Number of the configuration, or None where no trial might be chosen.
        good: Whether it is truly good.
        regret: How far its true value is behind the best one; None where it is not known.
        to_target: Full trials spent until some trial reported a value as good as the target; None: never.
        spent: Full trials spent in the end.
        seconds: Virtual seconds.
        trained: Recorded seconds of all trials, one after the other.
        outcomes: How many trials ended how, test runs apart, as ``test``.
    """

    chosen: int | None
    good: bool
    regret: float | None
    to_target: float | None
    spent: float
    seconds: float
    trained: float
    outcomes: Mapping[str, int]


def sweep_on(
    table: Table, source: str | None, overrides: Mapping[str, Any], seed: int = 0
) -> Loaded:
    """A sweep as it would run on a table: repeat ``seed`` of its sampler, on a tuning seed of the table.

    Its finalists run again on the other tuning seeds.

    Args:
        table: What was recorded.
        source: A sweep's file or preset; None: the table's own space and the defaults.
        overrides: ``{dotted key of the sweep: value}``.
        seed: Added to the sampler's; the tuning seeds take turns with it.

    Raises:
        ConfigError: With all problems found, such as a space over keys that were not recorded.
    """
    header = table.header
    values = {} if source is None else read_sweep(source)
    values = {key: value for key, value in values.items() if key in SECTIONS}
    if not any(key.split(".")[0] == "space" for key in overrides):
        values.setdefault("space", codec.to_dict(header.space))
    search = {"objective": header.objective, **(values.get("search") or {})}
    values["search"] = {**search, "seed": search.get("seed", 0) + seed}
    tuning = header.tuning_seeds[seed % len(header.tuning_seeds)]
    values["base"] = {SEED: tuning}
    loaded = load_sweep(values, {**overrides}, TableProgram(table))
    others = [other for other in header.tuning_seeds if other != tuning]
    asked = loaded.config.selection.test_seeds
    count = asked if isinstance(asked, int) else len(asked)
    fresh = {"selection.test_seeds": others[:count] or 0}
    return load_sweep(values, {**overrides, **fresh}, TableProgram(table))


def in_full_trials(equivalent: float) -> dict[str, Any]:
    """Overrides that limit a sweep to so many full trials."""
    return {
        "budget.full_trials": equivalent,
        "search.trials": max(1, round(TRIALS_PER_EQUIVALENT * equivalent)),
    }


def replay(table: Table, loaded: Loaded, truth: Truth, workers: int) -> Played:
    """Plays a sweep to its end on virtual workers."""
    clock = Clock()
    player = DriverPlayer(loaded, clock, workers)
    metric = loaded.config.search.objective
    course = Course(table, metric, truth)
    course.follow(play(player, clock, workers))
    records = player.driver.records
    trial = chosen(player.driver)
    number = (
        None
        if trial is None
        else table.header.nearest(loaded.program.resolve(loaded.base, records[trial].params))
    )
    outcomes = Counter(str(r.outcome) if r.of is None else "test" for r in records.values())
    return course.played(number, clock.now, dict(outcomes))


class Course:
    """Follows the results of a replay.

    Attributes:
        spent: Full trials spent.
        trained: Their recorded seconds.
        to_target: Those spent when a value as good as the target was seen first.
    """

    def __init__(self, table: Table, metric: str, truth: Truth) -> None:
        self._length, self._metric, self._truth = table.header.iterations, metric, truth
        self.spent = self.trained = 0.0
        self.to_target: float | None = None

    def follow(self, steps: Iterable[Step], limit: float | None = None) -> None:
        """Takes the results up to their end, or until ``limit`` full trials are spent."""
        for step in steps:
            self.spent = step.spent / self._length
            self.trained += step.took
            value = step.metrics.get(self._metric)
            if self.to_target is None and value is not None and self._truth.reached(value):
                self.to_target = self.spent
            if limit is not None and self.spent >= limit:
                return

    def played(self, number: int | None, seconds: float, outcomes: Mapping[str, int]) -> Played:
        """The whole, with the configuration that was chosen."""
        truth, value = self._truth, None if number is None else self._truth.values.get(number)
        return Played(
            chosen=number,
            good=number in truth.good,
            regret=None if value is None else abs(truth.values[truth.ranked[0]] - value),
            to_target=self.to_target,
            spent=self.spent,
            seconds=seconds,
            trained=self.trained,
            outcomes=outcomes,
        )
