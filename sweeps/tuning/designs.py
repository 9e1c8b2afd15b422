"""Designs: where trial number n lies follows from the seed and n, not from what trials reported.

A grid over the space, and a scrambled Sobol sequence. Both see a space as the distributions that ``suggest`` asks
for, so that conditions and scales are those of every other sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from search_spaces import Space
from sweeps.tuning.space import suggest

# A grid is laid out in memory, and no sweep comes to the end of a larger one.
MAX_CELLS = 10_000
# Attribute of a trial that runs another one again: that one's number.
AGAIN = "again"
# The attribute ``outcome`` of a proposal that was passed over.
REJECTED = "rejected"


class _Design(BaseSampler):
    """Every parameter is drawn on its own, parents first."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}


class SobolSampler(_Design):
    """A scrambled Sobol sequence over all parameters; an inactive one leaves its coordinate unused.

    Optuna's own begins with a random trial, takes its parameters from that one, and counts in the storage, where
    an interruption in the middle of a trial skips a point.

    Args:
        space: What is searched.
        seed: Seed of the scrambling; the index in the sequence is the trial's number.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._names, self._seed = list(space), seed
        self._drawn: tuple[int, dict[str, float]] = (-1, {})

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        # In a study a parameter's name can say its scale, after its key.
        return at(param_distribution, self._point(trial.number)[param_name.partition(" [")[0]])

    def _point(self, number: int) -> dict[str, float]:
        """Coordinates of a trial, in [0, 1)."""
        if self._drawn[0] != number:
            # No other sampler needs it, and it takes long to import.
            from scipy.stats import qmc

            engine = qmc.Sobol(len(self._names), scramble=True, rng=self._seed)
            if number:
                engine.fast_forward(number)
            unit = engine.random(1)[0]
            self._drawn = (number, dict(zip(self._names, map(float, unit), strict=True)))
        return self._drawn[1]


class GridSampler(_Design):
    """Hands out the cells of a grid in an order shuffled by the seed, so that any first part covers the space.

    Args:
        cells: The cells, as of ``cells``.
        seed: Seed of the order, and of what a cell leaves open.
    """

    def __init__(self, cells: Sequence[dict[str, Any]], seed: int) -> None:
        self._cells, self._random = cells, RandomSampler(seed=seed)
        self._order = np.random.default_rng(seed).permutation(len(cells))
        self._drawn: tuple[int, dict[str, Any]] = (-1, {})

    def left(self, trials: Sequence[FrozenTrial]) -> int:
        """Cells that none of ``trials`` has had."""
        return len(self._cells) - sum(map(is_drawn, trials))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        if not is_drawn(trial):
            return self._random.sample_independent(study, trial, param_name, param_distribution)
        return self._cell(study, trial.number)[param_name]

    def _cell(self, study: Study, number: int) -> dict[str, Any]:
        if self._drawn[0] != number:
            before = study.get_trials(deepcopy=False)[:number]
            cell = self._cells[self._order[sum(map(is_drawn, before))]]
            self._drawn = (number, cell)
        return self._drawn[1]


def is_drawn(trial: FrozenTrial) -> bool:
    """Whether a trial is the sampler's own: a point is not, nor is one that is run again."""
    return "fixed_params" not in trial.system_attrs and AGAIN not in trial.user_attrs


def cells(space: Space, count: int) -> list[dict[str, Any]]:
    """All cells of the grid, at most ``MAX_CELLS + 1``; inactive parameters are absent.

    Args:
        space: What is searched.
        count: Values of a parameter that has more, or a continuous range.
    """
    found = []
    for cell in _walk(space, count):
        found.append(cell)
        if len(found) > MAX_CELLS:
            break
    return found


def _walk(space: Space, count: int) -> Iterator[dict[str, Any]]:
    digits: list[int] = []
    while True:
        cell = _Cell(digits, count)
        suggest(cell, space)  # type: ignore[arg-type]
        yield cell.values
        # The next cell, as an odometer counts; which digits there are can change with those before.
        digits = cell.digits
        while digits and digits[-1] + 1 == cell.sizes[len(digits) - 1]:
            digits.pop()
        if not digits:
            return
        digits[-1] += 1


class _Cell:
    """Stands in for a trial: answers with the values that ``digits`` name, and after them with the first ones."""

    def __init__(self, digits: Sequence[int], count: int) -> None:
        self.digits, self.sizes, self.values = list(digits), list[int](), dict[str, Any]()
        self._count = count

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> Any:
        return self._take(name, FloatDistribution(low, high, log=log, step=step))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> Any:
        return self._take(name, IntDistribution(low, high, log=log, step=step))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._take(name, CategoricalDistribution(choices))

    def _take(self, name: str, distribution: BaseDistribution) -> Any:
        values = levels(distribution, self._count)
        position = len(self.sizes)
        if position == len(self.digits):
            self.digits.append(0)
        self.sizes.append(len(values))
        self.values[name] = values[self.digits[position]]
        return self.values[name]


def levels(distribution: BaseDistribution, count: int) -> list[Any]:
    """Values of a distribution in a grid: all of them, or ``count`` from end to end, evenly in its scale."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    kind = int if isinstance(distribution, IntDistribution) else float
    if step is not None:
        steps = round((high - low) / step)
        if steps < count:
            return [kind(min(low + i * step, high)) for i in range(steps + 1)]
        if not distribution.log:
            chosen = np.unique(np.linspace(0, steps, count).round().astype(int))
            return [kind(min(low + int(i) * step, high)) for i in chosen]
    spaced = np.geomspace(low, high, count) if distribution.log else np.linspace(low, high, count)
    if kind is int:
        return [int(value) for value in np.unique(spaced.round().astype(int))]
    # The ends as they were written: geometric spacing misses them by a rounding.
    return [low, *(float(value) for value in spaced[1:-1]), high]


def at(distribution: BaseDistribution, unit: float) -> Any:
    """The value of a distribution at ``unit`` in [0, 1); equal parts of [0, 1) have equal parts of its scale."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(unit * len(distribution.choices))]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    if distribution.log:
        # An integer has the part of the scale from half below to half above it.
        half = 0.5 if isinstance(distribution, IntDistribution) else 0.0
        first, last = np.log(low - half), np.log(high + half)
        value = float(np.exp(first + unit * (last - first)))
        return min(max(round(value) if half else value, low), high)
    if step is None:
        return min(low + unit * (high - low), high)
    value = low + int(unit * (round((high - low) / step) + 1)) * step
    return min(value, high)


def place(distribution: FloatDistribution | IntDistribution, value: float) -> float:
    """Where in [0, 1] a value lies, in the distribution's scale: the inverse of ``at``, the middle of a step."""
    low, high, step = distribution.low, distribution.high, distribution.step
    if distribution.log:
        half = 0.5 if isinstance(distribution, IntDistribution) else 0.0
        first, last = np.log(low - half), np.log(high + half)
        return float((np.log(value) - first) / (last - first))
    if step is None:
        return (value - low) / (high - low)
    return (round((value - low) / step) + 0.5) / (round((high - low) / step) + 1)
