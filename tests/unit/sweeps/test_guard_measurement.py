"""The measurement of guards, on curves whose answer is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sweeps.decide.guards import Guards, Limits

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "guards", raising=False)
    import guards

    return guards


def table() -> pd.DataFrame:
    """Eight healthy trials with a growing KL, and four whose KL blows up from iteration 4 on."""
    rows = []
    for config in range(12):
        bad = config % 3 == 0
        for at in range(11):
            blown = bad and at >= 4
            row = {"config": config, "seed": 1, "iteration": at, "outcome": "completed"}
            if at:
                row["kl/response"] = 100.0 + at if blown else 5.0 + at
            if at % 5 == 0:
                row |= {"eval/heldout": -2.0 if blown else 0.1 * at, "eval/heldout_stderr": 0.1}
            rows.append(row)
    return pd.DataFrame(rows)


def test_labels_and_scores_by_hand(measured: Any) -> None:
    found = list(measured.curves(table()))
    assert [curve.bad for curve in found] == [config % 3 == 0 for config in range(12)]
    assert found[0].reports[0] == (0, {"eval/heldout": 0.0, "eval/heldout_stderr": 0.1})
    ends = measured.stops(found, Guards(Limits(max_kl=50, patience=2)))
    assert ends[:3].tolist() == [5, measured.NEVER, measured.NEVER]
    score = measured.score(found, ends)
    assert (score.bad, score.caught, score.healthy, score.stopped) == (4, 4, 8, 0)
    # Of 10 steps of a bad trial 5 are saved, and of 120 steps of all 20.
    assert (score.saved, score.saved_of_all) == (0.5, pytest.approx(20 / 120))


def test_the_last_report_stops_nobody_and_infinity_does(measured: Any) -> None:
    frame = table()
    frame.loc[(frame["config"] == 1) & (frame["iteration"] == 10), "kl/response"] = 999.0
    frame["value/loss"] = 1.0
    frame.loc[(frame["config"] == 2) & (frame["iteration"] == 3), "value/loss"] = np.inf
    found = list(measured.curves(frame))
    ends = measured.stops(found, Guards(Limits(max_kl=50, patience=1)))
    assert ends[1:3].tolist() == [measured.NEVER, 3]


def test_the_chosen_limits_separate_what_can_be_separated(measured: Any) -> None:
    found = list(measured.curves(table()))
    limits = measured.choose(found, measured.tried(found))
    # One limit alone sees the blow-up, at once by evaluations and after two reports by the KL.
    used = [name for name in measured.OPTIONS if getattr(limits, name) is not None]
    assert used in (["max_kl"], ["max_eval_fall"])
    score = measured.score(found, measured.stops(found, Guards(limits, horizon=10)))
    assert (score.recall, score.false_stops, score.saved) == (1.0, 0.0, 0.5)


def test_thresholds_are_measured_on_the_half_they_were_not_set_on(measured: Any) -> None:
    found = list(measured.curves(table()))
    cut = measured.split(found, measured.tried(found), seed=3)
    half = np.random.default_rng(3).permutation(12)[:6]
    assert cut["bad"] == sum(config % 3 == 0 for config in range(12) if config not in half)
    assert cut["bad"] + cut["healthy"] == 6
    assert (cut["recall"], cut["false_stops"]) == (1.0, 0.0)


def test_intervals(measured: Any) -> None:
    assert measured.wilson(0, 0) == [0.0, 1.0]
    assert measured.wilson(5, 10) == [0.2366, 0.7634]
    low, high = measured.wilson(150, 150)
    assert (round(low, 3), high) == (0.975, 1.0)
    found = list(measured.curves(table()))
    ends = measured.stops(found, Guards(Limits(max_kl=50, patience=2)))
    assert measured.resampled(found, ends, 0, 200) == [0.5, 0.5]
