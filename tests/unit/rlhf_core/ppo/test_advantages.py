from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_core.errors import ConfigError
from rlhf_core.ppo import (
    ADVANTAGES,
    NEEDS_CRITIC,
    NEEDS_GROUPS,
    USUAL_WHITENING,
    baselined_scores,
    discounted_returns,
    estimate_advantages,
    gae,
    whiten,
)

NAN = math.nan
# Prompt 0: rows 0 and 2, scores 1 and 3. Prompt 1: rows 1 and 3, scores 5 and 5.
SCORES_B = torch.tensor([1.0, 5.0, 3.0, 5.0], dtype=torch.float64)
GROUPS_B = torch.tensor([0, 1, 0, 1])
MASK_BT = torch.tensor(
    [[True, True, False], [True, False, False], [True, False, True], [True, True, True]]
)
KL_BT = torch.tensor(
    [[0.5, 1.0, NAN], [2.0, NAN, NAN], [1.0, NAN, 3.0], [0.0, 1.0, 0.0]], dtype=torch.float64
)


def run(estimator: str, **options: Any) -> tuple[list[list[float]], list[list[float]]]:
    settings: dict[str, Any] = {
        "scores_B": SCORES_B,
        "kl_BT": KL_BT,
        "kl_coef": 0.0,
        "mask_BT": MASK_BT,
        "groups_B": GROUPS_B,
    }
    advantages_BT, returns_BT = estimate_advantages(estimator, **(settings | options))
    return advantages_BT.tolist(), returns_BT.tolist()


def spread(numbers: list[float]) -> list[list[float]]:
    """One number for each row over the tokens that count."""
    return [
        [x if on else 0.0 for on in row] for x, row in zip(numbers, MASK_BT.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("reinforce", [1.0, 5.0, 3.0, 5.0]),
        ("reinforce_baseline", [-1.0, 0.0, 1.0, 0.0]),
        ("dr_grpo", [-1.0, 0.0, 1.0, 0.0]),
        # The other sample: 3, 5, 1, 5.
        ("rloo", [-2.0, 0.0, 2.0, 0.0]),
        # Unbiased standard deviation sqrt 2.
        ("group_norm", [-1 / (math.sqrt(2) + 1e-6), 0.0, 1 / (math.sqrt(2) + 1e-6), 0.0]),
    ],
)
def test_scores_without_kl_by_hand(estimator: str, expected: list[float]) -> None:
    assert baselined_scores(estimator, SCORES_B, GROUPS_B).tolist() == pytest.approx(expected)
    # gamma is 1, so every token of a response has the same advantage.
    advantages, returns = run(estimator)
    assert advantages == returns
    for mine, theirs in zip(advantages, spread(expected), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-15)


def test_kl_per_token_is_a_reward_to_go_by_hand() -> None:
    # Scores -2, 0, 2, 0; penalties 0.1 KL from the token on.
    advantages, _ = run("rloo", kl_coef=0.1)
    expected = [[-2.15, -2.1, 0.0], [-0.2, 0.0, 0.0], [1.6, 0.0, 1.7], [-0.1, -0.1, 0.0]]
    torch.testing.assert_close(torch.tensor(advantages), torch.tensor(expected))


def test_kl_per_sequence_enters_before_the_baseline_by_hand() -> None:
    # Scores less 0.1 of the summed KL: 0.85, 4.8, 2.6, 4.9; minus the other one.
    advantages, _ = run("rloo", kl_coef=0.1, kl_placement="sequence")
    expected = spread([-1.75, -0.1, 1.75, 0.1])
    torch.testing.assert_close(torch.tensor(advantages), torch.tensor(expected))
    # Estimators without groups are not touched by it.
    assert run("reinforce", kl_coef=0.1, kl_placement="sequence") == run("reinforce", kl_coef=0.1)


def test_gamma_acts_on_reinforce_only() -> None:
    advantages, _ = run("reinforce", gamma=0.5)
    # The hole of row 2 costs nothing.
    assert advantages == [[0.5, 1.0, 0.0], [5.0, 0.0, 0.0], [1.5, 0.0, 3.0], [1.25, 2.5, 5.0]]
    assert run("reinforce", gamma=0.5, holes="step")[0][2] == [0.75, 0.0, 3.0]
    for estimator in NEEDS_GROUPS:
        assert run(estimator, gamma=0.5) == run(estimator)


def test_gae_is_the_function_of_that_name() -> None:
    values_BT = torch.where(MASK_BT, 0.5, NAN)
    out = run("gae", values_BT=values_BT, groups_B=None, gamma=0.9, lam=0.8)
    rewards_BT = torch.zeros(4, 3, dtype=torch.float64)
    for row, column in enumerate((1, 0, 2, 2)):
        rewards_BT[row, column] = SCORES_B[row]
    expected = gae(rewards_BT, values_BT.double(), MASK_BT, gamma=0.9, lam=0.8)
    assert out == (expected[0].tolist(), expected[1].tolist())


def test_whitening_by_hand() -> None:
    plain, returns = run("reinforce")
    for mode, scale in (("mean", False), ("mean_std", True)):
        advantages, same = run("reinforce", whitening=mode)
        expected_BT = whiten(torch.tensor(plain, dtype=torch.float64), MASK_BT, scale=scale)
        assert advantages == expected_BT.tolist()
        assert same == returns
    # Tokens 1 1, 5, 3 3, 5 5 5: mean 3.5, squares 12.5 + 6.75 + 0.5 = 22.
    clamped, _ = run("reinforce", whitening="mean_std", whiten_eps=4.0, whiten_floor="clamp")
    assert clamped[1][0] == pytest.approx(1.5 / 2)
    unbiased, _ = run("reinforce", whitening="mean_std", whiten_unbiased=True, whiten_eps=0.0)
    assert unbiased[1][0] == pytest.approx(1.5 / math.sqrt(22 / 7))


def test_clip_after_the_baseline_by_hand() -> None:
    advantages, _ = run("rloo", clip_baselined=(-0.5, 1.0))
    assert advantages == spread([-0.5, 0.0, 1.0, 0.0])


def test_a_group_of_one() -> None:
    groups_B = torch.tensor([0, 1, 2, 1])
    for estimator in NEEDS_GROUPS:
        zero_B = baselined_scores(estimator, SCORES_B, groups_B)
        assert zero_B.tolist() == [0.0, 0.0, 0.0, 0.0]
        kept_B = baselined_scores(estimator, SCORES_B, groups_B, single="keep")
        assert kept_B.tolist() == pytest.approx([1.0, 0.0, 3.0, 0.0], rel=2e-6)


def test_equal_scores_have_no_advantage_even_in_float32() -> None:
    scores_B = torch.full((3,), 0.7)
    groups_B = torch.zeros(3, dtype=torch.int64)
    for estimator in NEEDS_GROUPS:
        out_B = baselined_scores(estimator, scores_B, groups_B)
        assert out_B.dtype == torch.float32
        assert out_B.abs().max().item() < 1e-9
    assert baselined_scores("group_norm", scores_B, groups_B, group_eps=0.0).isfinite().all()


def slow_advantages(estimator: str, scores: list[float], coef: float, kl_BT: Tensor) -> Tensor:
    """From the definitions, row by row and token by token."""
    out_BT = torch.zeros(MASK_BT.shape, dtype=torch.float64)
    for b in range(len(scores)):
        group = [scores[i] for i in range(len(scores)) if GROUPS_B[i] == GROUPS_B[b]]
        mean = statistics.fmean(group)
        score = {
            "reinforce": scores[b],
            "reinforce_baseline": scores[b] - mean,
            "dr_grpo": scores[b] - mean,
            "rloo": scores[b] - (sum(group) - scores[b]) / (len(group) - 1),
            "group_norm": (scores[b] - mean) / (statistics.stdev(group) + 1e-6),
        }[estimator]
        steps = [t for t in range(MASK_BT.shape[1]) if MASK_BT[b, t]]
        for t in steps:
            out_BT[b, t] = score - coef * sum(float(kl_BT[b, k]) for k in steps if k >= t)
    return out_BT


@pytest.mark.parametrize("estimator", sorted(set(ADVANTAGES) - NEEDS_CRITIC))
def test_against_the_definition(estimator: str) -> None:
    generator = torch.Generator().manual_seed(9)
    for _ in range(5):
        scores_B = torch.randn(4, generator=generator, dtype=torch.float64)
        kl_BT = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        advantages, _ = run(estimator, scores_B=scores_B, kl_BT=kl_BT, kl_coef=0.3)
        expected_BT = slow_advantages(estimator, scores_B.tolist(), 0.3, kl_BT)
        torch.testing.assert_close(
            torch.tensor(advantages, dtype=torch.float64), expected_BT, rtol=1e-10, atol=1e-12
        )


def test_discounted_returns_by_hand() -> None:
    rewards_BT = torch.tensor([[1.0, NAN, 4.0, 9.0]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, False, True, False]])
    assert discounted_returns(rewards_BT, mask_BT, gamma=0.5).tolist() == [[3.0, 0.0, 4.0, 0.0]]
    stepped = discounted_returns(rewards_BT, mask_BT, gamma=0.5, holes="step")
    assert stepped.tolist() == [[2.0, 0.0, 4.0, 0.0]]


def test_a_hole_that_is_a_step_costs_its_discount_in_gae() -> None:
    # gamma = lam = 1/2. Skipped: delta_2 = 4 - 2 = 2, delta_0 = 1 - 1 = 0, A_0 = 2/4.
    # As a step: delta_1 = 1, A_1 = 1 + 2/4 = 3/2, delta_0 = -1, A_0 = -1 + 3/8.
    rewards_BT = torch.tensor([[0.0, NAN, 4.0]], dtype=torch.float64)
    values_BT = torch.tensor([[1.0, NAN, 2.0]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, False, True]])
    skipped, _ = gae(rewards_BT, values_BT, mask_BT, gamma=0.5, lam=0.5)
    assert skipped.tolist() == [[0.5, 0.0, 2.0]]
    stepped, returns = gae(rewards_BT, values_BT, mask_BT, gamma=0.5, lam=0.5, holes="step")
    assert stepped.tolist() == [[-0.625, 0.0, 2.0]]
    assert returns.tolist() == [[0.375, 0.0, 4.0]]


def test_the_sets_of_names() -> None:
    assert set(USUAL_WHITENING) == set(ADVANTAGES)
    assert set(ADVANTAGES) > NEEDS_CRITIC | NEEDS_GROUPS
    assert not NEEDS_CRITIC & NEEDS_GROUPS


def test_refuses() -> None:
    for options, message in (
        ({"values_BT": KL_BT}, "values_BT must be None for 'rloo', got a tensor"),
        ({"groups_B": None}, "groups_B must be given for 'rloo'"),
        ({"group_eps": -1.0}, "group_eps must be at least 0"),
        ({"clip_baselined": (1.0, -1.0)}, "low < high must hold"),
    ):
        with pytest.raises(ValueError, match=message):
            run("rloo", **options)
    with pytest.raises(ValueError, match="values_BT must be given for 'gae', got None"):
        run("gae")
    with pytest.raises(ValueError, match=r"gamma must lie in 0 \.\. 1"):
        run("reinforce", gamma=2.0)
    for options in (
        {"whitening": "meen"},
        {"kl_placement": "tokens"},
        {"single": "drop"},
        {"holes": "skips"},
        {"whitening": "mean", "whiten_floor": "max"},
    ):
        with pytest.raises(ConfigError, match="must be one of"):
            run("rloo", **options)
    with pytest.raises(ConfigError, match="did you mean 'rloo'"):
        run("rlooo")
