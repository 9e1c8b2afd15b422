"""Halving and median stopping, by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from statistics import fmean, median

import pytest

from sweeps.decide.halving import Asha, HyperBand
from sweeps.decide.scheduling import (
    Action,
    GoOn,
    NoScheduler,
    Pause,
    Report,
    SavePoints,
    Scheduler,
    Smoothed,
    Stop,
)
from sweeps.decide.stopping import MedianStopping


def points(grace: int, reduction: int = 3, resource: str = "iterations") -> SavePoints:
    return SavePoints(resource, grace, reduction, "eval/heldout")


def asha(grace: int, reduction: int, horizon: int | None, promote: bool = False) -> Asha:
    return Asha(points(grace, reduction), horizon, promote)


def tell(rule: Scheduler, trial: str, iteration: int, value: float | None) -> Action:
    return rule.decide(Report(trial, iteration, float(iteration), value))


def reason(action: Action) -> str:
    assert isinstance(action, Stop | Pause)
    return action.reason


def test_rungs_end_before_the_horizon() -> None:
    rule = asha(2, 3, 20)
    assert [rule.rung(amount) for amount in (1, 2, 5, 6, 17, 18, 19, 54, 100)] == [
        None, 0, 0, 1, 1, 2, 2, 2, 2,
    ]  # fmt: skip
    assert [rule.at(rung) for rung in range(3)] == [2, 6, 18]
    assert asha(5, 2, None).rung(40) == 3


def test_asha_keeps_the_best_third_of_those_that_came_so_far() -> None:
    rule = asha(2, 3, 100)
    # Until three trials have reached the rung nobody is behind.
    assert tell(rule, "a", 2, 0.1) == GoOn()
    assert tell(rule, "b", 2, 0.2) == GoOn()
    # Of three values one goes on: 0.2 is the best, 0.15 is not.
    told = reason(tell(rule, "c", 2, 0.15))
    assert "0.15" in told
    assert "iterations 2" in told
    # Of six values two go on: 0.9, 0.2.
    assert tell(rule, "d", 2, 0.9) == GoOn()
    assert isinstance(tell(rule, "e", 2, 0.05), Stop)
    assert tell(rule, "f", 2, 0.2) == GoOn()


def test_asha_judges_a_trial_once_at_each_rung() -> None:
    rule = asha(1, 2, 8)
    assert tell(rule, "a", 1, 1.0) == GoOn()
    assert tell(rule, "b", 1, 2.0) == GoOn()
    # The next result of b before rung 2 is not a decision point.
    assert tell(rule, "a", 1, -5.0) == GoOn()


def test_asha_takes_the_first_value_at_or_after_a_rung() -> None:
    rule = asha(3, 2, 50)
    assert tell(rule, "a", 5, 1.0) == GoOn()
    assert isinstance(tell(rule, "b", 4, 0.5), Stop)


def test_asha_does_not_go_back_to_a_rung_that_was_jumped_over() -> None:
    rule = asha(1, 2, 100)
    assert tell(rule, "a", 4, 1.0) == GoOn()
    assert tell(rule, "a", 5, -9.0) == GoOn()
    assert tell(rule, "b", 2, 0.0) == GoOn()


def test_rungs_count_what_they_are_told_to_count() -> None:
    rule = Asha(points(1000, 2, "tokens"), None)
    assert rule.decide(Report("a", 1, 900.0, 5.0)) == GoOn()
    assert rule.decide(Report("a", 2, 1800.0, 1.0)) == GoOn()
    assert "tokens 1000" in reason(rule.decide(Report("b", 9, 1100.0, 0.5)))
    # A trial that does not tell its tokens is not judged.
    assert rule.decide(Report("c", 9, None, -5.0)) == GoOn()


def test_a_trial_waits_at_its_rung_until_it_is_among_the_best() -> None:
    rule = asha(2, 2, 100, promote=True)
    assert isinstance(tell(rule, "a", 2, 0.5), Pause)
    assert rule.release(["a"], fresh=3, closed=False) is None
    # The second one is the better of two: it goes on at once.
    assert tell(rule, "b", 2, 0.6) == GoOn()
    assert isinstance(tell(rule, "c", 2, 0.4), Pause)
    assert rule.release(["a", "c"], fresh=1, closed=False) is None
    # Of four two go on: b and now a.
    assert isinstance(tell(rule, "d", 2, 0.3), Pause)
    assert rule.release(["c", "a", "d"], fresh=0, closed=False) == "a"
    assert rule.release(["c", "d"], fresh=0, closed=False) is None
    assert rule.save_points("a") == points(2, 2)
    assert asha(2, 2, 100).save_points("a") is None


def test_the_highest_rung_comes_first_and_at_the_end_one_is_carried_on() -> None:
    rule = asha(1, 2, 100, promote=True)
    for trial, value in {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}.items():
        tell(rule, trial, 1, value)
    assert isinstance(tell(rule, "d", 2, 1.0), Pause)
    assert tell(rule, "b", 2, 2.0) == GoOn()
    # At rung 4 b is alone: while others may come it waits, and then it is the best there is.
    assert isinstance(tell(rule, "b", 4, 0.0), Pause)
    waiting = ["a", "c", "d", "b"]
    assert rule.release(waiting, fresh=0, closed=False) == "c"
    waiting.remove("c")
    assert rule.release(waiting, fresh=0, closed=True) == "b"
    # A trial that went wrong is the worst of its rungs, so another one is carried on.
    rule.forget("b")
    assert rule.release(["a", "d"], fresh=0, closed=True) == "d"


def test_brackets_have_graces_of_their_own_and_their_shares_of_trials() -> None:
    rule = HyperBand.of(points(1, 3), None, 3)
    # 9 * 3/3, 3 * 3/2, 1 * 3/1 of 16.5.
    assert rule.shares() == pytest.approx([9 / 16.5, 4.5 / 16.5, 3 / 16.5])
    trials = [f"t{number}" for number in range(33)]
    for trial in trials:
        rule.join(trial, {})
    brackets = [rule.brackets.index(rule.of_trial(trial)) for trial in trials]
    assert [brackets.count(b) for b in range(3)] == [18, 9, 6]
    assert brackets[:4] == [0, 1, 0, 2]
    # Told again, a trial keeps its bracket.
    rule.join("t0", {})
    assert [bracket.points.first for bracket in rule.brackets] == [1, 3, 9]
    assert tell(rule, "t1", 1, 0.0) == GoOn()
    assert not rule.brackets[1]._rungs
    tell(rule, "t1", 3, 0.0)
    assert rule.brackets[1]._rungs == {0: {"t1": 0.0}}


def test_median_compares_the_best_so_far_with_the_others_means() -> None:
    rule = MedianStopping(grace=2, min_trials=2)
    for trial, values in {"a": (1.0, 3.0), "b": (2.0, 4.0)}.items():
        for iteration, value in enumerate(values, 1):
            assert tell(rule, trial, iteration, value) == GoOn()
    # Means of the others up to iteration 2 are 2 and 3, their median 2.5.
    assert tell(rule, "c", 1, 2.4) == GoOn()
    told = reason(tell(rule, "c", 2, 2.3))
    assert "2.4" in told
    assert "2.5" in told
    assert tell(rule, "d", 2, 2.6) == GoOn()


def test_median_waits_for_grace_and_for_enough_trials() -> None:
    rule = MedianStopping(grace=3, min_trials=2)
    assert tell(rule, "a", 5, 1.0) == GoOn()
    assert tell(rule, "b", 5, 1.0) == GoOn()
    assert tell(rule, "c", 2, -9.0) == GoOn()
    alone = MedianStopping(grace=1, min_trials=2)
    assert tell(alone, "a", 5, 1.0) == GoOn()
    assert tell(alone, "b", 5, -9.0) == GoOn()


def test_an_iteration_that_comes_again_counts_once_in_the_median() -> None:
    rule = MedianStopping(grace=9, min_trials=1)
    for iteration, value in ((1, 2.0), (2, 4.0), (3, 6.0), (2, 8.0)):
        tell(rule, "a", iteration, value)
    assert rule._seen["a"].mean(2.0) == 5.0
    assert rule._seen["a"].mean(3.0) is None


def by_looking_at_each(history: list[Report], grace: int, min_trials: int) -> Action:
    """The rule as it is defined, from all reports up to one that is judged."""
    kept: dict[str, dict[int, tuple[float, float]]] = {}
    for told in history:
        assert told.amount is not None
        assert told.value is not None
        earlier = {i: pair for i, pair in kept.get(told.trial, {}).items() if i < told.iteration}
        kept[told.trial] = {**earlier, told.iteration: (told.amount, told.value)}
    last = history[-1]
    assert last.amount is not None
    means = [
        fmean(value for amount, value in curve.values() if amount <= last.amount)
        for trial, curve in kept.items()
        if trial != last.trial
        and max(amount for amount, _ in curve.values()) >= last.amount
        and min(amount for amount, _ in curve.values()) <= last.amount
    ]
    if last.amount < grace or len(means) < min_trials:
        return GoOn()
    best = max(value for _, value in kept[last.trial].values())
    return GoOn() if best >= median(means) else Stop("")


@pytest.mark.parametrize("step", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("forgets", [False, True])
def test_median_decides_as_looking_at_every_trial_does(
    step: float, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials that share their amounts or none, lose iterations, report an amount twice or are forgotten."""
    monkeypatch.setattr("sweeps.decide.stopping.STANDINGS", 5)
    draw = random.Random(11)
    rule, history, stopped = MedianStopping(2, 2), list[Report](), 0
    at = dict.fromkeys((f"t{number}" for number in range(9)), 0)
    for _ in range(400):
        trial = draw.choice(list(at))
        at[trial] = max(1, at[trial] + draw.choice([1, 1, 1, 1, -2]))
        amount = at[trial] + step * draw.random() if step < 1.0 else float(at[trial])
        amount = float(at[trial] // 2) if step == 0.0 else amount
        history.append(Report(trial, at[trial], amount, draw.gauss(float(trial[1:]), 1.0)))
        found = rule.decide(history[-1])
        assert type(found) is type(by_looking_at_each(history, 2, 2))
        stopped += isinstance(found, Stop)
        if forgets and draw.random() < 0.05:
            history = [told for told in history if told.trial != trial]
            at[trial] = 0
            rule.forget(trial)
    assert stopped > 20
    assert len(rule._standings) <= 5


def test_a_missing_value_is_no_decision() -> None:
    for rule in (asha(1, 2, 10), MedianStopping(1, 1), Smoothed(asha(1, 2, 10), 3)):
        assert tell(rule, "a", 1, None) == GoOn()


def test_the_mean_of_the_last_values_counts() -> None:
    rule = Smoothed(asha(3, 2, 100), 2)
    for iteration, value in ((1, 9.0), (2, 2.0), (3, 4.0)):
        assert tell(rule, "a", iteration, value) == GoOn()
    assert rule.inner._rungs[0] == {"a": 3.0}  # type: ignore[attr-defined]
    # After a restart iteration 2 comes again: the values after it are not there yet.
    tell(rule, "a", 2, 6.0)
    assert rule._seen["a"].values == [9.0, 6.0]


RULES: dict[str, Callable[[], Scheduler]] = {
    "none": NoScheduler,
    "asha": lambda: asha(1, 2, 20),
    "promotion": lambda: asha(1, 2, 20, promote=True),
    "hyperband": lambda: HyperBand.of(points(1, 2), 20, 3),
    "median": lambda: MedianStopping(2, 2),
    "smoothed": lambda: Smoothed(asha(2, 2, 20), 3),
}


@pytest.mark.parametrize("name", RULES)
def test_the_state_follows_from_what_was_told(name: str) -> None:
    """Trials that lose iterations and report them again included."""
    draw = random.Random(3)
    live, history = RULES[name](), []
    trials = [f"t{number}" for number in range(8)]
    for trial in trials:
        live.join(trial, {})
    at = dict.fromkeys(trials, 0)
    for _ in range(150):
        trial = draw.choice(trials)
        at[trial] = max(1, at[trial] + (1 if draw.random() < 0.9 else -2))
        value = draw.random() if draw.random() < 0.8 else None
        report = Report(trial, at[trial], float(at[trial]), value)
        history.append((report, live.decide(report)))
    again = RULES[name]()
    for trial in trials:
        again.join(trial, {})
    assert [(report, again.decide(report)) for report, _ in history] == history
    assert again == live
    assert deepcopy(again) == live
