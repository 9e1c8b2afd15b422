"""PBT and PB2: who is copied by whom, with which parameters; and what a population gains by it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from search_spaces import Choice, Float, Int
from sweeps.decide.bandit import Bandit, kernel, loss, upper_bound
from sweeps.decide.population import (
    Explorer,
    Member,
    Perturb,
    Population,
    fitted,
    part_of,
    sample,
    value_at,
)
from sweeps.decide.scheduling import Action, Exploit, GoOn, Pause, Report, SavePoints

LR = Float(1e-4, 1e-1, log=True)
POINTS = SavePoints("iterations", 2, None, "eval/heldout")


def population(explorer: Explorer | None = None, **values: Any) -> Population:
    made = {
        "points": POINTS,
        "explorer": explorer or Perturb({"lr": LR}, 0.2, 0.0),
        "quantile": 0.25,
        "seed": 0,
        "horizon": 10,
        "size": 4,
        "taking_turns": False,
        "valid": lambda params: True,
        **values,
    }
    return Population(**made)


def tell(rule: Population, trial: str, iteration: int, value: float | None) -> Action:
    return rule.decide(Report(trial, iteration, float(iteration), value))


def four(rule: Population, at: int = 2) -> list[Action]:
    """Four trials at a save point, the first the best."""
    for number in range(4):
        rule.join(f"t{number}", {"lr": 1e-3 * (number + 1), "other": number})
    return [tell(rule, f"t{number}", at, -float(number)) for number in range(4)]


def test_the_worst_quarter_goes_on_from_a_copy_of_the_best() -> None:
    rule = population()
    actions = four(rule)
    assert actions[:3] == [GoOn()] * 3
    copied = actions[3]
    assert isinstance(copied, Exploit)
    assert (copied.source, copied.step, copied.passed) == ("t0", 2, 1)
    assert copied.params["other"] == 0
    assert copied.params["lr"] in (pytest.approx(1.2e-3), pytest.approx(0.8e-3))
    assert "at iterations 2 with -3; goes on from t0, at iteration 2 with -0" in copied.reason
    # Between two save points nothing is decided, nor where there is no value, nor twice at one.
    assert tell(rule, "t1", 3, -9.0) == GoOn()
    assert tell(rule, "t1", 5, None) == GoOn()
    assert tell(rule, "t0", 2, -9.0) == GoOn()


def test_scores_are_compared_at_the_same_save_point() -> None:
    rule = population(quantile=0.5, size=2)
    for trial in "ab":
        rule.join(trial, {"lr": 1e-3})
    for at, value in ((2, 1.0), (4, 5.0), (6, 9.0)):
        assert tell(rule, "a", at, value) == GoOn()
    # b is ahead of where a was at its first save point; at the second it is behind.
    assert tell(rule, "b", 2, 2.0) == GoOn()
    copied = tell(rule, "b", 4, 4.0)
    assert isinstance(copied, Exploit)
    # The copy is of the newest save point, and b is where that is from now on.
    assert (copied.step, copied.passed) == (6, 3)
    assert tell(rule, "b", 7, -9.0) == GoOn()
    assert isinstance(tell(rule, "b", 8, -9.0), GoOn)
    assert rule._members["b"].scores == {1: 1.0, 2: 5.0, 3: 9.0, 4: -9.0}


def test_who_comes_first_is_judged_where_the_others_have_been() -> None:
    rule = population()
    # From the worst to the best: at the first save point nobody is behind those that were there before.
    for number in range(4):
        rule.join(f"t{number}", {"lr": 1e-3})
        assert tell(rule, f"t{number}", 2, float(number)) == GoOn()
    copied = tell(rule, "t0", 4, 0.5)
    assert isinstance(copied, Exploit)
    assert (copied.source, copied.step) == ("t3", 2)
    # That one was replaced makes nobody else the worst of that save point, and no copy is judged there again.
    assert tell(rule, "t1", 4, 1.5) == GoOn()
    assert tell(rule, "t0", 4, -5.0) == GoOn()
    assert tell(rule, "t2", 4, 2.5) == tell(rule, "t3", 4, 3.5) == GoOn()
    # At the next one it is the worst of those that were there.
    assert isinstance(tell(rule, "t0", 6, -6.0), Exploit)


def test_nobody_copies_what_is_over_or_went_wrong() -> None:
    rule = population(horizon=4, size=3)
    for trial in "abc":
        rule.join(trial, {"lr": 1e-3})
    assert tell(rule, "a", 2, 9.0) == GoOn()
    rule.forget("a")
    assert tell(rule, "b", 2, 5.0) == GoOn()
    # At its end a trial is not judged, however bad it is.
    assert tell(rule, "b", 4, -9.0) == GoOn()
    copied = tell(rule, "c", 2, 1.0)
    assert copied == GoOn(), "a went wrong, and the best of three is a"


def test_with_more_trials_than_places_each_gives_way() -> None:
    rule = population(taking_turns=True)
    actions = four(rule)
    assert isinstance(actions[0], Pause)
    assert "gives way at iterations 2" in actions[0].reason
    # All begin before any goes on, then the one that came least far.
    assert rule.release(["t1", "t0"], fresh=1, closed=False) is None
    assert rule.release(["t1", "t0"], fresh=0, closed=False) == "t1"
    assert rule.release([], fresh=0, closed=True) is None


def test_a_copy_keeps_every_rule() -> None:
    low = population(valid=lambda params: params["lr"] < 1e-3)
    copied = four(low)[3]
    assert isinstance(copied, Exploit)
    assert copied.params["lr"] == pytest.approx(0.8e-3)
    # Where no draw keeps them the source's own parameters are used.
    never = four(population(valid=lambda params: False))[3]
    assert isinstance(never, Exploit)
    assert never.params == {"lr": 1e-3, "other": 0}


def test_moves_stay_in_the_space() -> None:
    domains = {
        "lr": LR,
        "epochs": Int(1, 4),
        "part": Float(0.0, 1.0, step=0.25),
        "size": Choice((1, 8, 64)),
    }
    explore = Perturb(domains, 0.5, 0.3)
    source = Member({"lr": 9e-2, "epochs": 4, "part": 1.0, "size": 64})
    seen: dict[str, set[Any]] = {key: set() for key in domains}
    for seed in range(200):
        moved = explore.propose("a", source, random.Random(seed))
        assert all(domain.contains(moved[key]) for key, domain in domains.items())
        for key, value in moved.items():
            seen[key].add(value)
    assert seen["epochs"] == {1, 2, 3, 4}
    assert seen["size"] == {1, 8, 64}
    # A key that is not active for the source stays away.
    assert "epochs" not in explore.propose("a", Member({"lr": 1e-3}), random.Random(0))


@pytest.mark.parametrize("domain", [LR, Float(-2.0, 6.0), Int(1, 9, log=True)])
def test_a_part_of_a_domain_and_its_value_agree(domain: Any) -> None:
    for part in (0.0, 0.25, 0.7, 1.0):
        assert part_of(domain, value_at(domain, part)) == pytest.approx(part)
    assert fitted(domain, 1e9) == domain.high
    assert fitted(domain, -1e9) == domain.low
    draw = random.Random(1)
    assert all(domain.contains(sample(domain, draw)) for _ in range(50))


EXPLORERS = {
    "pbt": lambda: Perturb({"lr": LR}, 0.2, 0.25),
    "pb2": lambda: Bandit({"lr": LR}, Perturb({"lr": LR}, 0.2, 0.25)),
}


def play(rule: Population, history: list[tuple[Report, Action]]) -> None:
    """Eight trials whose gain is the larger the closer their rate is to 1e-2; one is lost at times."""
    draw = random.Random(5)
    trials = [f"t{number}" for number in range(8)]
    params: dict[str, Mapping[str, Any]] = {t: {"lr": sample(LR, draw)} for t in trials}
    value, at = dict.fromkeys(trials, 0.0), dict.fromkeys(trials, 0)
    saved: dict[str, dict[int, float]] = {trial: {} for trial in trials}
    for trial in trials:
        rule.join(trial, params[trial])
    for _ in range(20 * len(trials)):
        trial = min(trials, key=lambda t: (at[t], draw.random()))
        at[trial] += 1
        value[trial] += 1.0 - abs(part_of(LR, params[trial]["lr"]) - 2 / 3) * 3
        saved[trial][at[trial]] = value[trial]
        report = Report(trial, at[trial], float(at[trial]), value[trial])
        action = rule.decide(report)
        history.append((report, action))
        if isinstance(action, Exploit):
            params[trial], at[trial] = action.params, action.step
            value[trial] = saved[action.source][action.step]
            saved[trial] = {action.step: value[trial]}
        elif draw.random() < 0.05 and at[trial] > 2:
            at[trial] -= 1
            value[trial] = saved[trial].get(at[trial], value[trial])


@pytest.mark.parametrize("name", EXPLORERS)
def test_the_state_follows_from_what_was_told(name: str) -> None:
    history: list[tuple[Report, Action]] = []
    live, again = (population(EXPLORERS[name](), horizon=None, size=8) for _ in range(2))
    play(live, history)
    copies = [action for _, action in history if isinstance(action, Exploit)]
    assert len(copies) > 5
    other: list[tuple[Report, Action]] = []
    play(again, other)
    assert other == history
    assert again == live
    # Another seed makes other copies.
    other.clear()
    play(population(EXPLORERS[name](), horizon=None, size=8, seed=1), other)
    assert other != history


@pytest.mark.parametrize("name", EXPLORERS)
def test_copies_come_close_to_the_best_rate(name: str) -> None:
    rule = population(EXPLORERS[name](), horizon=None, size=8)
    history: list[tuple[Report, Action]] = []
    play(rule, history)
    rates = [part_of(LR, member.params["lr"]) for member in rule._members.values()]
    # Drawn evenly they would be 0.28 away.
    assert np.median([abs(rate - 2 / 3) for rate in rates]) < 0.1


def test_the_kernel_forgets_and_the_bound_is_high_where_nothing_is_known() -> None:
    theta = np.log([0.3, 0.1, 0.05])
    points = np.array([[0.0, 0.5], [0.0, 0.5], [4.0, 0.5], [0.0, 0.8]])
    gram = kernel(theta, points, points)
    assert gram[0, 1] == 1.0
    assert gram[0, 2] == pytest.approx(0.9**2)
    assert gram[0, 3] == pytest.approx(np.exp(-(0.3**2) / (2 * 0.3**2)))
    # The likelihood by its definition.
    y = np.array([0.1, -0.3, 0.2, 0.5])
    full = gram + 0.05 * np.eye(4)
    direct = 0.5 * y @ np.linalg.inv(full) @ y + 0.5 * np.linalg.slogdet(full)[1]
    assert loss(theta, points, y) == pytest.approx(direct)
    none = np.empty((0, 2))
    known = np.array([[0.0, part] for part in (0.0, 0.05, 0.1, 0.15)])
    places = np.array([[0.0, 0.07], [0.0, 1.0]])
    near, far = upper_bound(known, np.array([1.0, -1.0, 1.0, -1.0]), none, places)
    assert far > near
    # Whoever is there already makes the place less worth a look.
    _, taken = upper_bound(known, np.array([1.0, -1.0, 1.0, -1.0]), places[1:], places)
    assert taken < far
