"""KL as a term of the loss, its bounds, and the mean that a controller is given."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlhf_core.errors import ConfigError
from rlhf_core.ppo import estimate, kl_loss, kl_surrogate, mean_kl, one_past

LOG2 = math.log(2.0)
REF_BT = torch.tensor([[-2.0, -2.0, math.nan]], dtype=torch.float64)
GAP_BT = torch.tensor([[LOG2, -LOG2, math.inf]], dtype=torch.float64)
MASK_BT = torch.tensor([[True, True, False]])


@pytest.mark.parametrize(
    ("estimator", "value", "pathwise"),
    [
        ("k1", [LOG2, -LOG2], [1.0, 1.0]),
        ("k2", [LOG2**2 / 2] * 2, [LOG2, -LOG2]),
        ("k3", [LOG2 - 0.5, 1 - LOG2], [0.5, -1.0]),
    ],
)
def test_value_and_gradient_by_hand(
    estimator: Any, value: list[float], pathwise: list[float]
) -> None:
    for gradient, expected in (("pathwise", pathwise), ("straight_through", [LOG2, -LOG2])):
        logprobs_BT = (REF_BT + GAP_BT).requires_grad_()
        loss, stats = kl_loss(
            logprobs_BT,
            REF_BT,
            MASK_BT,
            coef=0.5,
            estimator=estimator,
            gradient=gradient,  # type: ignore[arg-type]
        )
        assert loss.item() == pytest.approx(0.5 * sum(value) / 2)
        assert stats.metrics() == pytest.approx({"kl": sum(value) / 2})
        (gradient_BT,) = torch.autograd.grad(loss, logprobs_BT)
        assert gradient_BT[0].tolist() == pytest.approx([0.25 * g for g in expected] + [0.0])


def test_old_logprobs_weigh_the_gradient_and_not_the_value() -> None:
    logprobs_BT = (REF_BT + GAP_BT).requires_grad_()
    # Weights 3 and 1000, cut at 5.
    old_BT = logprobs_BT.detach() - torch.tensor([[3.0, 1000.0, 1.0]]).log()
    loss, _ = kl_loss(
        logprobs_BT, REF_BT, MASK_BT, coef=1.0, old_logprobs_BT=old_BT, weight_cap=5.0
    )
    assert loss.item() == pytest.approx((LOG2 - 0.5 + 1 - LOG2) / 2)
    (gradient_BT,) = torch.autograd.grad(loss, logprobs_BT)
    assert gradient_BT[0].tolist() == pytest.approx([1.5 * LOG2, -2.5 * LOG2, 0.0])


@pytest.mark.parametrize("gradient", ["pathwise", "straight_through"])
def test_reference_and_old_policy_receive_no_gradient(gradient: Any) -> None:
    logprobs_BT, ref_BT, old_BT = torch.randn(3, 1, 2).requires_grad_().unbind(0)
    old = {} if gradient == "pathwise" else {"old_logprobs_BT": old_BT}
    loss, _ = kl_loss(logprobs_BT, ref_BT, torch.ones(1, 2).bool(), coef=1.0, **old)
    others = torch.autograd.grad(loss, [ref_BT, old_BT], allow_unused=True)
    assert others == (None, None)


def test_the_gradient_is_that_of_the_divergence() -> None:
    # Over a whole vocabulary, tokens drawn from the policy itself or from an older one.
    generator = torch.Generator().manual_seed(0)
    ref_V, old_V = torch.randn(2, 5, generator=generator, dtype=torch.float64).log_softmax(-1)
    logits_V = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
    policy_V = logits_V.log_softmax(-1)
    exact = (policy_V.exp() * (policy_V - ref_V)).sum()
    (expected_V,) = torch.autograd.grad(exact, logits_V, retain_graph=True)
    for drawn_V, given in ((policy_V.detach(), None), (old_V, old_V)):
        for estimator in ("k1", "k2", "k3"):
            kl_1V = kl_surrogate(
                estimator,
                policy_V.unsqueeze(0),
                ref_V.unsqueeze(0),
                old_logprobs_BT=None if given is None else given.unsqueeze(0),
                weight_cap=1e9,
            )
            total = (drawn_V.exp() * kl_1V[0]).sum()
            (gradient_V,) = torch.autograd.grad(total, logits_V, retain_graph=True)
            torch.testing.assert_close(gradient_V, expected_V, rtol=1e-10, atol=1e-12)


def test_bounds_by_hand() -> None:
    gaps_BT = torch.tensor([[25.0, -25.0, 3.0]], dtype=torch.float64)
    zeros_BT = torch.zeros_like(gaps_BT)
    unbounded = estimate("k3", gaps_BT, zeros_BT, bound=math.inf)
    assert unbounded[0].tolist() == pytest.approx([24.0, math.exp(25) - 26, math.exp(-3) + 2])
    clamped = estimate("k3", gaps_BT, zeros_BT, bound=10.0, value_clamp=10.0)
    assert clamped[0].tolist() == pytest.approx([10.0, 10.0, math.exp(-3) + 2])
    assert estimate("k1", gaps_BT, zeros_BT, value_clamp=10.0)[0].tolist() == [10.0, -10.0, 3.0]
    assert estimate("k2", gaps_BT, zeros_BT, value_clamp=10.0)[0].tolist() == [10.0, 10.0, 4.5]
    assert estimate("k2", gaps_BT, zeros_BT)[0].tolist() == [312.5, 312.5, 4.5]


def test_mean_kl_by_hand() -> None:
    # Sums 6 over 3 tokens, 8 over 1 token, nothing over none.
    kl_BT = torch.tensor([[1.0, 2.0, 3.0], [8.0, math.nan, 0.0], [math.inf] * 3])
    mask_BT = torch.tensor([[True] * 3, [True, False, False], [False] * 3])
    assert mean_kl(kl_BT, mask_BT, per="token").item() == pytest.approx(14 / 4)
    assert mean_kl(kl_BT, mask_BT, per="response").item() == pytest.approx(14 / 3)
    assert mean_kl(kl_BT, mask_BT, per="response_token").item() == pytest.approx(10 / 3)
    with pytest.raises(ConfigError, match="per must be one of"):
        mean_kl(kl_BT, mask_BT, per="sequence")  # type: ignore[arg-type]


def test_one_past_by_hand() -> None:
    mask_BT = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0]]).bool()
    assert one_past(mask_BT).int().tolist() == [
        [1, 1, 1, 0],
        [0, 1, 0, 1],
        [1, 0, 0, 0],
        [1, 0, 1, 1],
    ]


def test_refuses() -> None:
    x_BT = torch.ones(1, 2)
    with pytest.raises(ConfigError, match="KL gradient must be one of"):
        kl_surrogate("k3", x_BT, x_BT, gradient="unbiased")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="old_logprobs_BT must be None"):
        kl_surrogate("k3", x_BT, x_BT, gradient="pathwise", old_logprobs_BT=x_BT)
    for options, message in (
        ({"bound": 0.0}, "bound must be above 0"),
        ({"value_clamp": -1.0}, "value_clamp must be above 0"),
        ({"weight_cap": 0.0}, "weight_cap must be above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            kl_surrogate("k3", x_BT, x_BT, **options)
    with pytest.raises(ValueError, match="old_logprobs_BT must have the shape of mask_BT"):
        kl_loss(x_BT, x_BT, x_BT.bool(), coef=1.0, old_logprobs_BT=x_BT[:, :1])
