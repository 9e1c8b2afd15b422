from __future__ import annotations

import math

import pytest
import torch

from rlhf_core.ppo import clip_scores, kl_penalised, missing_eos_penalty, terminal_rewards

MASK_BT = torch.tensor(
    [
        [True, True, False, False],  # padding on the right
        [False, True, False, True],  # offset and a hole
        [False, False, False, False],  # no token at all
    ]
)
SCORES_B = torch.tensor([1.5, -2.0, 7.0], dtype=torch.float64)


def test_terminal_rewards_by_hand() -> None:
    assert terminal_rewards(SCORES_B, MASK_BT).tolist() == [
        [0.0, 1.5, 0.0, 0.0],
        [0.0, 0.0, 0.0, -2.0],
        [0.0, 0.0, 0.0, 0.0],
    ]


def test_kl_penalised_by_hand() -> None:
    kl_BT = torch.tensor(
        [[0.5, -1.0, math.nan, 9.0], [9.0, 1.0, math.inf, 2.0], [9.0, 9.0, 9.0, 9.0]],
        dtype=torch.float64,
    )
    rewards_BT = kl_penalised(SCORES_B, kl_BT, MASK_BT, coef=0.1)
    expected_BT = torch.tensor(
        [[-0.05, 1.5 + 0.1, 0.0, 0.0], [0.0, -0.1, 0.0, -2.0 - 0.2], [0.0, 0.0, 0.0, 0.0]],
        dtype=torch.float64,
    )
    torch.testing.assert_close(rewards_BT, expected_BT, rtol=0, atol=1e-15)


def test_a_score_of_a_row_without_tokens_never_shows() -> None:
    scores_B = torch.tensor([0.0, 0.0, math.nan])
    assert terminal_rewards(scores_B, MASK_BT).abs().max().item() == 0.0


def test_half_precision_scores_give_float32_rewards() -> None:
    assert terminal_rewards(SCORES_B.bfloat16(), MASK_BT).dtype == torch.float32


def test_clip_scores_by_hand() -> None:
    assert clip_scores(SCORES_B, low=-1.0, high=5.0).tolist() == [1.5, -1.0, 5.0]
    with pytest.raises(ValueError, match="low < high must hold, got low=1 and high=-1"):
        clip_scores(SCORES_B, low=1, high=-1)


def test_missing_eos_penalty_by_hand() -> None:
    finished_B = torch.tensor([True, False, True])
    assert missing_eos_penalty(SCORES_B, finished_B, penalty=1.0).tolist() == [1.5, -3.0, 7.0]
    with pytest.raises(ValueError, match="penalty must be at least 0, got -1"):
        missing_eos_penalty(SCORES_B, finished_B, penalty=-1)
    with pytest.raises(ValueError, match="finished_B must be bool"):
        missing_eos_penalty(SCORES_B, finished_B.int(), penalty=1)


def test_refuses_shapes() -> None:
    with pytest.raises(ValueError, match=r"scores_B must have the shape of mask_B, got \[2\]"):
        terminal_rewards(SCORES_B[:2], MASK_BT)
    with pytest.raises(ValueError, match=r"scores_B must have shape \[B\]"):
        terminal_rewards(MASK_BT.double(), MASK_BT)
    with pytest.raises(ValueError, match="kl_BT must have the shape of mask_BT"):
        kl_penalised(SCORES_B, SCORES_B, MASK_BT, coef=0.1)
