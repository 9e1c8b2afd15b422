r"""Per-token estimators of KL(policy || reference) from log-probabilities of sampled tokens.

After http://joschu.net/blog/kl-approx.html, with $d = \log \pi - \log \pi_{ref}$. As a penalty in
the reward k1 is unbiased; as a term of the loss k2 has the right gradient in expectation; k3 is
unbiased and never negative, hence good to log. Nothing is masked here: mask what you reduce.

Two bounds are options. ``bound`` limits the exponent of k3, which would overflow; ``value_clamp``
limits the value of any estimator and takes the gradient away beyond it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from rlhf_core.errors import ConfigError, nearest
from rlhf_core.ppo.checks import check_choice, check_same_shape, statistic_dtype

KLEstimator = Literal["k1", "k2", "k3"]

KLGradient = Literal["pathwise", "straight_through"]

GRADIENTS: tuple[KLGradient, ...] = ("pathwise", "straight_through")

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to this size before ``exp``, which overflows float32 from 89 on."""

WEIGHT_CAP = 10.0
"""Largest importance weight of a KL gradient."""


def k1(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """$d$: unbiased, noisy, negative for about half the tokens. Shapes [B, T]."""
    check_same_shape(logprobs_BT=logprobs_BT, ref_logprobs_BT=ref_logprobs_BT)
    dtype = statistic_dtype(logprobs_BT, ref_logprobs_BT)
    return logprobs_BT.to(dtype) - ref_logprobs_BT.to(dtype)


def k2(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """$d^2 / 2$: biased, little noise, never negative. Shapes [B, T]."""
    return 0.5 * k1(logprobs_BT, ref_logprobs_BT).square()


def k3(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, *, bound: float = LOG_RATIO_BOUND) -> Tensor:
    """$e^{-d} - 1 + d$: unbiased, little noise, never negative. Shapes [B, T].

    $d$ is bounded below at -``bound``; infinity removes the bound.
    """
    return excess(-k1(logprobs_BT, ref_logprobs_BT), bound=bound)


def excess(log_ratio_BT: Tensor, *, bound: float = LOG_RATIO_BOUND) -> Tensor:
    """$e^x - 1 - x$, never negative, for $x$ clamped from above at ``bound``."""
    bounded_BT = log_ratio_BT.clamp(max=bound)
    # Correctly rounded, expm1 leaves nothing negative; not every device rounds that well near 0.
    return (torch.expm1(bounded_BT) - bounded_BT).clamp(min=0)


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def estimate(
    name: str,
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    *,
    bound: float = LOG_RATIO_BOUND,
    value_clamp: float | None = None,
) -> Tensor:
    """The estimator ``name``, one of k1, k2, k3.

    Args:
        name: Estimator.
        logprobs_BT: Log-probabilities under the policy.
        ref_logprobs_BT: Log-probabilities under the reference.
        bound: Bound on -d in k3, above 0; infinity removes it.
        value_clamp: The value is clamped to +- this, above 0; None: never.

    Returns:
        [B, T].

    Raises:
        ConfigError: There is no such estimator.
        ValueError: A bound is not above 0.
    """
    if name not in ESTIMATORS:
        raise ConfigError(
            f"KL estimator must be one of {list(ESTIMATORS)}, got {name!r}"
            f"{nearest(name, ESTIMATORS) or '; use one of these'}"
        )
    for label, value in (("bound", bound), ("value_clamp", value_clamp)):
        if value is not None and not value > 0:
            raise ValueError(f"{label} must be above 0, got {value!r}; 20 is usual")
    if name == "k3":
        kl_BT = k3(logprobs_BT, ref_logprobs_BT, bound=bound)
    else:
        kl_BT = ESTIMATORS[name](logprobs_BT, ref_logprobs_BT)
    return kl_BT if value_clamp is None else kl_BT.clamp(-value_clamp, value_clamp)


def kl_surrogate(
    name: str,
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    *,
    gradient: KLGradient = "straight_through",
    old_logprobs_BT: Tensor | None = None,
    weight_cap: float = WEIGHT_CAP,
    bound: float = LOG_RATIO_BOUND,
    value_clamp: float | None = None,
) -> Tensor:
    r"""The value of an estimator with the gradient that a term of the loss needs.

    ``pathwise`` differentiates the estimator itself. In expectation that is right for k2 only: k1
    gives 0, and k3 the gradient of the reversed divergence. ``straight_through`` keeps the value
    and has the derivative $w d$ whatever the estimator, where
    $w = \min(\exp(\log \pi - \log \pi_{old}), cap)$ corrects for tokens drawn from an older policy
    and is 1 without ``old_logprobs_BT``.

    Args:
        name: Estimator of the value.
        logprobs_BT: Log-probabilities under the policy, with gradient.
        ref_logprobs_BT: Log-probabilities under the reference.
        gradient: Form of the gradient.
        old_logprobs_BT: Log-probabilities under the policy that drew the tokens.
        weight_cap: Largest w, above 0.
        bound: As for ``estimate``.
        value_clamp: As for ``estimate``; the gradient of ``straight_through`` ignores it.

    Returns:
        [B, T].

    Raises:
        ConfigError: The estimator or the gradient is unknown.
        ValueError: A bound is not above 0, or old log-probabilities come with ``pathwise``.
    """
    check_choice("KL gradient", gradient, GRADIENTS)
    ref_logprobs_BT = ref_logprobs_BT.detach()
    kl_BT = estimate(name, logprobs_BT, ref_logprobs_BT, bound=bound, value_clamp=value_clamp)
    if gradient == "pathwise":
        if old_logprobs_BT is not None:
            raise ValueError(
                "old_logprobs_BT must be None with gradient='pathwise', got a tensor; "
                "use gradient='straight_through' to weigh the gradient"
            )
        return kl_BT
    if not weight_cap > 0:
        raise ValueError(f"weight_cap must be above 0, got {weight_cap!r}; 10 is usual")
    carrier_BT = k2(logprobs_BT, ref_logprobs_BT)
    if old_logprobs_BT is not None:
        log_weight_BT = k1(logprobs_BT, old_logprobs_BT).detach()
        weight_BT = log_weight_BT.clamp(max=LOG_RATIO_BOUND).exp().clamp(max=weight_cap)
        carrier_BT = weight_BT * carrier_BT
    return kl_BT.detach() + (carrier_BT - carrier_BT.detach())
