from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlhf_core.errors import ConfigError
from rlhf_core.ppo import LOG_RATIO_BOUND, correct

NAN = math.nan
# Ratios old / rollout: 4, 1, 1/4 (geometric mean 1) and 4, 2, padding (geometric mean sqrt 8).
RATIO_BT = torch.tensor([[4.0, 1.0, 0.25], [4.0, 2.0, NAN]], dtype=torch.float64)
MASK_BT = torch.tensor([[True, True, True], [True, True, False]])
ROLLOUT_BT = torch.tensor([[-1.0, -2.0, -3.0], [-5.0, -6.0, NAN]], dtype=torch.float64)
OLD_BT = ROLLOUT_BT + RATIO_BT.log()


@pytest.mark.parametrize(
    ("kind", "options", "weights", "kept"),
    [
        ("none", {}, [[1, 1, 1], [1, 1, 0]], [[1, 1, 1], [1, 1, 0]]),
        ("tis", {"high": 3.0}, [[3, 1, 0.25], [3, 2, 0]], [[1, 1, 1], [1, 1, 0]]),
        ("tis", {"low": 0.5, "high": 3.0}, [[3, 1, 0.5], [3, 2, 0]], [[1, 1, 1], [1, 1, 0]]),
        ("icepop", {"low": 0.5, "high": 3.0}, [[0, 1, 0], [0, 2, 0]], [[0, 1, 0], [0, 1, 0]]),
        ("icepop", {"high": 3.0}, [[0, 1, 0.25], [0, 2, 0]], [[0, 1, 1], [0, 1, 0]]),
        ("sequence_mask", {"high": 2.0}, [[4, 1, 0.25], [0, 0, 0]], [[1, 1, 1], [0, 0, 0]]),
        ("sequence_mask", {"low": 1.5, "high": 9.0}, [[0, 0, 0], [4, 2, 0]], [[0] * 3, [1, 1, 0]]),
        (
            "icepop",
            {"low": 0.5, "high": 3.0, "weigh_kept": False},
            [[0, 1, 0], [0, 1, 0]],
            [[0, 1, 0], [0, 1, 0]],
        ),
    ],
)
def test_weights_by_hand(
    kind: str, options: dict[str, Any], weights: list[list[float]], kept: list[list[int]]
) -> None:
    out = correct(kind, OLD_BT, ROLLOUT_BT, MASK_BT, **options)
    torch.testing.assert_close(out.weights_BT, torch.tensor(weights).double())
    assert out.kept_BT.int().tolist() == kept


def test_stats_by_hand() -> None:
    out = correct("icepop", OLD_BT, ROLLOUT_BT, MASK_BT, low=0.5, high=3.0)
    log2 = math.log(2.0)
    assert out.stats.metrics() == pytest.approx(
        {
            "weight_mean": 3 / 5,
            "weight_max": 2.0,
            "effective_share": 9 / (5 * 5),
            "rejected_share": 3 / 5,
            "rejected_sequence_share": 1.0,
            "below_share": 1 / 5,
            "above_share": 2 / 5,
            "abs_log_ratio": (2 + 2 + 2 + 1) * log2 / 5,
            "abs_log_ratio_max": 2 * log2,
            "kl_k1": -(2 - 2 + 2 + 1) * log2 / 5,
            "kl_k3": (4 + 1 + 0.25 + 4 + 2 - 5 - 3 * log2) / 5,
        }
    )


@pytest.mark.parametrize("kind", ["icepop", "sequence_mask"])
def test_bounds_are_part_of_the_band(kind: str) -> None:
    # A ratio of exactly 1 is kept by bands that begin or end there.
    for band in ({"low": 1.0, "high": 2.0}, {"low": 0.5, "high": 1.0}):
        out = correct(kind, ROLLOUT_BT, ROLLOUT_BT, MASK_BT, **band)
        assert torch.equal(out.kept_BT, MASK_BT)
    assert not correct(kind, ROLLOUT_BT, ROLLOUT_BT, MASK_BT, high=0.999).kept_BT.any()


def test_far_ratios_stay_finite_and_no_gradient_flows() -> None:
    old_BT = torch.tensor([[900.0, -900.0]], requires_grad=True)
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    out = correct("sequence_mask", old_BT, torch.zeros(1, 2), mask_BT)
    assert out.weights_BT.isfinite().all()
    assert not out.weights_BT.requires_grad
    assert out.weights_BT.max().item() == pytest.approx(math.exp(LOG_RATIO_BOUND), rel=1e-5)
    assert out.stats.metrics()["abs_log_ratio"] == 900.0


def test_nothing_that_counts_gives_zeros() -> None:
    out = correct("icepop", OLD_BT, ROLLOUT_BT, torch.zeros_like(MASK_BT))
    assert set(out.stats.metrics().values()) == {0.0}
    assert not out.weights_BT.any()


def test_refuses() -> None:
    with pytest.raises(ConfigError, match=r"correction must be one of .* did you mean 'icepop'"):
        correct("icepops", OLD_BT, ROLLOUT_BT, MASK_BT)
    for bounds in ({"low": 2.0, "high": 2.0}, {"low": -0.1}, {"high": math.nan}):
        with pytest.raises(ValueError, match="0 <= low < high must hold"):
            correct("tis", OLD_BT, ROLLOUT_BT, MASK_BT, **bounds)
