"""Guards, each by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.runtime.placement import Node
from sweeps.config import GuardsConfig
from sweeps.decide.guards import LOOKS_AT, Guards, Limits, Window
from sweeps.driver import SweepDriver
from sweeps.load import load_sweep
from sweeps.record import RunDirectory
from sweeps.schedulers import make_guards
from sweeps.tuning.study import Study


def play(guards: Guards, trial: str = "a", **curves: list[float]) -> tuple[int, str] | None:
    """The iteration at which the curves end the trial, and why."""
    names = {name: name.replace("__", "/") for name in curves}
    for iteration, values in enumerate(zip(*curves.values(), strict=True), 1):
        metrics = dict(zip(names.values(), values, strict=True))
        told = guards.decide(trial, iteration, metrics)
        if told is not None:
            return iteration, told
    return None


def limits(**values: Any) -> Guards:
    return Guards(Limits(**values))


def test_a_number_that_is_not_finite_is_named() -> None:
    guards = limits()
    assert guards.decide("a", 1, {"policy/loss": 1.0}) is None
    assert guards.decide("a", 2, {"policy/loss": float("nan")}) == "policy/loss is nan"
    assert guards.decide("b", 1, {"value/loss": float("-inf")}) == "value/loss is -inf"


def test_the_kl_guard_counts_reports_in_a_row() -> None:
    guards = limits(max_kl=10.0, patience=2)
    assert guards.decide("a", 1, {"kl/response": 11.0}) is None
    assert guards.decide("a", 2, {"kl/response": 9.0}) is None
    assert guards.decide("a", 3, {"kl/response": 11.0}) is None
    # Another trial has its own count, and a result without KL changes nothing.
    assert guards.decide("b", 3, {"kl/response": 11.0}) is None
    assert guards.decide("a", 4, {"eval/heldout": 1.0}) is None
    assert "guards.max_kl = 10" in (guards.decide("a", 5, {"kl/response": 12.0}) or "")


def test_an_iteration_that_comes_again_counts_once() -> None:
    guards = limits(max_kl=10.0, patience=2)
    assert guards.decide("a", 4, {"kl/response": 11.0}) is None
    assert guards.decide("a", 4, {"kl/response": 11.0}) is None
    assert guards.decide("a", 5, {"kl/response": 11.0}) is not None


def test_entropy_is_measured_by_its_start() -> None:
    curve = [2.0, 1.0, 0.09, 0.12, 0.09, 0.08, 0.05]
    at, told = play(limits(min_entropy_share=0.05, patience=3), policy__entropy=curve) or (0, "")
    assert at == 7
    assert "0.05 nats, below guards.min_entropy_share = 0.05 of the 2" in told
    assert play(limits(min_entropy_share=0.02), policy__entropy=curve) is None


def test_length_is_measured_by_its_start() -> None:
    at, told = play(
        limits(max_length_ratio=3.0, patience=2), rollout__length=[10.0, 31.0, 29.0, 31.0, 40.0]
    ) or (0, "")
    assert at == 5
    assert "40 tokens, above guards.max_length_ratio = 3 times the 10" in told


def test_truncation_that_was_there_from_the_start_is_the_task() -> None:
    guards = limits(max_truncated_share=0.9, patience=1)
    assert play(guards, "task", rollout__truncated_share=[1.0, 1.0, 1.0]) is None
    at, told = play(guards, "blow-up", rollout__truncated_share=[0.1, 0.5, 0.95]) or (0, "")
    assert at == 3
    assert "it began with 0.1" in told


def test_a_mean_is_below_another_by_its_standard_errors() -> None:
    first, now = Window.of([1.0, 2.0, 3.0]), Window.of([0.0, 1.0, 2.0])
    # Both means have variance 1/3, so their difference of 1 has standard error sqrt(2/3).
    assert now.below(first) == pytest.approx(1 / (2 / 3) ** 0.5)
    assert first.below(now) == 0.0
    assert Window.of([1.0, 1.0]).below(Window.of([2.0, 2.0])) > 1e6


def test_a_held_out_reward_below_its_start_ends_the_trial() -> None:
    fallen = [1.0, 1.1, 0.9, 0.5, 0.2, 0.1, 0.0, 0.1]
    at, told = play(limits(max_heldout_fall=4.0, patience=1), reward__heldout=fallen) or (0, "")
    assert at == 6
    assert "fell from 1 to 0.267" in told
    risen = [*reversed(fallen)]
    assert play(limits(max_heldout_fall=4.0, patience=1), reward__heldout=risen) is None


def test_an_evaluation_below_the_first_one_ends_the_trial() -> None:
    curves = {"eval__heldout": [1.0, 1.5, 0.6, 0.4], "eval__heldout_stderr": [0.1] * 4}
    # The difference of two evaluations has a standard error of 0.141.
    at, told = play(limits(max_eval_fall=4.0, eval_patience=1), **curves) or (0, "")
    assert at == 4
    assert "fell from 1 to 0.4, by 4.2 standard errors" in told
    assert play(limits(max_eval_fall=4.0, eval_patience=2), **curves) is None
    # A dip that the trial comes back from is none: the third evaluation is far above the second.
    dip = {"eval__heldout": [1.0, -1.0, -0.5, -0.4, -0.4], "eval__heldout_stderr": [0.1] * 5}
    at, _ = play(limits(max_eval_fall=4.0, eval_patience=2), **dip) or (0, "")
    assert at == 5


@pytest.mark.parametrize(
    ("fallen_from", "ends"), [(2, 4), (3, 5), (4, 5), (5, 6), (6, 6)], ids=lambda at: f"{at}"
)
def test_a_fall_has_to_last_as_long_as_there_is_time_to_come_back(
    fallen_from: int, ends: int
) -> None:
    """Three evaluations in a row; two at iteration 5 of 7, where two are left, and one at iteration 6."""
    guards = Guards(Limits(max_eval_fall=4.0, eval_patience=3), horizon=7)
    values = [1.0 if at < fallen_from else -1.0 for at in range(1, 7)]
    at, told = play(guards, eval__heldout=values, eval__heldout_stderr=[0.1] * 6) or (0, "")
    assert at == ends
    assert "evaluations in a row" in told


def test_what_is_left_counts_evaluations_and_not_iterations() -> None:
    for horizon, ends in ((16, 14), (17, None), (None, None)):
        guards = Guards(Limits(max_eval_fall=4.0, eval_patience=3), horizon)
        found = None
        for at in range(15):
            metrics = {"policy/entropy": 2.0}
            if at % 2 == 0:
                value = -1.0 if at == 14 else 1.0
                metrics |= {"eval/heldout": value, "eval/heldout_stderr": 0.1}
            if guards.decide("a", at, metrics):
                found = at
        # Of 17 iterations two evaluations are left, at 16 and at the end.
        assert found == ends


def test_the_driver_tells_the_guards_how_long_a_trial_is(tmp_path: Path) -> None:
    found = {}
    for steps in (3, 30):
        loaded = load_sweep(
            {
                "program": "sweep_helpers:SeededProgram",
                "base": {"steps": steps},
                "space": {"x": {"float": [0.0, 6.0]}},
                "search": {"trials": 1, "objective": "eval/heldout"},
                "guards": {"max_eval_fall": 4},
            }
        )
        study = Study(None, "s", loaded.config.search, loaded.space, lambda params: [])
        nodes = [Node("a", 8.0, 0.0, 8.0)]
        driver = SweepDriver(loaded, RunDirectory(tmp_path / f"{steps}"), study, nodes, 1)
        record = driver.next_trial()
        assert record is not None
        driver.placed(record.trial)
        for at, value in ((1, 1.0), (2, -1.0)):
            report = {"iteration": at, "eval/heldout": value, "eval/heldout_stderr": 0.1}
            found[steps] = driver.decide(record.trial, report)
    assert found == {3: False, 30: True}


def test_hacking_needs_the_proxy_to_rise_while_the_held_out_reward_falls() -> None:
    heldout = [0.0, 0.1, 0.2, 1.0, 1.1, 1.2, 0.8, 0.4, 0.1, 0.0]
    rising = [0.1 * i for i in range(10)]
    at, told = play(
        limits(hacking_fall=4.0, patience=1), reward__heldout=heldout, reward__proxy=rising
    ) or (0, "")
    assert at == 10
    assert "reward/proxy rose from 0.4 to 0.8 while reward/heldout fell from 1.1 to 0.167" in told
    # Where both fall together nothing was hacked.
    both = limits(hacking_fall=4.0, patience=1)
    assert play(both, reward__heldout=heldout, reward__proxy=heldout) is None
    # Without the held-out reward nobody can tell.
    assert play(limits(hacking_fall=4.0), reward__proxy=rising) is None


def test_a_copy_has_the_past_of_what_it_is_a_copy_of() -> None:
    guards = limits(min_entropy_share=0.5, patience=2)
    play(guards, "good", policy__entropy=[4.0, 3.5, 3.0, 2.8])
    play(guards, "bad", policy__entropy=[9.0, 8.0, 7.0, 7.0])
    guards.fork("bad", "good", 3)
    assert guards._seen["bad"]["policy/entropy"].values == [4.0, 3.5, 3.0]
    # 2.5 is below half of the 9 it began with itself, and not of the 4 of its past now.
    for iteration in (4, 5, 6):
        assert guards.decide("bad", iteration, {"policy/entropy": 2.5}) is None
    assert guards._seen["good"]["policy/entropy"].iterations == [1, 2, 3, 4]


def test_every_limit_is_an_option_and_null_switches_it_off() -> None:
    options = GuardsConfig.model_fields.keys()
    assert {*LOOKS_AT, "window", "patience", "eval_patience"} == set(options) == set(vars(Limits()))
    off = make_guards(GuardsConfig(**dict.fromkeys(LOOKS_AT)))
    for name in ("kl/response", "policy/entropy", "rollout/truncated_share", "rollout/length"):
        for iteration in range(1, 9):
            assert off.decide("a", iteration, {name: 1e9 if iteration > 1 else 1e-9}) is None


def test_the_defaults_leave_a_healthy_trial_alone() -> None:
    steps = range(60)
    assert (
        play(
            make_guards(GuardsConfig()),
            kl__response=[0.5 * i for i in steps],
            policy__entropy=[2.0 - 0.03 * i for i in steps],
            rollout__length=[20.0 + i for i in steps],
            rollout__truncated_share=[min(0.9, 0.02 * i) for i in steps],
            reward__proxy=[0.1 * i for i in steps],
            reward__heldout=[0.05 * i for i in steps],
        )
        is None
    )
