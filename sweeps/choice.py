"""When the search of a sweep is over, and which trials run again: ``decide.selection`` on the driver's trials."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from analysis.smoothed import CUT_OFF, is_smooth
from analysis.space import axes
from search_spaces import codec
from sweeps.config import Constraint
from sweeps.decide.selection import Candidate, Rule, finalists, fresh_seeds, planned_runs
from sweeps.load import SEED, Loaded
from sweeps.outcomes import Outcome, State
from sweeps.searched import Searched

if TYPE_CHECKING:
    from analysis.statistics.smoothing import Run
    from sweeps.trial_record import TrialRecord

SMOOTHED = (Outcome.COMPLETED, *map(Outcome, CUT_OFF))


class Choice:
    """Of a sweep; all it says follows from its records, to which trials are only ever added.

    Attributes:
        loaded: The sweep; users may give it more trials while it runs. A program whose trials have no ``seed``
            runs nothing again.
        ran_out: Whether the searcher has nothing left to propose.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.loaded, selection = loaded, loaded.config.selection
        self.ran_out = False
        asked = selection.test_seeds
        count = asked if isinstance(asked, int) else len(asked)
        keys = loaded.program.keys()
        count = count if SEED in keys else 0
        self.rule = Rule(selection.top, count, selection.share)
        self._searched = Searched(loaded.program.iterations(loaded.base))
        self._smooth = is_smooth(loaded.config.model_dump(include={"selection", "scheduler"}))
        self._axes = axes(codec.to_dict(loaded.space))
        self._last: tuple[dict[str, Run], dict[str, float]] = ({}, {})
        self._planned: tuple[Loaded, int, list[tuple[str, int]]] | None = None
        self._constraints = [Constraint.parse(text) for text in loaded.config.search.constraints]

    @property
    def most_runs(self) -> int:
        """How many test runs there can be."""
        finalists, seeds = self.rule.runs(self.loaded.config.search.trials)
        return finalists * seeds

    def may_search(self, records: Collection[TrialRecord], elapsed: float) -> bool:
        """Whether the budget lets another trial of the search start now."""
        budget, spent = self.loaded.config.budget, self._searched.look(records).spent
        if budget.minutes is not None:
            kept = self.rule.share / (1 + self.rule.share) if any(self.rule.runs(spent)) else 0.0
            if elapsed > 60 * budget.minutes * (1 - kept):
                return False
        if budget.full_trials is None:
            return True
        return spent + 1 <= self.rule.search_part(budget.full_trials) + 1e-9

    def over(self, records: Collection[TrialRecord], elapsed: float) -> bool:
        """Whether no trial of the search will start any more."""
        if self.ran_out:
            return True
        limits = (self.loaded.config.budget.minutes, self.loaded.config.budget.full_trials)
        if limits == (None, None) and len(records) < self.loaded.config.search.trials:
            return False
        searched = self._searched.look(records)
        if searched.count >= self.loaded.config.search.trials:
            return True
        # A running trial that is stopped early may leave enough for another one.
        timed = self.loaded.config.budget.full_trials is None
        return not self.may_search(records, elapsed) and (timed or not searched.running)

    def done(self, records: Collection[TrialRecord], elapsed: float, waiting: bool = False) -> bool:
        """Whether no trial at all will start any more; ``waiting``: the scheduler lets trials wait."""
        if not self.over(records, elapsed):
            return False
        # While the search still runs it is not known who will be a finalist.
        searching = waiting or self._searched.look(records).running
        waits = searching and self.most_runs > 0
        return not waits and self.next_run(records, elapsed) is None

    def next_run(
        self, records: Collection[TrialRecord], elapsed: float
    ) -> tuple[TrialRecord, int] | None:
        """The next finalist to run again and its seed, once the whole search has ended; None: nothing."""
        minutes = self.loaded.config.budget.minutes
        late = minutes is not None and elapsed > 60 * minutes
        if late or not self.most_runs or not self.over(records, elapsed):
            return None
        if self._searched.look(records).running:
            return None
        begun = {(record.of, record.params.get(SEED)) for record in records if record.of}
        by_id = {record.trial: record for record in records}
        left = [run for run in self.planned(records) if run not in begun]
        return (by_id[left[0][0]], left[0][1]) if left else None

    def note(self, records: Collection[TrialRecord]) -> str | None:
        """Why test runs that were asked for by name were not made, where the search was too small for them."""
        selection = self.loaded.config.selection
        # A recorded configuration names every option.
        asked = any(
            getattr(selection, name) != type(selection).model_fields[name].default
            for name in ("top", "test_seeds", "share")
        )
        spent = self._searched.look(records).spent
        if not asked or not self.rule.seeds or not self.rule.top or any(self.rule.runs(spent)):
            return None
        return (
            f"no trial ran again on test seeds: the search cost {spent:.3g} full trials; selection.share = "
            f"{self.rule.share:g} of it pays for {int(self.rule.share * spent)} runs; raise it, or search.trials"
        )

    def waiting(self, records: Collection[TrialRecord]) -> float:
        """Trials that have not begun: of the search at most, and test runs once it has ended."""
        config, searched = self.loaded.config, self._searched.look(records)
        rest: float = config.search.trials - searched.count
        if config.budget.full_trials is not None:
            part = self.rule.search_part(config.budget.full_trials)
            rest = max(0.0, min(rest, part - searched.spent))
        # Less than a whole trial of the budget starts none.
        return rest if rest >= 1 else float(self._left(records))

    def _left(self, records: Collection[TrialRecord]) -> int:
        if not self.most_runs or self._searched.look(records).running:
            return 0
        return len(self.planned(records)) - sum(record.of is not None for record in records)

    def planned(self, records: Collection[TrialRecord]) -> list[tuple[str, int]]:
        """``(finalist, seed)`` of all test runs of a search that has ended."""
        searched, known = self._searched.look(records), self._planned
        if not searched.settled:
            return self._plan(records)
        # Asked for with each result of a test run, while no trial of the search changes any more.
        if known is None or known[0] is not self.loaded or known[1] != searched.count:
            known = self._planned = (self.loaded, searched.count, self._plan(records))
        return known[2]

    def _plan(self, records: Collection[TrialRecord]) -> list[tuple[str, int]]:
        searched = [record for record in records if record.of is None]
        spent, total = self._searched.look(records).spent, self.loaded.config.budget.full_trials
        if total is not None:
            spent = min(len(searched), total / (1 + self.rule.share))
        top, count = self.rule.runs(spent)
        asked = self.loaded.config.selection.test_seeds
        wanted = count if isinstance(asked, int) else asked[:count]
        seeds = fresh_seeds(wanted, self._tuning_seeds(searched))
        return planned_runs(finalists(self.ranked(searched), top), seeds)

    def ranked(self, searched: Collection[TrialRecord]) -> list[Candidate]:
        """The trials of the search that may be chosen, the best first.

        Their values are smoothed over the parameters where the sweep says so and there is enough to go by; of
        equal ones the better measured one is first.
        """
        own = [self.candidate(record) for record in searched]
        measured = sorted((c for c in own if c.eligible), key=lambda c: -c.value)
        better = self._smoothed(searched) if self._smooth else {}
        found = [c._replace(value=better.get(c.trial, c.value)) for c in measured]
        return sorted(found, key=lambda c: -c.value)

    def _smoothed(self, searched: Collection[TrialRecord]) -> Mapping[str, float]:
        """By trial that completed, signed so that larger is better; computed once for the same trials."""
        # A driver need not load scipy before its search has ended.
        from analysis.statistics.smoothing import Run, smoothed

        over = [r for r in searched if r.state is State.ENDED and r.outcome in SMOOTHED]
        runs = {
            record.trial: Run(record.params, value, record.outcome is Outcome.COMPLETED)
            for record in over
            if math.isfinite(value := self.candidate(record).value)
        }
        if runs != self._last[0]:
            values = smoothed([*runs.values()], self._axes)
            whole = [] if values is None else zip(runs.items(), values.tolist(), strict=True)
            self._last = runs, {trial: value for (trial, run), value in whole if run.whole}
        return self._last[1]

    def _tuning_seeds(self, searched: Collection[TrialRecord]) -> set[int]:
        base = self.loaded.program.resolve(self.loaded.base, {}).get(SEED)
        return {record.params.get(SEED, base) for record in searched}

    def candidate(self, record: TrialRecord) -> Candidate:
        """What decides over a trial that ended."""
        value = math.nan if record.value is None else record.value
        broken = any(
            not rule.violation(record.finals.get(rule.metric, math.nan)) <= 0
            for rule in self._constraints
        )
        eligible = record.outcome is Outcome.COMPLETED and math.isfinite(value) and not broken
        sign = 1.0 if self.loaded.config.search.direction == "maximize" else -1.0
        params = tuple((key, value) for key, value in record.params.items() if key != SEED)
        return Candidate(record.trial, sign * value, eligible, params)
