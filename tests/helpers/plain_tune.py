"""Tune's own searcher and scheduler as a player of replays, called as Tune's controller calls them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from sweeps.programs.base import TrialContext
from sweeps.replay.memory import MemoryStore
from sweeps.replay.program import RecordedTrial, TableProgram
from sweeps.replay.table import Table
from sweeps.tuning.space import to_distribution


class TunePlayer:
    """``OptunaSearch`` with ``ASHAScheduler``, both with their defaults.

    A trial reports its latest objective with every iteration, which ``OptunaSearch`` needs.

    Args:
        table: What is replayed.
        metric: The objective, to be maximised.
        seed: Of the searcher.
        tuning_seed: Of the trials.
    """

    def __init__(self, table: Table, metric: str, seed: int, tuning_seed: int) -> None:
        self.table, self.metric, self._seed = table, metric, tuning_seed
        self._program = TableProgram(table)
        space = {key: to_distribution(p.domain) for key, p in table.header.space.items()}
        self.search = OptunaSearch(space, metric=metric, mode="max", seed=seed)
        self.scheduler = ASHAScheduler(
            time_attr="training_iteration", metric=metric, mode="max", max_t=table.header.iterations
        )
        self._trials: list[Any] = []

    def next(self) -> tuple[str, RecordedTrial]:
        name = f"t{len(self._trials):04d}"
        found = self.search.suggest(name)
        assert found is not None
        # It nests keys by their slashes, of which ours have none.
        params = self._program.absolute(found)
        trial = SimpleNamespace(trial_id=name, params=params, last={}, failed=False)
        self._trials.append(trial)
        self.scheduler.on_trial_add(None, trial)
        context = TrialContext(name, {"seed": self._seed}, params, MemoryStore())
        return name, self._program.start(context)

    def _trial(self, name: str) -> Any:
        return self._trials[int(name.removeprefix("t"))]

    def heard(self, name: str, result: Mapping[str, Any]) -> bool:
        trial = self._trial(name)
        if result.get("outcome") == "diverged":
            trial.failed = True
            return False
        value = result.get(self.metric, trial.last.get(self.metric, math.nan))
        told = {"training_iteration": result["iteration"], self.metric: value}
        trial.last = told
        # The evaluation before the first update is no training iteration.
        if result["iteration"] == 0:
            return True
        if result.get("done") or self.scheduler.on_trial_result(None, trial, told) == "STOP":
            return False
        self.search.on_trial_result(name, told)
        return True

    def ended(self, name: str) -> None:
        trial = self._trial(name)
        if trial.failed:
            self.search.on_trial_complete(name, error=True)
            return
        self.scheduler.on_trial_complete(None, trial, trial.last)
        self.search.on_trial_complete(name, result=trial.last)

    def best(self) -> dict[str, Any]:
        """The parameters that ``ResultGrid.get_best_result`` returns: of the best last result of all trials."""
        known = [t for t in self._trials if math.isfinite(t.last.get(self.metric, math.nan))]
        return dict(max(known, key=lambda t: t.last[self.metric]).params)
