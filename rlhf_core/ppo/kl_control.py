"""The KL coefficient, fixed or adaptive, as an immutable value."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from rlhf_core.errors import ConfigError, DivergedError

MAX_RELATIVE_ERROR = 0.2
"""Bound on the proportional error of one update, from Ziegler et al. 2019."""


@dataclass(frozen=True, slots=True)
class KLController:
    r"""Coefficient of the KL penalty and the rule that changes it.

    Adaptive: $\beta \leftarrow \beta (1 + \mathrm{clip}(KL / target - 1, \pm 0.2) \, n / horizon)$
    for n new episodes (Ziegler et al. 2019, https://arxiv.org/abs/1909.08593, section 2.2).

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
