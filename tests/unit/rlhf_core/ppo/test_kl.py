from __future__ import annotations

import math

import pytest
import torch

from rlhf_core.errors import ConfigError
from rlhf_core.ppo import LOG_RATIO_BOUND, estimate, k1, k2, k3

# d = log pi - log pi_ref = log 2 and -log 2.
LOGPROBS_BT = torch.tensor([[math.log(0.5), math.log(0.25)]], dtype=torch.float64)
REF_BT = torch.tensor([[math.log(0.25), math.log(0.5)]], dtype=torch.float64)


def test_by_hand() -> None:
    log2 = 0.6931471805599453
    assert k1(LOGPROBS_BT, REF_BT)[0].tolist() == pytest.approx([log2, -log2])
    assert k2(LOGPROBS_BT, REF_BT)[0].tolist() == pytest.approx([log2**2 / 2] * 2)
    # 1/2 - 1 + log 2 and 2 - 1 - log 2.
    assert k3(LOGPROBS_BT, REF_BT)[0].tolist() == pytest.approx([log2 - 0.5, 1 - log2])


def test_k1_and_k3_are_unbiased_over_a_whole_vocabulary() -> None:
    policy_V = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    ref_V = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    exact = math.fsum(p * math.log(p / q) for p, q in zip(policy_V, ref_V, strict=True))
    for estimator in (k1, k3):
        tokens_1V = estimator(policy_V.log().unsqueeze(0), ref_V.log().unsqueeze(0))
        assert (policy_V * tokens_1V[0]).sum().item() == pytest.approx(exact, abs=1e-12)


def test_gradients_by_hand() -> None:
    # d k1 = 1, d k2 = d, d k3 = 1 - e^-d; at d = log 2: 1, log 2, 1/2.
    for estimator, expected in ((k1, 1.0), (k2, math.log(2.0)), (k3, 0.5)):
        logprobs_BT = LOGPROBS_BT.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(estimator(logprobs_BT, REF_BT)[0, 0], logprobs_BT)
        assert gradient[0].tolist() == pytest.approx([expected, 0.0])


def test_k3_is_never_negative_near_zero_and_finite_far_away() -> None:
    near_BT = torch.linspace(-1e-3, 1e-3, 20001, dtype=torch.float32).unsqueeze(0)
    assert k3(near_BT, torch.zeros_like(near_BT)).min().item() >= 0.0
    far_BT = torch.tensor([[-1000.0, -25.0]], dtype=torch.float32)
    bound = math.expm1(LOG_RATIO_BOUND) - LOG_RATIO_BOUND
    assert k3(far_BT, torch.zeros_like(far_BT))[0].tolist() == pytest.approx([bound, bound])
    assert k3(-far_BT, torch.zeros_like(far_BT))[0].tolist() == pytest.approx([999.0, 24.0])


def test_half_precision_is_subtracted_in_float32() -> None:
    half_BT = torch.tensor([[-1.0]], dtype=torch.bfloat16)
    ref_BT = torch.tensor([[-1.0 - 2**-10]], dtype=torch.float32)
    assert k1(half_BT, ref_BT).item() == 2**-10


def test_estimate_by_name() -> None:
    for name, estimator in (("k1", k1), ("k2", k2), ("k3", k3)):
        assert torch.equal(estimate(name, LOGPROBS_BT, REF_BT), estimator(LOGPROBS_BT, REF_BT))
    with pytest.raises(ConfigError, match=r"one of \['k1', 'k2', 'k3'\], got 'k4'; use one"):
        estimate("k4", LOGPROBS_BT, REF_BT)
    with pytest.raises(ValueError, match="ref_logprobs_BT must have the shape of logprobs_BT"):
        k1(LOGPROBS_BT, REF_BT[:, :1])
