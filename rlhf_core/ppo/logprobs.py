"""Log-probabilities of the sampled tokens and entropy of the policy, from logits.

B sequences, T response tokens, V vocabulary. ``logits_BTV[b, t]`` predicts ``tokens_BT[b, t]``: the
caller has shifted already. Pass the temperature that was used for sampling, or the ratio of the
first update is not 1. Everything is computed in float32, or in float64 for float64 logits.
"""

from __future__ import annotations

import math
from typing import Any

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
    return token_logprobs_and_entropy(logits_BTV, tokens_BT, temperature=temperature)[0]


def entropy(logits_BTV: Tensor, *, temperature: float = 1.0) -> Tensor:
    r"""Entropy of the next-token distribution, $-\sum_v p_{btv} \log p_{btv}$, in nats.

    Args:
        logits_BTV: Logits, [B, T, V]; -inf marks a token that cannot be drawn and adds nothing.
        temperature: Sampling temperature, above 0.

    Returns:
        [B, T].
    """
    check_shape("logits_BTV", logits_BTV, "BTV")
    any_BT = torch.zeros(logits_BTV.shape[:-1], dtype=torch.int64, device=logits_BTV.device)
    return token_logprobs_and_entropy(logits_BTV, any_BT, temperature=temperature)[1]


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
    _check_temperature(temperature)
    made: tuple[Tensor, Tensor] = _LogprobsAndEntropy.apply(  # type: ignore[no-untyped-call]
        logits_BTV, tokens_BT, temperature
    )
    logprobs_BT, entropy_BT = made
    return logprobs_BT, entropy_BT if entropy_gradient else entropy_BT.detach()


class _LogprobsAndEntropy(torch.autograd.Function):
    r"""Both from one softmax, which is all that is kept for the gradient.

    With $x = z / \tau - \max$ and $Z = \sum \exp x$, the largest probability is $1 / Z$. Then
    $\log p = x - \log Z$ and $H = \log Z - \sum p x$, two terms of one sign. In the gradient by z / tau
    the log-probability adds $1_{v = y} - p_v$ and the entropy $-p_v (\log p_v + H)$.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_BTV: Tensor, tokens_BT: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        scaled_BTV = logits_BTV.to(statistic_dtype(logits_BTV))
        if temperature != 1.0:
            scaled_BTV = scaled_BTV / temperature
        x_BTV = scaled_BTV - scaled_BTV.amax(-1, keepdim=True)
        # 0 * -inf is NaN; the lowest finite number gives 0.
        x_BTV.clamp_(min=torch.finfo(x_BTV.dtype).min)
        probs_BTV = x_BTV.softmax(-1)
        log_total_BT = -probs_BTV.amax(-1).log()
        entropy_BT = log_total_BT - torch.linalg.vecdot(probs_BTV, x_BTV)
        logprobs_BT = _gather(x_BTV, tokens_BT) - log_total_BT
        ctx.save_for_backward(probs_BTV, tokens_BT, entropy_BT)
        ctx.temperature, ctx.dtype = temperature, logits_BTV.dtype
        ctx.set_materialize_grads(False)
        return logprobs_BT, entropy_BT

    @staticmethod
    def backward(
        ctx: Any, into_logprobs_BT: Tensor | None, into_entropy_BT: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        probs_BTV, tokens_BT, entropy_BT = ctx.saved_tensors
        if into_logprobs_BT is None and into_entropy_BT is None:
            return None, None, None
        zero_BT = torch.zeros_like(entropy_BT)
        chosen_BT = zero_BT if into_logprobs_BT is None else into_logprobs_BT / ctx.temperature
        grad_BTV = probs_BTV * -chosen_BT.unsqueeze(-1)
        if into_entropy_BT is not None:
            spread_BTV = torch.xlogy(probs_BTV, probs_BTV).addcmul_(
                probs_BTV, entropy_BT.unsqueeze(-1)
            )
            grad_BTV.addcmul_(spread_BTV, (-into_entropy_BT / ctx.temperature).unsqueeze(-1))
        grad_BTV.scatter_add_(-1, tokens_BT.unsqueeze(-1), chosen_BT.unsqueeze(-1))
        return grad_BTV.to(ctx.dtype), None, None


def _check(logits_BTV: Tensor, tokens_BT: Tensor) -> None:
    check_shape("logits_BTV", logits_BTV, "BTV")
    check_same_shape(logits_BT=logits_BTV[..., 0], tokens_BT=tokens_BT)


def _check_temperature(temperature: float) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"temperature must be finite and above 0, got {temperature!r}; "
            "use a small positive value for nearly greedy sampling"
        )


def _gather(logprobs_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    return logprobs_BTV.gather(-1, tokens_BT.unsqueeze(-1)).squeeze(-1)
