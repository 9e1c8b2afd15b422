from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

import analysis
from analysis.finalists import fresh_runs, runner_up, verdict
from analysis.report.tables import checklist
from analysis.selection import FreshRuns, compare, interval, rank
from analysis.statistics import importance, replicates
from rlhf_core.errors import ConfigError
from sweeps.cli import main


def rendered(thing) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(thing)
    return console.export_text()


def add_run(builder, trial, of, value, seed=1_000_000, outcome="completed", kl=5.0):
    """A test run as the driver records it."""
    about = {"number": None, "purpose": "test", "of": of}
    for state in ("queued", "placed", "started"):
        builder.state(trial, state, **about)
    builder.write(f"trials/{trial}/params.json", {"sync.interval": 2, "seed": seed})
    builder.report(trial, 2, eval__heldout=value, eval__kl_response=kl, cost__gpu_seconds=7.0)
    builder.end(trial, outcome, value, iteration=2, **about)


@pytest.fixture
def chosen(builder):
    """Three trials of the search; the two best ran again on two seeds, where the second is the better one."""
    for trial, value in (("t0000", 1.0), ("t0001", 3.0), ("t0002", 2.0)):
        builder.completed(trial, value, params={"sync.interval": int(trial[-1]) + 1})
    for trial, of, value, seed in (
        ("t0003", "t0001", 1.0, 7), ("t0004", "t0002", 1.9, 7),
        ("t0005", "t0001", 1.2, 8), ("t0006", "t0002", 2.1, 8),
    ):  # fmt: skip
        add_run(builder, trial, of, value, seed)
    return builder


def test_trials_tell_what_they_are_for(chosen):
    trials = analysis.load(chosen.path).trials
    assert trials["purpose"].tolist() == ["search"] * 3 + ["test"] * 4
    assert trials["of"].dropna().tolist() == ["t0001", "t0002", "t0001", "t0002"]
    assert trials["number"].isna().tolist() == [False] * 3 + [True] * 4


def test_finalists_rank_by_their_test_runs_alone(chosen):
    sweep = analysis.load(chosen.path)
    table = analysis.finalists(sweep)
    assert table["trial"].tolist() == ["t0002", "t0001"]
    assert table["test"].tolist() == pytest.approx([2.0, 1.1])
    assert (table["low"] < table["test"]).all()
    assert table["seeds"].tolist() == [2, 2]
    assert analysis.best(sweep) == "t0002"
    board = analysis.leaderboard(sweep)
    assert board["trial"].tolist() == ["t0002", "t0001", "t0000"]
    assert board["rank"].tolist() == [1, 2, 3]
    assert board["test"].tolist()[:2] == pytest.approx([2.0, 1.1])
    assert board["test"].isna().tolist() == [False, False, True]
    assert "2 (2)" in rendered(analysis.render_leaderboard(sweep))


def test_a_finalist_whose_runs_fail_is_behind_one_whose_do_not(builder):
    for trial, value in (("t0000", 1.0), ("t0001", 3.0), ("t0002", 2.0)):
        builder.completed(trial, value)
    add_run(builder, "t0003", "t0001", 9.0)
    add_run(builder, "t0004", "t0002", 1.0)
    add_run(builder, "t0005", "t0001", None, outcome="diverged")
    # Completed, but it breaks the constraint on the KL.
    add_run(builder, "t0006", "t0000", 9.0, kl=99.0)
    sweep = analysis.load(builder.path)
    assert fresh_runs(sweep)["t0001"] == FreshRuns((9.0,), 1)
    assert analysis.best(sweep) == "t0002"
    board = analysis.leaderboard(sweep)
    assert board["trial"].tolist() == ["t0002", "t0001", "t0000"]
    assert board["why_not"].tolist() == ["", "", "all its test runs failed"]


def test_where_all_test_runs_failed_the_search_decides(builder):
    for trial, value in (("t0000", 1.0), ("t0001", 3.0), ("t0002", 2.0)):
        builder.completed(trial, value)
    add_run(builder, "t0003", "t0001", None, outcome="diverged")
    add_run(builder, "t0004", "nobody", 9.0)
    sweep = analysis.load(builder.path)
    assert analysis.best(sweep) == "t0002"
    assert analysis.cheapest(sweep, analysis.Within.parse("0%")).trial == "t0002"
    assert verdict(sweep) == ""


def test_runs_under_way_do_not_count_yet(chosen):
    about = {"number": None, "purpose": "test", "of": "t0000"}
    for state in ("queued", "placed", "started"):
        chosen.state("t0007", state, **about)
    sweep = analysis.load(chosen.path)
    assert "t0000" not in fresh_runs(sweep)
    found = analysis.status(sweep)
    assert (found["asked"], found["ended"], found["tests"]) == (8, 3, {"begun": 5, "ended": 4})
    assert found["best"] == {"trial": "t0002", "value": 2.0}
    assert [row["trial"] for row in found["running"]] == ["t0007"]
    assert "4 of 5 test runs of finalists ended" in rendered(analysis.render_status(sweep))


def test_test_runs_are_no_trials_of_the_search(chosen):
    sweep = analysis.load(chosen.path)
    assert analysis.best_so_far(sweep)["trial"].tolist() == ["t0000", "t0001", "t0002"]
    assert analysis.final_by(sweep, "sync.interval")["trials"].tolist() == [1, 1, 1]
    assert set(sweep.searched.iterations["trial"]) == {"t0000", "t0001", "t0002"}
    assert len(sweep.tests.trials) == 4
    # Only test runs were given a seed: the search has no such parameter.
    assert "params.seed" in sweep.tests.trials
    assert "params.seed" not in sweep.searched.trials
    assert importance(sweep).empty
    assert sweep.asked == 8
    assert {key: own.tolist() for key, own in replicates(sweep).items()} == {
        ("t0001", "t0003", "t0005"): [1.0, 1.2],
        ("t0002", "t0004", "t0006"): [1.9, 2.1],
    }


def test_the_report_says_whether_the_first_two_can_be_told_apart(chosen):
    sweep = analysis.load(chosen.path)
    # Spread sqrt(0.02) over 2 degrees of freedom: t = 4.303, error 0.1414, so 0.9 +- 0.608.
    found = runner_up(sweep)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.2916, 1.5084), abs=1e-3)
    assert verdict(sweep).startswith("t0002 is better than t0001 on test seeds: difference 0.9")
    told = analysis.findings(sweep)[1]
    assert told.startswith(
        "Of 2 finalists t0002 is the best on test seeds: eval/heldout 2 (1.9 to 2.1)"
    )
    assert verdict(sweep) in told


def test_equal_finalists_cannot_be_told_apart(builder):
    for trial, value in (("t0000", 2.0), ("t0001", 3.0)):
        builder.completed(trial, value)
    for trial, of, value in (("t0002", "t0000", 1.0), ("t0003", "t0001", 1.1)):
        add_run(builder, trial, of, value)
    sweep = analysis.load(builder.path)
    assert "cannot be told apart: each ran on one test seed only" in verdict(sweep)
    for trial, of, value in (("t0004", "t0000", 1.4), ("t0005", "t0001", 1.2)):
        add_run(builder, trial, of, value, seed=8)
    assert "cannot be told apart on test seeds" in verdict(analysis.load(builder.path))


def test_a_sweep_without_finalists_says_nothing_of_them(builder):
    builder.completed("t0000", 1.0)
    sweep = analysis.load(builder.path)
    assert analysis.finalists(sweep).empty
    assert "test" not in analysis.leaderboard(sweep)
    assert verdict(sweep) == ""
    assert runner_up(sweep) is None


def test_several_sweeps_keep_their_finalists_apart(chosen, tmp_path):
    from run_directories import Builder

    other = Builder(tmp_path / "other", name="other")
    other.completed("t0000", 1.0)
    sweep = analysis.load([chosen.path, other.path])
    assert analysis.finalists(sweep)["trial"].tolist() == ["synthetic/t0002", "synthetic/t0001"]


def test_ranks_follow_the_direction():
    runs = {"a": FreshRuns((1.0, 1.2)), "b": FreshRuns((0.5, 0.7)), "c": FreshRuns((), 2)}
    assert rank(runs, ascending=False) == ["a", "b"]
    assert rank(runs, ascending=True) == ["b", "a"]


def test_the_interval_of_the_difference_covers_what_it_claims():
    import numpy as np

    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        runs = {name: FreshRuns(tuple(rng.normal(0.0, 1.0, 2))) for name in "abc"}
        found = compare(runs, "a", "b")
        covered += found.low <= 0 <= found.high
    assert 930 <= covered <= 970


def test_one_run_has_no_interval():
    found = interval(FreshRuns((0.5,)))
    assert found.value == 0.5
    assert math.isnan(found.low)
    assert math.isnan(interval(FreshRuns(())).value)


@pytest.fixture
def costly(builder):
    """Values 10, 9.6 and 9.0 at costs of 90, 40 and 5 seconds, and a cheap trial that may not be chosen."""
    for number, (value, cost) in enumerate([(10.0, 90.0), (9.6, 40.0), (9.0, 5.0), (9.9, 1.0)]):
        trial = f"t{number:04d}"
        builder.begin(trial, {"sync.interval": number})
        kl = 50.0 if number == 3 else 5.0
        builder.report(trial, 2, eval__heldout=value, eval__kl_response=kl, cost__gpu_seconds=cost)
        builder.end(trial, "completed", value, iteration=2)
    return builder


@pytest.mark.parametrize(
    ("within", "trial", "count"),
    [
        ("5%", "t0001", 2),
        ("0.4", "t0001", 2),
        ("0.3", "t0000", 1),
        ("10%", "t0002", 3),
        ("0%", "t0000", 1),
    ],
)
def test_the_cheapest_within_reach(costly, within, trial, count):
    found = analysis.cheapest(analysis.load(costly.path), analysis.Within.parse(within))
    assert (found.trial, found.within, found.best, found.metric) == (
        trial, count, "t0000", "cost/gpu_seconds",
    )  # fmt: skip


def test_the_command_shows_the_cheapest(costly, capsys):
    assert main(["best", str(costly.path), "--within", "5%", "--cheapest", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["trial"] == "t0001"
    assert document["params"] == {"sync.interval": 1}
    assert document["cheapest"]["best"] == "t0000"
    assert document["cheapest"]["cost"] == 40.0
    assert main(["best", str(costly.path), "--within", "5%", "--cheapest"]) == 0
    told = capsys.readouterr().out
    assert (
        "cheapest of 2 within reach of t0000 (10.0000): 40 s of cost/gpu_seconds, 56% less" in told
    )
    assert "trials/t0001/config.json" in told


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--cheapest"], "--cheapest needs --within 5% beside it"),
        (["--within", "5%"], "--within needs --cheapest beside it"),
        (["--within", "-1", "--cheapest"], "but is '-1'"),
        (["--within", "five", "--cheapest"], "such as 5%, or an amount such as 0.1, but is 'five'"),
        (["--within", "200%", "--cheapest"], "but is '200%'"),
    ],
)
def test_a_bad_reach_is_one_line(costly, capsys, options, line):
    assert main(["best", str(costly.path), *options]) == 2
    told = capsys.readouterr().err
    assert line in told
    assert len(told.splitlines()) == 1


def test_finalists_are_compared_with_finalists_only(chosen):
    found = analysis.cheapest(analysis.load(chosen.path), analysis.Within.parse("100%"))
    assert (found.trial, found.within, found.value) == ("t0002", 2, 2.0)


def test_trials_that_report_no_cost_have_no_cheapest(builder):
    builder.begin("t0000")
    builder.report("t0000", 1, eval__heldout=1.0, eval__kl_response=1.0)
    builder.end("t0000", "completed", 1.0)
    with pytest.raises(
        ConfigError, match=r"--cheapest: t0000 reports neither cost/gpu_seconds nor"
    ):
        analysis.cheapest(analysis.load(builder.path), analysis.Within.parse("5%"))


def test_the_best_command_tells_of_the_test_runs(chosen, capsys):
    assert main(["best", str(chosen.path)]) == 0
    told = capsys.readouterr().out
    assert "2.0000 (1.9000 to 2.1000) on 2 test seeds. t0002 is better than t0001" in told
    assert main(["best", str(chosen.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"]["seeds"] == 2


def test_the_checklist_of_the_report_names_the_test_seeds(chosen):
    rows = dict(checklist(analysis.load(chosen.path)).rows)
    assert rows["test seeds"] == "2 seeds for 2 finalists"
    assert rows["trials"] == "8 asked for, 3 ended"
