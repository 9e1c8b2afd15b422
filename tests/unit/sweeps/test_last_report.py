from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_core.metrics import IterationMetrics
from rlhf_core.store import LocalStore
from sweeps.programs.base import TrialContext
from sweeps.tuning.last_report import KEY, LastReport, newest


@pytest.fixture
def context(tmp_path: Path) -> TrialContext:
    return TrialContext("t0000", {"steps": 3}, {"x": 0.1}, LocalStore(tmp_path))


def test_what_was_reported_last_comes_back_as_it_was(context: TrialContext) -> None:
    report = LastReport(context)
    assert report.read() is None
    values = {"iteration": 2, "a/b": 0.1 + 0.2, "a/c": float("inf")}
    report.write({**values, "placement": {}, "done": True}, last=True)
    found = LastReport(context).read()
    assert found is not None
    assert (found["result"], found["last"]) == (values, True)


def test_the_report_of_another_configuration_is_not_the_trials_own(context: TrialContext) -> None:
    LastReport(context).write({"iteration": 2}, last=True)
    assert LastReport(replace(context, params={"x": 0.2})).read() is None
    context.store.put(KEY, b"{")
    assert LastReport(context).read() is None


def test_a_checkpoint_may_be_newer_than_the_report() -> None:
    known = {"result": {"iteration": 2, "a/b": 1.0}, "last": False}
    newer = {"iteration": 3, "a/b": 2.0}
    assert newest(known, None) == known["result"]
    assert newest(known, IterationMetrics(2, {"a/b": 2.0})) == known["result"]
    assert newest(known, IterationMetrics(3, {"a/b": 2.0})) == newer
    assert newest(None, IterationMetrics(3, {"a/b": 2.0})) == newer
    assert newest(None, None) == {}
