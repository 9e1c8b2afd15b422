"""Guards: which trial has gone wrong by itself, whatever the others do. Decisions without I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf_core.metrics import first_nonfinite

GUARDED = "kl/response"


@dataclass
class Guards:
    """Ends a trial whose numbers are not finite or whose KL stays too high.

    Attributes:
        max_kl: Limit of ``kl/response`` in nats, or None.
        patience: Iterations in a row above it.
    """

    max_kl: float | None
    patience: int
    _above: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def decide(self, trial: str, metrics: Mapping[str, float]) -> str | None:
        """Why the trial diverged, in words, or None. A metric that is not reported is not judged."""
        wrong = first_nonfinite(metrics)
        if wrong is not None:
            return f"{wrong} is {metrics[wrong]}"
        kl = metrics.get(GUARDED)
        if self.max_kl is None or kl is None:
            return None
        self._above[trial] = self._above[trial] + 1 if kl > self.max_kl else 0
        if self._above[trial] >= self.patience:
            return (
                f"{GUARDED} is {kl:.3g} nats, above guards.max_kl = {self.max_kl:g} for "
                f"{self.patience} iterations in a row"
            )
        return None
