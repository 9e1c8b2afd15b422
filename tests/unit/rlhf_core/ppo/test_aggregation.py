from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_core.errors import ConfigError
from rlhf_core.ppo import AGGREGATIONS, Normalizer, aggregate, entropy_bonus, value_loss

# Sums 6 over 3 tokens, 8 over 1 token, and a row that is no sequence.
X_BT = torch.tensor([[1.0, 2.0, 3.0], [math.nan, 8.0, 1.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
MASK_BT = torch.tensor([[True, True, True], [False, True, False], [False, False, False]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 14 / 4),
        ({"aggregation": "sequence_mean_token_mean"}, (2 + 8) / 2),
        ({"aggregation": "sequence_sum"}, 14 / 2),
        ({"aggregation": "sequence_sum", "constant_length": 10.0}, 14 / 20),
        ({"normalizer": 28}, 0.5),
        ({"normalizer": Normalizer(28, 5)}, 0.5),
        ({"normalizer": Normalizer(28, 5, replicas=4)}, 2.0),
        ({"aggregation": "sequence_mean_token_mean", "normalizer": Normalizer(28, 5)}, 2.0),
        ({"aggregation": "sequence_sum", "normalizer": Normalizer(28, 7, replicas=2)}, 4.0),
        ({"normalizer": Normalizer(0, 0)}, 14.0),
    ],
)
def test_by_hand(options: dict[str, Any], expected: float) -> None:
    assert aggregate(X_BT, MASK_BT, **options).item() == pytest.approx(expected, abs=1e-15)


def slow(x_BT: Tensor, mask_BT: Tensor, aggregation: str, length: float) -> float:
    rows = [
        [float(x_BT[b, t]) for t in range(mask_BT.shape[1]) if mask_BT[b, t]]
        for b in range(mask_BT.shape[0])
    ]
    rows = [row for row in rows if row]
    if aggregation == "token_mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if aggregation == "sequence_sum":
        return sum(sum(row) / length for row in rows) / len(rows)
    return sum(sum(row) / len(row) for row in rows) / len(rows)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_against_the_definition(aggregation: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    x_BT = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    mask_BT = torch.rand(7, 5, generator=generator) < 0.5
    length = 9.0 if aggregation == "sequence_sum" else None
    out = aggregate(x_BT, mask_BT, aggregation=aggregation, constant_length=length)
    assert out.item() == pytest.approx(slow(x_BT, mask_BT, aggregation, 9.0), abs=1e-13)


def test_normalizers_of_parts_add_up() -> None:
    whole = Normalizer.of(MASK_BT)
    assert whole == Normalizer(tokens=4.0, sequences=2.0)
    assert Normalizer.of(MASK_BT[:1]) + Normalizer.of(MASK_BT[1:]) == whole
    with pytest.raises(ValueError, match="replicas must agree"):
        whole + Normalizer(1, 1, replicas=2)


def test_value_loss_and_entropy_follow_the_aggregation() -> None:
    zeros_BT = torch.zeros_like(X_BT)
    loss, stats = value_loss(X_BT, zeros_BT, zeros_BT, MASK_BT, aggregation="sequence_sum")
    assert loss.item() == pytest.approx(0.5 * (14 + 64) / 2)
    # The statistics are over tokens whatever the aggregation.
    assert stats.metrics()["loss"] == pytest.approx(0.5 * 78 / 4)
    bonus, _ = entropy_bonus(X_BT, MASK_BT, coef=0.5, aggregation="sequence_mean_token_mean")
    assert bonus.item() == pytest.approx(-0.5 * 5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_nothing_that_counts_gives_zero(aggregation: Any) -> None:
    assert aggregate(X_BT, torch.zeros_like(MASK_BT), aggregation=aggregation).item() == 0.0


def test_refuses() -> None:
    with pytest.raises(ConfigError, match="did you mean 'token_mean'"):
        aggregate(X_BT, MASK_BT, aggregation="token-mean")  # type: ignore[arg-type]
    for options, message in (
        ({"constant_length": 5.0}, "belongs to 'sequence_sum'"),
        ({"aggregation": "sequence_sum", "constant_length": 0.0}, "constant_length must be above"),
        ({"aggregation": "sequence_sum", "normalizer": 4.0}, "normalizer must be a Normalizer"),
        ({"normalizer": 0}, "normalizer must be above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            aggregate(X_BT, MASK_BT, **options)
    for counts in ((-1, 1), (1, -1), (math.nan, 1)):
        with pytest.raises(ValueError, match="tokens and sequences must be at least 0"):
            Normalizer(*counts)
