"""When a sweep is given up: its first trials all failed in the same way. A decision without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SameFailure:
    """Gives up once the first trials that ended all failed with the same error.

    Such an error comes from the code or the configuration that all trials share, not from their parameters.

    Attributes:
        patience: Trials that must have failed alike.
    """

    patience: int = 3
    _reasons: list[str] = field(default_factory=list)
    _never: bool = False

    def decide(self, failed: bool, reason: str) -> str | None:
        """Why no further trial is to start after one more ended, in words, or None."""
        self._never = self._never or not failed
        self._reasons.append(reason)
        if self._never or not reason or len(self._reasons) < self.patience:
            return None
        if len(set(self._reasons[: self.patience])) > 1:
            return None
        return f"the first {self.patience} trials all failed with {reason}"
