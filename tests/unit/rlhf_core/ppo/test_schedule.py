from __future__ import annotations

import math

import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.ppo import lr_scale


@pytest.mark.parametrize(
    ("kind", "step", "scale"),
    [
        # horizon 14, warmup 4, min_ratio 0.1: warm-up in fifths, then ten steps of decay.
        ("constant", 0, 0.2),
        ("constant", 3, 0.8),
        ("constant", 4, 1.0),
        ("constant", 999, 1.0),
        ("linear", 1, 0.4),
        ("linear", 4, 1.0),
        ("linear", 9, 0.55),  # half way between 1 and 0.1
        ("linear", 14, 0.1),
        ("linear", 999, 0.1),
        ("cosine", 2, 0.6),
        ("cosine", 4, 1.0),
        ("cosine", 9, 0.55),
        ("cosine", 6.5, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2),  # a quarter of the way, cos 45 deg
        ("cosine", 999, 0.1),
    ],
)
def test_by_hand(kind: str, step: float, scale: float) -> None:
    found = lr_scale(kind, step, horizon=14, warmup=4, min_ratio=0.1)
    assert found == pytest.approx(scale, abs=1e-12)


def test_without_warmup_the_first_step_is_full() -> None:
    for kind in ("constant", "linear", "cosine"):
        assert lr_scale(kind, 0, horizon=10) == 1.0
    assert lr_scale("linear", 10, horizon=10) == 0.0


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_never_rises_after_warmup_and_stays_in_range(kind: str) -> None:
    scales = [lr_scale(kind, s, horizon=30, warmup=5, min_ratio=0.2) for s in range(60)]
    assert scales[:6] == sorted(scales[:6])
    assert scales[5:] == sorted(scales[5:], reverse=True)
    assert min(scales[5:]) == pytest.approx(0.2)
    assert max(scales) == 1.0


def test_refuses_everything_together() -> None:
    with pytest.raises(ConfigError) as caught:
        lr_scale("cosin", -1, horizon=5, warmup=5, min_ratio=2)
    assert len(caught.value.problems) == 4
    assert "did you mean 'cosine'" in caught.value.problems[0]
    with pytest.raises(ConfigError, match="0 <= warmup < horizon"):
        lr_scale("linear", 0, horizon=0)
