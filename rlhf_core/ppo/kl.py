r"""Per-token estimators of KL(policy || reference) from log-probabilities of sampled tokens.

After http://joschu.net/blog/kl-approx.html, with $d = \log \pi - \log \pi_{ref}$. As a penalty in
the reward k1 is unbiased; as a term of the loss k2 has the right gradient in expectation; k3 is
unbiased and never negative, hence good to log. Nothing is masked here: mask what you reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from rlhf_core.errors import ConfigError, nearest
from rlhf_core.ppo.checks import check_same_shape, statistic_dtype

KLEstimator = Literal["k1", "k2", "k3"]

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to this size before ``exp``, which overflows float32 from 89 on."""


def k1(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """$d$: unbiased, noisy, negative for about half the tokens. Shapes [B, T]."""
    check_same_shape(logprobs_BT=logprobs_BT, ref_logprobs_BT=ref_logprobs_BT)
    dtype = statistic_dtype(logprobs_BT, ref_logprobs_BT)
    return logprobs_BT.to(dtype) - ref_logprobs_BT.to(dtype)


def k2(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """$d^2 / 2$: biased, little noise, never negative. Shapes [B, T]."""
    return 0.5 * k1(logprobs_BT, ref_logprobs_BT).square()


def k3(logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """$e^{-d} - 1 + d$: unbiased, little noise, never negative. Shapes [B, T].

    $d$ is bounded below at -``LOG_RATIO_BOUND``.
    """
    return excess(-k1(logprobs_BT, ref_logprobs_BT))


def excess(log_ratio_BT: Tensor) -> Tensor:
    """$e^x - 1 - x$, never negative, for $x$ clamped from above at ``LOG_RATIO_BOUND``."""
    bounded_BT = log_ratio_BT.clamp(max=LOG_RATIO_BOUND)
    # Correctly rounded, expm1 leaves nothing negative; not every device rounds that well near 0.
    return (torch.expm1(bounded_BT) - bounded_BT).clamp(min=0)


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def estimate(name: str, logprobs_BT: Tensor, ref_logprobs_BT: Tensor) -> Tensor:
    """The estimator ``name``, one of k1, k2, k3.

    Raises:
        ConfigError: There is no such estimator.
    """
    if name not in ESTIMATORS:
        raise ConfigError(
            f"KL estimator must be one of {list(ESTIMATORS)}, got {name!r}"
            f"{nearest(name, ESTIMATORS) or '; use one of these'}"
        )
    return ESTIMATORS[name](logprobs_BT, ref_logprobs_BT)
