from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlhf_core.ppo import entropy, token_logprobs, token_logprobs_and_entropy


def slow(logits_BTV: Tensor, tokens_BT: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies from the definition, one token at a time, in float64."""
    logprobs_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64)
    entropy_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64)
    for b, t in ((b, t) for b in range(tokens_BT.shape[0]) for t in range(tokens_BT.shape[1])):
        z = [v / tau for v in logits_BTV[b, t].double().tolist()]
        norm = math.fsum(math.exp(v) for v in z)
        p = [math.exp(v) / norm for v in z]
        logprobs_BT[b, t] = math.log(p[int(tokens_BT[b, t])])
        entropy_BT[b, t] = -math.fsum(q * math.log(q) for q in p if q > 0)
    return logprobs_BT, entropy_BT


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits_BTV = torch.randn(3, 4, 7, generator=generator, dtype=torch.float64).mul(3).to(dtype)
    return logits_BTV, torch.randint(0, 7, (3, 4), generator=generator)


def test_by_hand() -> None:
    # Odds 1 : 3 give 1/4 and 3/4; at temperature 1/2 odds are squared, 1 : 9.
    logits_BTV = torch.tensor([[[0.0, math.log(3.0)]]], dtype=torch.float64)
    first_BT = torch.tensor([[0]])
    assert token_logprobs(logits_BTV, first_BT).item() == pytest.approx(math.log(0.25))
    cold = token_logprobs(logits_BTV, first_BT, temperature=0.5)
    assert cold.item() == pytest.approx(math.log(0.1))
    # -(1/4 log 1/4 + 3/4 log 3/4) = 0.5623351.
    assert entropy(logits_BTV).item() == pytest.approx(0.5623351, abs=1e-7)


@pytest.mark.parametrize("tau", [0.7, 1.0, 1.3])
def test_against_the_definition(tau: float) -> None:
    logits_BTV, tokens_BT = batch()
    logprobs_BT, entropy_BT = token_logprobs_and_entropy(logits_BTV, tokens_BT, temperature=tau)
    expected_logprobs_BT, expected_entropy_BT = slow(logits_BTV, tokens_BT, tau)
    torch.testing.assert_close(logprobs_BT, expected_logprobs_BT, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy_BT, expected_entropy_BT, rtol=1e-12, atol=1e-12)
    assert torch.equal(token_logprobs(logits_BTV, tokens_BT, temperature=tau), logprobs_BT)
    assert torch.equal(entropy(logits_BTV, temperature=tau), entropy_BT)


def test_gradients() -> None:
    # d log p_y / d z_v = ([v = y] - p_v) / tau and d H / d z_v = -p_v (log p_v + H) / tau.
    tau = 0.7
    logits_BTV, tokens_BT = batch()
    logits_BTV.requires_grad_()
    logprobs_BT, entropy_BT = token_logprobs_and_entropy(logits_BTV, tokens_BT, temperature=tau)
    (by_logprobs,) = torch.autograd.grad(logprobs_BT.sum(), logits_BTV, retain_graph=True)
    (by_entropy,) = torch.autograd.grad(entropy_BT.sum(), logits_BTV)
    with torch.no_grad():
        p_BTV = torch.exp(logits_BTV / tau) / torch.exp(logits_BTV / tau).sum(-1, keepdim=True)
        one_hot_BTV = torch.nn.functional.one_hot(tokens_BT, 7)
        expected = -p_BTV * (p_BTV.log() + entropy_BT.unsqueeze(-1)) / tau
    torch.testing.assert_close(by_logprobs, (one_hot_BTV - p_BTV) / tau, rtol=0, atol=1e-12)
    torch.testing.assert_close(by_entropy, expected, rtol=0, atol=1e-12)


def test_entropy_can_be_detached() -> None:
    logits_BTV, tokens_BT = batch()
    logits_BTV.requires_grad_()
    logprobs_BT, entropy_BT = token_logprobs_and_entropy(
        logits_BTV, tokens_BT, entropy_gradient=False
    )
    assert logprobs_BT.requires_grad
    assert not entropy_BT.requires_grad


def test_bfloat16_logits_are_computed_in_float32() -> None:
    logits_BTV, tokens_BT = batch(torch.bfloat16)
    logprobs_BT, entropy_BT = token_logprobs_and_entropy(logits_BTV, tokens_BT, temperature=0.7)
    assert logprobs_BT.dtype == entropy_BT.dtype == torch.float32
    expected_logprobs_BT, expected_entropy_BT = slow(logits_BTV, tokens_BT, 0.7)
    torch.testing.assert_close(logprobs_BT.double(), expected_logprobs_BT, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy_BT.double(), expected_entropy_BT, rtol=1e-5, atol=1e-5)


def test_extreme_and_forbidden_logits_stay_finite() -> None:
    logits_BTV = torch.tensor([[[1e4, -1e4, 0.0], [-math.inf, 0.0, 0.0]]], requires_grad=True)
    tokens_BT = torch.tensor([[1, 2]])
    logprobs_BT, entropy_BT = token_logprobs_and_entropy(logits_BTV, tokens_BT)
    assert logprobs_BT[0].tolist() == pytest.approx([-2e4, math.log(0.5)])
    assert entropy_BT[0].tolist() == pytest.approx([0.0, math.log(2.0)])
    (logprobs_BT.sum() + entropy_BT.sum()).backward()
    assert logits_BTV.grad is not None
    assert torch.isfinite(logits_BTV.grad).all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_refuses_temperature(temperature: float) -> None:
    logits_BTV, tokens_BT = batch()
    with pytest.raises(ValueError, match="temperature must be finite and above 0"):
        token_logprobs(logits_BTV, tokens_BT, temperature=temperature)


def test_refuses_shapes() -> None:
    logits_BTV, tokens_BT = batch()
    with pytest.raises(ValueError, match="tokens_BT must have the shape of logits_BT"):
        token_logprobs(logits_BTV, tokens_BT[:, 1:])
    with pytest.raises(ValueError, match=r"logits_BTV must have shape \[B, T, V\]"):
        entropy(logits_BTV[0])
