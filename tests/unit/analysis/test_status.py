from __future__ import annotations

import io

import pytest
from rich.console import Console

import analysis
from analysis.report.tables import failures


def rendered(sweep, now=None) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(analysis.render_status(sweep, now))
    return console.export_text()


def test_counts_running_best_and_failures(every_outcome):
    found = analysis.status(analysis.load(every_outcome.path))
    assert found["states"] == {"queued": 1, "started": 1, "interrupted": 1, "ended": 7}
    assert found["outcomes"]["completed"] == 2
    assert (found["asked"], found["ended"], found["finished"]) == (10, 7, False)
    (running,) = found["running"]
    assert (running["trial"], running["iteration"], running["value"]) == ("t0008", 3, 0.7)
    assert found["best"] == {"trial": "t0001", "value": 2.0}
    faults = {(f["outcome"], f["reason"]) for f in found["failures"]}
    assert ("failed", "ValueError: boom") in faults
    assert ("infeasible", "no node holds 4 GPUs") in faults
    assert len(faults) == 4


def test_equal_failures_are_one_line_most_frequent_first(builder):
    for number, reason in enumerate(["rare", "often", "often"]):
        builder.begin(f"t000{number}")
        builder.end(f"t000{number}", "failed", reason=reason)
    failures = analysis.status(analysis.load(builder.path))["failures"]
    assert [(f["reason"], f["count"]) for f in failures] == [("often", 2), ("rare", 1)]
    assert failures[0]["trials"] == ["t0001", "t0002"]


def test_time_left_is_the_rest_over_the_width(builder):
    builder.completed("t0000", 1.0)  # 23.2 s busy: placement, start, run, stop
    builder.begin("t0001")
    now = builder.time + 3.2
    builder.begin("t0002")
    found = analysis.status(analysis.load(builder.path), now=builder.time + 3.2)
    elapsed = [r["elapsed"] for r in found["running"]]
    assert elapsed == pytest.approx([now - builder.time + 3.0 + 3.2, 3.2], abs=4)
    rest = sum(23.2 - e for e in elapsed)
    assert found["asked"] == 8
    assert found["left"] == pytest.approx((rest + 5 * 23.2) / 2)


def test_nothing_ended_nothing_estimated(builder):
    builder.begin("t0000")
    sweep = analysis.load(builder.path)
    assert analysis.status(sweep)["left"] is None
    assert "time left unknown" in rendered(sweep)


def test_a_finished_sweep_has_nothing_left(builder):
    builder.write("sweep.json", builder.info | {"trials": 1})
    builder.completed("t0000", 1.0)
    found = analysis.status(analysis.load(builder.path))
    assert (found["finished"], found["left"]) == (True, 0.0)


def test_interrupted_sweep_uses_the_width_it_had(builder):
    builder.write("sweep.json", builder.info | {"trials": 4})
    builder.completed("t0000", 1.0)
    for trial in ("t0001", "t0002"):
        builder.begin(trial)
    for trial in ("t0001", "t0002"):
        builder.state(trial, "interrupted")
    found = analysis.status(analysis.load(builder.path))
    assert found["running"] == []
    assert found["left"] == pytest.approx(3 * 23.2 / 2)


def test_idle_and_elapsed_follow_the_clock_that_is_passed(builder):
    builder.completed("t0000", 1.0)
    sweep = analysis.load(builder.path)
    start = sweep.events["time"].min()
    found = analysis.status(sweep, now=builder.time + 60)
    assert found["idle"] == pytest.approx(60)
    assert found["elapsed"] == pytest.approx(builder.time - start), "nothing is under way"
    builder.begin("t0001")
    found = analysis.status(analysis.load(builder.path), now=builder.time + 60)
    assert found["elapsed"] == pytest.approx(builder.time + 60 - start)
    assert analysis.status(sweep)["idle"] == 0.0


def test_an_empty_sweep_and_one_without_objective(builder):
    sweep = analysis.load(builder.path)
    found = analysis.status(sweep)
    assert (found["ended"], found["elapsed"], found["best"]) == (0, None, None)
    assert "trials.jsonl: missing" in rendered(sweep)
    builder.write("sweep.json", {"schema_version": 1})
    assert analysis.status(analysis.load(builder.path))["metric"] is None


def test_rendered_lines_fit_and_say_what_there_is(every_outcome):
    text = rendered(analysis.load(every_outcome.path))
    assert max(map(len, text.splitlines())) <= 100
    assert "7 of 10 trials ended" in text
    assert "1 running" in text
    assert "best so far t0001: eval/heldout 2" in text
    assert "1 failed (t0005): ValueError: boom" in text


def test_proposals_that_broke_a_rule_are_told_with_their_share(builder):
    builder.completed("t0000", 1.0)
    assert analysis.status(analysis.load(builder.path))["passed_over"] == 0
    assert "proposals" not in rendered(analysis.load(builder.path))
    builder.write("sweep.json", builder.info | {"passed_over": 3})
    assert analysis.status(analysis.load(builder.path))["passed_over"] == 3
    assert "75% of 4 proposals broke a rule of the space" in rendered(analysis.load(builder.path))


def test_causes_that_differ_in_what_was_measured_add_up(builder):
    for trial, kl in (("t0000", 31.5), ("t0001", 44.3)):
        builder.begin(trial)
        told = f"kl/response is {kl} nats, above guards.max_kl = 25, for 3 reports in a row"
        builder.end(trial, "diverged", iteration=1, reason=told)
    rule = "kl/response above guards.max_kl = 25"
    (group,) = analysis.status(analysis.load(builder.path))["failures"]
    assert (group["reason"], group["count"]) == (rule, 2)
    assert failures(analysis.load(builder.path)).rows[0][1:3] == [rule, "2"]


def test_a_cause_of_its_own_keeps_what_was_measured(builder):
    builder.begin("t0000")
    told = "policy/entropy is 0.01 nats, below guards.min_entropy_share = 0.02 of the 2.17 it began with"
    builder.end("t0000", "diverged", iteration=1, reason=told)
    (group,) = analysis.status(analysis.load(builder.path))["failures"]
    assert group["reason"] == told
