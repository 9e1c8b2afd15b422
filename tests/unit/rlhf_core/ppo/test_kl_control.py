from __future__ import annotations

import math

import pytest

from rlhf_core.errors import ConfigError, DivergedError
from rlhf_core.ppo import KLController


def test_fixed_never_changes() -> None:
    controller = KLController(0.05)
    assert controller.update(1e9, 512) == controller
    assert controller.update(math.nan, 512).coef == 0.05


@pytest.mark.parametrize(
    ("kl", "coef"),
    [
        (6.0, 0.1),  # on target
        (6.6, 0.1 * (1 + 0.1 * 0.05)),  # 10 % above, 500 of 10000 episodes
        (60.0, 0.1 * (1 + 0.2 * 0.05)),  # clipped at +20 %
        (5.4, 0.1 * (1 - 0.1 * 0.05)),
        (0.0, 0.1 * (1 - 0.2 * 0.05)),  # clipped at -20 %
        (-3.0, 0.1 * (1 - 0.2 * 0.05)),
    ],
)
def test_adaptive_by_hand(kl: float, coef: float) -> None:
    before = KLController(0.1, target=6.0, horizon=10_000)
    after = before.update(kl, 500)
    assert after.coef == pytest.approx(coef, rel=1e-12)
    assert (after.target, after.horizon, before.coef) == (6.0, 10_000, 0.1)


def test_updates_compound() -> None:
    controller = KLController(0.1, target=1.0, horizon=1000)
    for _ in range(3):
        controller = controller.update(5.0, 100)
    assert controller.coef == pytest.approx(0.1 * 1.02**3, rel=1e-12)


def test_refuses_all_bad_settings_together() -> None:
    with pytest.raises(ConfigError) as caught:
        KLController(-0.1, target=0.0, horizon=math.inf)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_adaptive_refuses_a_kl_that_is_not_finite(kl: float) -> None:
    with pytest.raises(DivergedError, match="learner: kl is"):
        KLController(0.1, target=6.0).update(kl, 10)


def test_refuses_an_update_that_could_reach_zero() -> None:
    # 0.2 * 5000 / 1000 = 1 would take the whole coefficient.
    with pytest.raises(ConfigError, match="KL horizon must exceed a fifth"):
        KLController(0.1, target=6.0, horizon=1000).update(0.0, 5000)
    assert KLController(0.1, target=6.0, horizon=1000).update(0.0, 4000).coef > 0
