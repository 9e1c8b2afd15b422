"""The KL coefficient, fixed or adaptive, as an immutable value, and the KL it is judged by."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rlhf_core.errors import ConfigError, DivergedError
from rlhf_core.ppo.checks import check_choice
from rlhf_core.ppo.masked import masked_mean, masked_sum

KLUnit = Literal["token", "response", "response_token"]

KL_UNITS: tuple[KLUnit, ...] = ("token", "response", "response_token")

MAX_RELATIVE_ERROR = 0.2
"""Bound on the proportional error of one update, from Ziegler et al. 2019."""


@dataclass(frozen=True, slots=True)
class KLController:
    r"""Coefficient of the KL penalty and the rule that changes it.

    Adaptive: $\beta \leftarrow \beta (1 + \mathrm{clip}(KL / target - 1, \pm 0.2) \, n / horizon)$
    for n new episodes (Ziegler et al. 2019, https://arxiv.org/abs/1909.08593, section 2.2).

    The target has a unit, and nothing here can check it: pass ``update`` the ``mean_kl`` of that
    unit. A target per response is about the target per token times the mean length.

    Args:
        coef: Coefficient $\beta$, at least 0.
        target: KL to hold, above 0, in the unit of what ``update`` is given (per token or per
            sequence); None keeps the coefficient fixed.
        horizon: Episodes over which the coefficient changes by the clipped error, above 0.

    Raises:
        ConfigError: A rule above is broken; all problems are reported together.
    """

    coef: float
    target: float | None = None
    horizon: float = 10_000

    def __post_init__(self) -> None:
        problems = []
        if not (math.isfinite(self.coef) and self.coef >= 0):
            problems.append(
                f"KL coef must be finite and at least 0, got {self.coef!r}; use 0 to switch it off"
            )
        if self.target is not None and not (math.isfinite(self.target) and self.target > 0):
            problems.append(
                f"KL target must be finite and above 0, got {self.target!r}; "
                "use no target for a fixed coefficient"
            )
        if not (math.isfinite(self.horizon) and self.horizon > 0):
            problems.append(
                f"KL horizon must be finite and above 0, got {self.horizon!r}; 10000 is usual"
            )
        if problems:
            raise ConfigError(problems)

    def update(self, kl: float, episodes: int) -> KLController:
        """The controller after ``episodes`` more episodes with mean KL ``kl``.

        Args:
            kl: Mean KL of these episodes, in the unit of the target; a k1 mean may be negative.
            episodes: Number of new episodes, over all ranks.

        Raises:
            DivergedError: The controller is adaptive and ``kl`` is not finite.
            ConfigError: The horizon is so short that the coefficient could reach 0.
        """
        if self.target is None:
            return self
        if not math.isfinite(kl):
            raise DivergedError("learner", "kl", f"is {kl!r}, which no KL coefficient can follow")
        share = episodes / self.horizon
        if not 0 <= MAX_RELATIVE_ERROR * share < 1:
            raise ConfigError(
                f"KL horizon must exceed a fifth of the episodes of one update, got "
                f"horizon={self.horizon!r} and episodes={episodes!r}; raise ppo.kl.horizon"
            )
        error = min(max(kl / self.target - 1, -MAX_RELATIVE_ERROR), MAX_RELATIVE_ERROR)
        return dataclasses.replace(self, coef=self.coef * (1 + error * share))


def mean_kl(kl_BT: Tensor, mask_BT: Tensor, *, per: KLUnit) -> Tensor:
    r"""Mean KL of a batch in the unit of a target.

    ``token``: $\sum_{bt} m_{bt} kl_{bt} / \sum_{bt} m_{bt}$. ``response``: the sum over a response,
    mean over responses. ``response_token``: the mean over a response, mean over responses, so that
    a short response weighs as much as a long one. Responses without a token count with 0.

    Args:
        kl_BT: KL estimate for each token.
        mask_BT: True = counts.
        per: Unit.

    Returns:
        Scalar.

    Raises:
        ConfigError: The unit is unknown.
    """
    check_choice("per", per, KL_UNITS)
    if per == "token":
        return masked_mean(kl_BT, mask_BT)
    reduce = masked_sum if per == "response" else masked_mean
    return reduce(kl_BT, mask_BT, dim=1).mean()
