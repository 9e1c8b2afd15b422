"""Log-probabilities of the sampled tokens and entropy of the policy, from logits.

B sequences, T response tokens, V vocabulary. ``logits_BTV[b, t]`` predicts ``tokens_BT[b, t]``: the
caller has shifted already. Pass the temperature that was used for sampling, or the ratio of the
first update is not 1. Everything is computed in float32, or in float64 for float64 logits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlhf_core.ppo.checks import check_same_shape, check_shape, statistic_dtype


def token_logprobs(logits_BTV: Tensor, tokens_BT: Tensor, *, temperature: float = 1.0) -> Tensor:
    r"""Log-probability of each token, $\log \mathrm{softmax}(z_{bt} / \tau)[y_{bt}]$.

    Args:
        logits_BTV: Logits $z$, [B, T, V], any float dtype.
        tokens_BT: Token ids $y$, [B, T], int64; padding needs valid ids too.
        temperature: Sampling temperature $\tau$, above 0.

    Returns:
        [B, T].
    """
    _check(logits_BTV, tokens_BT)
    return _gather(_log_softmax(logits_BTV, temperature), tokens_BT)


def entropy(logits_BTV: Tensor, *, temperature: float = 1.0) -> Tensor:
    r"""Entropy of the next-token distribution, $-\sum_v p_{btv} \log p_{btv}$, in nats.

    Args:
        logits_BTV: Logits, [B, T, V]; -inf marks a token that cannot be drawn and adds nothing.
        temperature: Sampling temperature, above 0.

    Returns:
        [B, T].
    """
    check_shape("logits_BTV", logits_BTV, "BTV")
    return _entropy(_log_softmax(logits_BTV, temperature))


def token_logprobs_and_entropy(
    logits_BTV: Tensor,
    tokens_BT: Tensor,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = True,
) -> tuple[Tensor, Tensor]:
    """Both of the above from one log-softmax.

    Args:
        logits_BTV: Logits, [B, T, V].
        tokens_BT: Token ids, [B, T], int64.
        temperature: Sampling temperature, above 0.
        entropy_gradient: False detaches the entropy, which saves time and memory where it is only
            logged.

    Returns:
        Log-probabilities and entropy, each [B, T].
    """
    _check(logits_BTV, tokens_BT)
    logprobs_BTV = _log_softmax(logits_BTV, temperature)
    for_entropy_BTV = logprobs_BTV if entropy_gradient else logprobs_BTV.detach()
    return _gather(logprobs_BTV, tokens_BT), _entropy(for_entropy_BTV)


def _check(logits_BTV: Tensor, tokens_BT: Tensor) -> None:
    check_shape("logits_BTV", logits_BTV, "BTV")
    check_same_shape(logits_BT=logits_BTV[..., 0], tokens_BT=tokens_BT)


def _log_softmax(logits_BTV: Tensor, temperature: float) -> Tensor:
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"temperature must be finite and above 0, got {temperature!r}; "
            "use a small positive value for nearly greedy sampling"
        )
    scaled_BTV = logits_BTV.to(statistic_dtype(logits_BTV))
    if temperature != 1.0:
        scaled_BTV = scaled_BTV / temperature
    return torch.log_softmax(scaled_BTV, dim=-1)


def _gather(logprobs_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    return logprobs_BTV.gather(-1, tokens_BT.unsqueeze(-1)).squeeze(-1)


def _entropy(logprobs_BTV: Tensor) -> Tensor:
    # 0 * -inf is NaN, in the value and in the gradient; the lowest finite number gives 0 in both.
    finite_BTV = logprobs_BTV.clamp(min=torch.finfo(logprobs_BTV.dtype).min)
    return -(finite_BTV.exp() * finite_BTV).sum(-1)
