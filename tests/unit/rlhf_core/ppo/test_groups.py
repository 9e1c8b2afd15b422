from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import Tensor

from rlhf_core.ppo import (
    group_mean,
    group_size,
    group_std,
    groups_with_spread,
    leave_one_out_mean,
)

# Prompt 7 has scores 1, 2, 6; prompt 3 has 4, 4; prompt 5 stands alone.
SCORES_B = torch.tensor([1.0, 4.0, 2.0, 10.0, 6.0, 4.0], dtype=torch.float64)
GROUPS_B = torch.tensor([7, 3, 7, 5, 7, 3])


def test_by_hand() -> None:
    assert group_size(GROUPS_B).tolist() == [3, 2, 3, 1, 3, 2]
    assert group_mean(SCORES_B, GROUPS_B).tolist() == [3.0, 4.0, 3.0, 10.0, 3.0, 4.0]
    assert leave_one_out_mean(SCORES_B, GROUPS_B).tolist() == [4.0, 4.0, 3.5, 10.0, 1.5, 4.0]
    # Deviations -2, -1, 3: squares 14, over 2 and over 3.
    root = math.sqrt(7)
    assert group_std(SCORES_B, GROUPS_B).tolist() == pytest.approx([root, 0, root, 0, root, 0])
    root = math.sqrt(14 / 3)
    biased = group_std(SCORES_B, GROUPS_B, unbiased=False)
    assert biased.tolist() == pytest.approx([root, 0, root, 0, root, 0])


def test_spread_by_hand() -> None:
    assert groups_with_spread(SCORES_B, GROUPS_B).tolist() == [
        True,
        False,
        True,
        False,
        True,
        False,
    ]
    # The spread of prompt 7 is exactly 5.
    assert not groups_with_spread(SCORES_B, GROUPS_B, eps=5.0).any()
    assert groups_with_spread(SCORES_B, GROUPS_B, eps=4.999).sum() == 3
    empty_B = groups_with_spread(SCORES_B[:0], GROUPS_B[:0])
    assert empty_B.shape == (0,)
    assert empty_B.dtype == torch.bool


def slow(scores_B: Tensor, groups_B: Tensor, row: int) -> tuple[float, float, float, bool]:
    """Mean, mean of the others, standard deviation and spread of the group of one row."""
    rows = [i for i in range(len(groups_B)) if groups_B[i] == groups_B[row]]
    scores = [float(scores_B[i]) for i in rows]
    others = [float(scores_B[i]) for i in rows if i != row] or scores
    std = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return statistics.fmean(scores), statistics.fmean(others), std, len(set(scores)) > 1


def test_against_the_definition() -> None:
    generator = torch.Generator().manual_seed(5)
    scores_B = torch.randint(0, 3, (60,), generator=generator).double() * 0.7
    groups_B = torch.randint(-9, 9, (60,), generator=generator)
    for row in range(60):
        mean, others, std, spread = slow(scores_B, groups_B, row)
        assert group_mean(scores_B, groups_B)[row].item() == pytest.approx(mean, abs=1e-12)
        assert leave_one_out_mean(scores_B, groups_B)[row].item() == pytest.approx(
            others, abs=1e-12
        )
        assert group_std(scores_B, groups_B)[row].item() == pytest.approx(std, abs=1e-7)
        assert groups_with_spread(scores_B, groups_B)[row].item() is spread


def test_precision() -> None:
    half_B = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    for function in (group_mean, leave_one_out_mean, group_std):
        assert function(half_B, torch.zeros(2, dtype=torch.int64)).dtype == torch.float32
    # Three equal scores that float32 cannot average exactly still have no spread.
    equal_B = torch.full((3,), 0.7)
    assert group_std(equal_B, torch.zeros(3, dtype=torch.int64)).max().item() < 1e-15


def test_refuses() -> None:
    with pytest.raises(ValueError, match="groups_B must be int64"):
        group_mean(SCORES_B, GROUPS_B.float())
    with pytest.raises(ValueError, match="groups_B must have the shape of scores_B"):
        group_std(SCORES_B, GROUPS_B[:2])
    with pytest.raises(ValueError, match="eps must be at least 0, got -1"):
        groups_with_spread(SCORES_B, GROUPS_B, eps=-1)
