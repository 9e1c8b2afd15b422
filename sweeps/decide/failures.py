"""When a sweep is given up: its first trials all failed in the same way. A decision without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SameFailure:
    """Gives up once the first trials of a sweep, in the order they began, all failed with the same error.

    Such an error comes from the code or the configuration that all trials share. That of a parameter can meet
    the first trials that *end*, which a failure makes short; so those that began first are waited for.

    Attributes:
        patience: Trials that must have failed alike.
    """

    patience: int = 3
    _reasons: dict[int, str] = field(default_factory=dict)
    _never: bool = False

    def decide(self, number: int, failed: bool, reason: str) -> str | None:
        """Why no further trial is to start after trial ``number`` ended, in words, or None."""
        self._never = self._never or not failed
        if number < self.patience:
            self._reasons[number] = reason
        found = set(self._reasons.values())
        if self._never or len(self._reasons) < self.patience or len(found) > 1 or "" in found:
            return None
        return f"the first {self.patience} trials all failed with {found.pop()}"
