from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import statistics

SCORE = st.floats(-1e3, 1e3, allow_nan=False).map(lambda x: round(x, 3))
RUNS = st.lists(SCORE, min_size=1, max_size=12)
STRATA = st.lists(RUNS, min_size=1, max_size=4)
POINTS = st.integers(1, 3).flatmap(
    lambda goals: st.lists(
        st.lists(st.integers(0, 6).map(float), min_size=goals, max_size=goals),
        min_size=1,
        max_size=8,
    )
)
COMMON = settings(max_examples=60, deadline=None)


@COMMON
@given(STRATA, st.floats(0.1, 10), SCORE)
def test_iqm_moves_and_scales_with_the_scores_and_lies_within(strata, scale, shift):
    found = statistics.iqm(strata)
    pooled = np.concatenate([np.asarray(s) for s in strata])
    assert pooled.min() - 1e-9 <= found <= pooled.max() + 1e-9
    moved = statistics.iqm([np.asarray(s) * scale + shift for s in strata])
    assert moved == pytest.approx(found * scale + shift, abs=1e-6)


@COMMON
@given(STRATA)
def test_intervals_are_ordered_and_within_the_scores(strata):
    found = statistics.bootstrap(strata, repeats=50)
    pooled = np.concatenate([np.asarray(s) for s in strata])
    assert pooled.min() - 1e-9 <= found.low <= found.high <= pooled.max() + 1e-9


@COMMON
@given(STRATA, st.data())
def test_improvement_of_one_side_is_the_loss_of_the_other(first, data):
    second = [data.draw(RUNS) for _ in first]
    forward = statistics.probability_of_improvement(first, second)
    assert 0 <= forward <= 1
    assert forward + statistics.probability_of_improvement(second, first) == pytest.approx(1)


@COMMON
@given(STRATA, st.lists(SCORE, min_size=2, max_size=6))
def test_a_profile_never_rises(strata, thresholds):
    profile = statistics.performance_profile(strata, sorted(thresholds))
    assert (np.diff(profile) <= 0).all()
    assert ((profile >= 0) & (profile <= 1)).all()


@COMMON
@given(st.lists(RUNS.filter(lambda r: len(r) > 1), min_size=2, max_size=5))
def test_seed_noise_ignores_a_common_shift(groups):
    found = statistics.seed_noise(groups, repeats=5)
    moved = statistics.seed_noise([[x + 7 for x in g] for g in groups], repeats=5)
    assert 0 <= found.share <= 1
    assert moved[:2] == pytest.approx(found[:2], abs=1e-6)


@COMMON
@given(st.lists(SCORE, min_size=1, max_size=25))
def test_more_draws_are_no_worse_and_all_of_them_are_the_best(values):
    table = statistics.expected_best(values, range(1, len(values) + 1))
    assert (np.diff(table["mean"]) >= -1e-9).all()
    assert table["mean"].iloc[0] == pytest.approx(np.mean(values), abs=1e-9)
    assert table["mean"].iloc[-1] == pytest.approx(max(values))
    assert (
        (table["low"] <= table["mean"] + 1e-9) & (table["mean"] <= table["high"] + 1e-9)
    ).sum() >= 1
    down = statistics.expected_best([-v for v in values], range(1, len(values) + 1), True)
    assert down["mean"].to_numpy() == pytest.approx(-table["mean"].to_numpy(), abs=1e-9)


@COMMON
@given(POINTS)
def test_the_front_dominates_the_rest_and_has_all_of_the_volume(points):
    goals = len(points[0])
    smaller, corner = [False] * goals, [7.0] * goals
    front = statistics.pareto_front(points, smaller)
    held = np.asarray(points)
    for own in held[~front]:
        best = held[front]
        assert ((best <= own).all(axis=1) & (best < own).any(axis=1)).any()
    whole = statistics.hypervolume(points, corner, smaller)
    assert statistics.hypervolume(held[front], corner, smaller) == pytest.approx(whole)
    # Integer points: the volume is the number of unit cubes that some point dominates.
    cubes = np.stack(np.meshgrid(*[np.arange(7)] * goals), -1).reshape(-1, goals)
    dominated = (held[None] <= cubes[:, None]).all(-1).any(1)
    assert whole == dominated.sum()
