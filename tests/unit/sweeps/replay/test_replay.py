from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tables import make_table

from rlhf_core.errors import ConfigError
from sweeps.cli import main
from sweeps.outcomes import Outcome
from sweeps.replay.play import Clock, DriverPlayer, play
from sweeps.replay.program import RecordedTrial
from sweeps.replay.replay import in_full_trials, replay, sweep_on
from sweeps.replay.table import COMPLETED, DIVERGED, Run, Table
from sweeps.replay.truth import truth

RANDOM: dict[str, Any] = {"search.sampler": "random", "scheduler.kind": "none"}


@pytest.fixture(scope="module")
def table() -> Table:
    return make_table()


@pytest.fixture(scope="module")
def stored(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.parquet"
    table.write(path)
    return path


class Listed:
    """A player with runs in a row; it stops a trial that reports ``stop``."""

    def __init__(self, *runs: Run) -> None:
        self.waiting = {f"t{i}": RecordedTrial(run) for i, run in enumerate(runs)}
        self.told: list[tuple[str, Any]] = []

    def next(self) -> tuple[str, RecordedTrial] | None:
        trial = next(iter(self.waiting), None)
        return None if trial is None else (trial, self.waiting.pop(trial))

    def heard(self, trial: str, result: Mapping[str, Any]) -> bool:
        return "stop" not in result

    def ended(self, trial: str) -> None:
        self.told.append((trial, None))


def run_of(*seconds: float, **last: float) -> Run:
    rows = [{"a/b": 1.0} for _ in seconds]
    rows[-1] |= last
    return Run(tuple(range(len(seconds))), tuple(rows), seconds)


def test_results_come_in_the_order_of_virtual_time_and_workers_are_handed_on() -> None:
    clock = Clock()
    player = Listed(run_of(3.0, 3.0), run_of(1.0, 1.0), run_of(2.0, 5.0))
    steps = [(step.time, step.trial, step.iteration) for step in play(player, clock, workers=2)]
    assert steps == [
        (1.0, "t1", 0), (2.0, "t1", 1), (3.0, "t0", 0), (4.0, "t2", 0), (6.0, "t0", 1), (9.0, "t2", 1),
    ]  # fmt: skip
    assert clock.now == 9.0
    assert [trial for trial, _ in player.told] == ["t1", "t0", "t2"]


def test_a_stopped_trial_costs_what_it_ran() -> None:
    stopped = Run((0, 1, 2), ({}, {"stop": 1.0}, {}), (1.0, 1.0, 1.0))
    steps = list(play(Listed(stopped, run_of(1.0, 1.0)), Clock(), workers=1))
    assert [step.spent for step in steps] == [0, 1, 1, 2]
    assert steps[-1].time == 4.0


def test_a_sweep_keeps_to_its_budget_and_runs_its_finalists_on_other_seeds(table: Table) -> None:
    loaded = sweep_on(table, None, in_full_trials(24), seed=1)
    player = DriverPlayer(loaded, Clock(), 4)
    steps = list(play(player, player.driver.clock, 4))
    records = player.driver.records.values()
    tests = [record for record in records if record.of]
    assert 22 < steps[-1].spent / 16 <= 24
    assert all(record.ended for record in records)
    assert loaded.base["seed"] == 2
    assert {record.params["seed"] for record in tests} == {1, 3}
    assert len({record.of for record in tests}) == 3
    assert {record.outcome for record in records} <= {
        Outcome.COMPLETED, Outcome.STOPPED, Outcome.DIVERGED,
    }  # fmt: skip


def test_the_same_seed_plays_the_same_sweep(table: Table) -> None:
    judge = truth(table, "eval/heldout", ascending=False)
    first, again, other = (
        replay(table, sweep_on(table, None, in_full_trials(12), seed), judge, 4)
        for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("kind", ["asha", "hyperband"])
def test_trials_that_wait_at_a_rung_go_on_where_they_were(kind: str, table: Table) -> None:
    changes = {"scheduler.kind": kind, "scheduler.stop": False, **in_full_trials(24)}
    loaded = sweep_on(table, None, {**changes, "search.sampler": "random"})
    player = DriverPlayer(loaded, Clock(), 4)
    seen: dict[str, list[int]] = {}
    for step in play(player, player.driver.clock, 4):
        seen.setdefault(step.trial, []).append(step.iteration)
    records = player.driver.records
    # Nothing runs twice, and nothing is left out.
    assert all(found == list(range(len(found))) for found in seen.values())
    assert sum(r.holds > 0 and r.outcome is Outcome.COMPLETED for r in records.values()) > 2
    assert sum(len(found) - 1 for found in seen.values()) <= 24 * 16
    assert all(record.ended for record in records.values())


def test_populations_cannot_be_played(table: Table) -> None:
    changes = {"scheduler.kind": "pbt", "search.sampler": "random"}
    with pytest.raises(ConfigError, match="'pbt' pauses trials, but program"):
        sweep_on(table, None, changes)


def test_a_recorded_divergence_ends_its_trial_as_diverged(table: Table) -> None:
    # With the largest learning rate every other run diverges.
    space = {key: {"choice": list(levels)} for key, levels in table.header.levels.items()}
    fixed = {"space": {**space, "optim.policy.lr": {"constant": 2.56e-2}}}
    loaded = sweep_on(table, None, {**fixed, **in_full_trials(12), **RANDOM})
    player = DriverPlayer(loaded, Clock(), 4)
    list(play(player, player.driver.clock, 4))
    ended = {r.outcome: r.reason for r in player.driver.records.values() if r.of is None}
    assert ended[Outcome.DIVERGED] == "policy/loss is nan"
    assert Outcome.COMPLETED in ended


def known(values: dict[int, tuple[float, float]], table: Table) -> Table:
    """The table with these final values on the two test seeds."""
    runs = dict(table.runs)
    for (number, seed), run in table.runs.items():
        own = values.get(number)
        if seed not in (101, 102):
            continue
        if own is None:
            del runs[number, seed]
        else:
            last = {"eval/heldout": own[seed - 101]}
            runs[number, seed] = Run(run.iterations[:1], (last,), (1.0,), COMPLETED)
    return Table(table.header, runs)


def test_what_is_truly_good_follows_from_test_seeds_alone() -> None:
    small = make_table(
        levels={"optim.policy.lr": tuple(10.0**-i for i in range(9, 3, -1))},
        tuning_seeds=(1, 2), test_seeds=(101, 102), iterations=4,
    )  # fmt: skip
    values = {0: (0.9, 1.1), 1: (0.85, 1.05), 2: (0.5, 0.7), 3: (0.2, 0.4)}
    judge = truth(known(values, small), "eval/heldout", ascending=False)
    assert judge.ranked == (0, 1, 2, 3)
    assert judge.noise == pytest.approx(0.1414, abs=1e-3)
    # One of six is the best 5 %; the second is within the noise of a run.
    assert judge.good == {0, 1}
    assert judge.values[2] == pytest.approx(0.6)
    reverse = truth(known(values, small), "eval/heldout", ascending=True)
    assert reverse.ranked == (3, 2, 1, 0)
    assert reverse.good == {3}
    assert reverse.reached(-9.0)
    assert not reverse.reached(9.0)


def test_a_run_that_diverged_on_a_test_seed_is_not_good(table: Table) -> None:
    judge = truth(table, "eval/heldout", ascending=False)
    broken = {n for (n, s), run in table.runs.items() if run.outcome == DIVERGED and s > 100}
    assert broken
    assert not broken & set(judge.ranked)


def test_the_command_tells_what_was_chosen(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(stored), "--trials-equivalent", "12", "--repeats", "2"]) == 0
    told = capsys.readouterr().out
    assert told.count("chose configuration") == 2
    assert "times faster" in told
    assert main(["replay", str(stored), "--trials-equivalent", "6", "--seed", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["configurations"] == 240
    (played,) = document["repeats"]
    assert 5 < played["spent"] <= 6
    assert document["speedup"] == pytest.approx(played["trained"] / document["seconds"])
    assert played["params"].keys() == {
        "optim.policy.lr", "ppo.kl.coef", "ppo.clip_range_low", "sync.interval",
    }  # fmt: skip


def test_a_sweep_file_says_how_to_search(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "base: {extends: tiny}\n"
        "space: {optim.policy.lr: {float: [1e-4, 1e-2], log: true}, ppo.kl.coef: {choice: [0.03]},\n"
        "  ppo.clip_range_low: {constant: 0.2}, sync.interval: {int: [1, 8]}}\n"
        "search: {sampler: random, trials: 5, objective: reward/proxy}\n"
        "cluster: {rehearse: {gpus: 4}}\n"
    )
    assert main(["replay", str(stored), "--sweep", str(file), "--json"]) == 0
    (played,) = json.loads(capsys.readouterr().out)["repeats"]
    assert sum(played["outcomes"].values()) == 5
    assert played["params"]["ppo.kl.coef"] == 0.03


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--workers", "0"], "a whole number from 1 on is needed, but is '0'"),
        (["--trials-equivalent", "nan"], "a number from 1 on is needed, but is 'nan'"),
        (["--sweep", "quickstart"], "space: unknown key 'ppo.clip_range_high'"),
        (
            ["--set", "search.objective=eval/held"],
            "no metric 'eval/held'; did you mean 'eval/heldout'?",
        ),
        (["--set", "selection.tops=3"], "selection"),
    ],
)
def test_bad_input_is_one_line(
    stored: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    try:
        code: Any = main(["replay", str(stored), *arguments])
    except SystemExit as error:
        code = error.code
    told = capsys.readouterr()
    assert code == 2
    assert line in told.err
    assert not told.out
