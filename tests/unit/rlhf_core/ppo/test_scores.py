from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from rlhf_core.errors import ConfigError
from rlhf_core.ppo import (
    RunningNorm,
    combine_scores,
    normalise_scores,
    overlong_penalty,
    truncation_penalty,
)

SCORES_B = torch.tensor([1.0, -0.5, 2.0, 0.0], dtype=torch.float64)
FINISHED_B = torch.tensor([True, False, False, True])


def test_overlong_penalty_by_hand() -> None:
    # Longest 100, buffer 20: nothing up to 80, half at 90, all of it from 100 on.
    lengths_B = torch.tensor([80, 90, 100, 130])
    out_B = overlong_penalty(SCORES_B, lengths_B, max_length=100, buffer=20, factor=2.0)
    assert out_B.tolist() == [1.0, -1.5, 0.0, -2.0]
    for bounds in ({"buffer": 0}, {"buffer": 101}, {"buffer": 1, "factor": -1.0}):
        with pytest.raises(ValueError, match="1 <= buffer <= max_length"):
            overlong_penalty(SCORES_B, lengths_B, max_length=100, **bounds)


def test_truncation_penalty_by_hand() -> None:
    assert truncation_penalty(SCORES_B, FINISHED_B, coef=0.5).tolist() == [1.0, -0.25, 1.0, 0.0]
    assert truncation_penalty(SCORES_B, FINISHED_B, coef=0.0).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert truncation_penalty(SCORES_B, FINISHED_B, coef=-2.0).tolist() == [1.0, -2.0, -2.0, 0.0]
    for coef in (1.1, math.nan, -math.inf):
        with pytest.raises(ValueError, match="coef must be at most 1"):
            truncation_penalty(SCORES_B, FINISHED_B, coef=coef)
    with pytest.raises(ValueError, match="finished_B must be bool"):
        truncation_penalty(SCORES_B, FINISHED_B.long(), coef=0.5)


def test_normalise_scores_by_hand() -> None:
    assert normalise_scores(SCORES_B, mean=1.0, std=0.5).tolist() == [0.0, -3.0, 2.0, -2.0]
    assert normalise_scores(SCORES_B.bfloat16(), mean=0, std=1).dtype == torch.float32
    for bad in ({"mean": 0.0, "std": 0.0}, {"mean": math.nan, "std": 1.0}):
        with pytest.raises(ValueError, match="mean must be finite and std above 0"):
            normalise_scores(SCORES_B, **bad)


def test_running_norm_by_hand() -> None:
    fresh = RunningNorm()
    assert fresh.apply(SCORES_B).tolist() == SCORES_B.tolist()
    # 1, 3 then 2, 6: mean 3, squared deviations 4 + 0 + 1 + 9 = 14.
    state = fresh.update(torch.tensor([1.0, 3.0])).update(torch.tensor([2.0, 6.0]))
    assert (state.count, state.mean, state.m2) == (4.0, 3.0, 14.0)
    assert state.apply(torch.tensor([3.0, 4.0])).tolist() == pytest.approx([0.0, 1 / 3.5**0.5])
    assert (fresh.count, fresh.mean, fresh.m2) == (0.0, 0.0, 0.0)
    assert RunningNorm(**dataclasses.asdict(state)) == state


def test_running_norm_without_spread_only_shifts() -> None:
    state = RunningNorm().update(torch.tensor([0.7, 0.7, 0.7]))
    assert state.apply(torch.tensor([1.7])).item() == pytest.approx(1.0)
    assert state.update(torch.empty(0)) == state


def test_running_norm_keeps_a_small_spread_on_a_large_mean() -> None:
    scores_B = 1e6 + torch.tensor([-1.0, 1.0], dtype=torch.float64)
    state = RunningNorm()
    for _ in range(100):
        state = state.update(scores_B)
    assert state.std == pytest.approx(1.0, rel=1e-9)


def test_running_norm_refuses_what_is_not_finite() -> None:
    for score in (math.nan, math.inf):
        with pytest.raises(ConfigError, match="must be finite"):
            RunningNorm().update(torch.tensor([1.0, score]))
    with pytest.raises(ConfigError, match="at least 0"):
        RunningNorm(count=-1.0)


def test_combine_scores_by_hand() -> None:
    parts = {"helpful": torch.tensor([1.0, 2.0]), "short": torch.tensor([10.0, -10.0])}
    out_B = combine_scores(parts, {"short": 0.1, "helpful": 2.0})
    assert out_B.tolist() == pytest.approx([3.0, 3.0])


def test_combine_scores_refuses_names_that_differ_all_together() -> None:
    parts = {"helpful": SCORES_B, "short": SCORES_B}
    with pytest.raises(ConfigError) as caught:
        combine_scores(parts, {"helpfull": 1.0, "long": 1.0, "short": 1.0})
    assert len(caught.value.problems) == 3
    assert "did you mean 'helpful'" in caught.value.problems[0]
    with pytest.raises(ConfigError, match="a reward needs a component"):
        combine_scores({}, {})
    with pytest.raises(ValueError, match="must have the shape of"):
        combine_scores({"a": SCORES_B, "b": SCORES_B[:1]}, {"a": 1.0, "b": 1.0})
