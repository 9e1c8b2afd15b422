from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.config import apply, resolve_trial
from rlhf_core.errors import CheckpointError, ConfigError
from rlhf_core.stream import RolloutStream, version_of
from rlhf_core.timing import imbalance


def test_versions_by_hand() -> None:
    # Delivered after every iteration; then after every second, one batch ahead.
    assert [version_of(batch, 1, 0) for batch in range(4)] == [0, 1, 2, 3]
    assert [version_of(batch, 1, 2) for batch in range(5)] == [0, 0, 0, 1, 2]
    assert [version_of(batch, 2, 1) for batch in range(7)] == [0, 0, 0, 2, 2, 4, 4]


@given(st.integers(0, 500), st.integers(1, 9), st.integers(0, 9))
def test_a_batch_is_never_sampled_with_weights_that_do_not_exist_yet(
    batch: int, interval: int, ahead: int
) -> None:
    version = version_of(batch, interval, ahead)
    # When the learner asks for batch - ahead it has finished that many iterations.
    assert version <= max(0, batch - ahead)
    assert version % interval == 0
    assert batch - version <= ahead + interval - 1
    assert version_of(batch + 1, interval, ahead) >= version


@given(st.integers(1, 6), st.integers(0, 12))
def test_the_bound_on_staleness_says_how_far_ahead(interval: int, bound: int) -> None:
    values = {"sync.mode": "async", "sync.interval": interval, "sync.max_staleness": bound}
    base = resolve_trial({}, "test")
    if bound < interval:
        with pytest.raises(ConfigError, match=r"sync.max_staleness must be at least"):
            apply(base, values)
        return
    config = apply(base, values)
    assert config.batches_ahead >= 1
    late = range(100, 100 + interval)
    assert max(b - version_of(b, interval, config.batches_ahead) for b in late) == bound


def test_what_a_transport_or_an_interval_cannot_do_is_refused() -> None:
    base = resolve_trial({}, "test")
    with pytest.raises(ConfigError, match=r"sync.transport 'collective' .*; use object_store"):
        apply(base, {"sync.mode": "async", "sync.transport": "collective"})
    with pytest.raises(ConfigError, match=r"at least 2 with sync.mode 'sync'"):
        apply(base, {"sync.interval": 3, "sync.max_staleness": 1})
    assert apply(base, {"sync.interval": 3, "sync.max_staleness": 2}).batches_ahead == 0


def test_waiting_batches_of_another_format_are_refused() -> None:
    nobody: Any = None
    stream = RolloutStream(nobody, nobody, nobody, nobody, nobody, ahead=0, interval=1, last=1)
    stream.batches = SimpleNamespace(chunks=lambda number, positions: [], load=None)  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match=r"wait for iteration 4 cannot be read: .*versions_B"):
        stream.restart(3, 3, {"3.0.versions_B": torch.zeros(1)})


def test_imbalance() -> None:
    # Mean 2, largest 3.
    assert imbalance([1.0, 3.0, 2.0]) == {"util/imbalance": 0.5}
    assert imbalance([2.0]) == imbalance([]) == imbalance([0.0, 0.0]) == {}
