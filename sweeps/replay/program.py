"""A recorded table as a ``TrialProgram``: a trial reports what the nearest configuration reported."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rlhf_core.config.overrides import flat
from rlhf_core.errors import ConfigError
from rlhf_core.metrics import IterationMetrics
from rlhf_core.runtime.placement import Bundle, PlacementPlan
from sweeps.load import SEED
from sweeps.programs.base import TrialContext, TrialProgram
from sweeps.replay.table import DIVERGED, Run, Table

PLAN = PlacementPlan("fused", "PACK", (Bundle("recorded", 1.0, 0.0, 0.0),), ())


class TableProgram(TrialProgram):
    """Trials of a table.

    Args:
        table: What was recorded.
    """

    waits = True

    def __init__(self, table: Table) -> None:
        self.table = table

    def keys(self) -> tuple[str, ...]:
        return (*self.table.header.levels, SEED)

    def check(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> list[str]:
        # What the space gives a trial is not there before one is asked for.
        if not params:
            return []
        try:
            self.table.header.nearest(self.resolve(base, params))
        except ConfigError as error:
            return list(error.problems)
        return []

    def resolve(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        return {**flat(base), **params}

    def absolute(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values moved to the nearest that were recorded."""
        return {**values, **self.table.header.snapped(values)}

    def placement(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> PlacementPlan:
        return PLAN

    def metrics(self, base: Mapping[str, Any], space: Collection[str]) -> tuple[str, ...]:
        return self.table.metrics

    def iterations(self, base: Mapping[str, Any]) -> int:
        return self.table.header.iterations

    def start(self, context: TrialContext) -> RecordedTrial:
        values = self.resolve(context.base, context.params)
        return RecordedTrial(self.table.run(values, values[SEED]))


class RecordedTrial:
    """A run that is read out iteration by iteration; read anew, it goes on where it was left.

    Attributes:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._at = 0

    def __iter__(self) -> Iterator[IterationMetrics]:
        while not self.is_last:
            iteration, metrics = self.run.iterations[self._at], self.run.metrics[self._at]
            self._at += 1
            yield IterationMetrics(iteration, metrics)

    @property
    def is_last(self) -> bool:
        return self._at >= len(self.run.iterations)

    @property
    def seconds(self) -> float:
        """What the iteration that comes next takes."""
        return self.run.seconds[min(self._at, len(self.run.seconds) - 1)]

    @property
    def diverged(self) -> str | None:
        """Why it diverged with the iteration yielded last, or None."""
        ends = self.is_last and self.run.outcome == DIVERGED
        return (self.run.reason or "diverged when it was recorded") if ends else None

    def placement(self) -> dict[str, Any]:
        return {"layout": "fused", "bundles": [], "workers": []}

    def close(self) -> None:
        return None
