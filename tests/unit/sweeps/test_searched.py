"""What a search has cost, counted as it goes on, is what looking at every trial says."""

from __future__ import annotations

import random

import pytest

from sweeps.outcomes import Outcome, State
from sweeps.searched import FINAL, Searched
from sweeps.trial_record import TrialRecord


def cost(records: list[TrialRecord], horizon: int | None) -> float:
    """By definition: a running trial as a whole one, one that has no place by how far it came."""
    longest = horizon or max((record.iteration for record in records), default=0) or 1
    return sum(min(1.0, r.iteration / longest) if r.ended else 1.0 for r in records)


@pytest.mark.parametrize("horizon", [16, None])
def test_trials_that_end_pause_fail_and_go_on(horizon: int | None) -> None:
    draw = random.Random(4)
    searched, records = Searched(horizon), dict[str, TrialRecord]()
    assert searched.look(records.values()).spent == 0
    ends = 0
    for step in range(600):
        if step % 3 == 0:
            of = "t0000" if step % 15 == 12 else None
            name = f"t{len(records):04d}"
            records[name] = TrialRecord(name, len(records), {}, of=of)
        record = draw.choice(list(records.values()))
        if record.outcome not in FINAL:
            record.iteration = min(16, record.iteration + draw.randrange(4))
            record.state = draw.choice(
                [State.STARTED, State.PAUSED, State.INTERRUPTED, State.ENDED]
            )
            record.outcome = draw.choice(list(Outcome)) if record.state is State.ENDED else None
            ends += record.outcome in FINAL
        if draw.random() < 0.5:
            own = [r for r in records.values() if r.of is None]
            searched.look(records.values())
            assert searched.count == len(own)
            assert searched.running == any(not r.ended for r in own)
            assert searched.spent == pytest.approx(cost(own, horizon), abs=1e-9)
    assert ends > 50
    # What ended for good is not looked at again.
    assert len(searched._open) < len(records) - ends
