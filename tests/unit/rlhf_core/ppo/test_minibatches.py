from __future__ import annotations

import pytest
import torch

from rlhf_core.errors import ConfigError
from rlhf_core.ppo import micro_batches, minibatch_indices


def test_every_epoch_is_a_fresh_partition() -> None:
    plan = minibatch_indices(12, 3, 4, seed=1)
    assert [[len(m) for m in epoch] for epoch in plan] == [[4, 4, 4]] * 4
    for epoch in plan:
        assert sorted(i for minibatch in epoch for i in minibatch) == list(range(12))
    assert len({str(epoch) for epoch in plan}) == 4
    assert plan[0] != [list(range(0, 4)), list(range(4, 8)), list(range(8, 12))]


def test_seed_decides_and_a_generator_advances() -> None:
    assert minibatch_indices(8, 2, 2, seed=7) == minibatch_indices(8, 2, 2, seed=7)
    assert minibatch_indices(8, 2, 2, seed=7) != minibatch_indices(8, 2, 2, seed=8)
    generator = torch.Generator().manual_seed(7)
    parts = [minibatch_indices(8, 2, 1, seed=generator) for _ in range(2)]
    assert parts[0] + parts[1] == minibatch_indices(8, 2, 2, seed=7)


def test_global_random_state_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    minibatch_indices(8, 2, 2, seed=7)
    assert torch.equal(before, torch.random.get_rng_state())


def test_refuses_what_does_not_divide() -> None:
    with pytest.raises(ConfigError, match="got 5 minibatches and 12 sequences; use 4 minibatches"):
        minibatch_indices(12, 5, 1, seed=0)
    with pytest.raises(ConfigError) as caught:
        minibatch_indices(0, 0, 0, seed=0)
    assert len(caught.value.problems) == 3


def test_micro_batches_by_hand() -> None:
    lengths = [3, 9, 5, 1, 5]
    # Longest first: 9 | 5 5 | 3 1, since 2 * 9, 3 * 5 and 2 * 3 compare with 12.
    assert micro_batches(lengths, max_tokens=12) == [[1], [2, 4], [0, 3]]
    assert micro_batches(lengths, max_sequences=2) == [[1, 2], [4, 0], [3]]
    assert micro_batches(lengths, max_tokens=15, max_sequences=2) == [[1], [2, 4], [0, 3]]
    assert micro_batches(lengths, max_tokens=15) == [[1], [2, 4, 0], [3]]
    assert micro_batches([], max_tokens=4) == []
    assert micro_batches([0, 0], max_tokens=1) == [[0, 1]]


@pytest.mark.parametrize(
    ("lengths", "bounds", "expected"),
    [
        ([1], {}, "set max_tokens or max_sequences"),
        ([1], {"max_tokens": 0}, "max_tokens must be at least 1"),
        ([1], {"max_sequences": 0}, "max_sequences must be at least 1"),
        ([1, -2], {"max_sequences": 1}, "lengths must not be negative, got -2"),
        ([4, 9], {"max_tokens": 8}, "got a sequence of 9 tokens and max_tokens=8"),
    ],
)
def test_micro_batches_refuse(lengths: list[int], bounds: dict[str, int], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        micro_batches(lengths, **bounds)
