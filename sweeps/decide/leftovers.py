"""What ended trials left behind: resources in use that no trial holds. Decisions without I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

EPS = 1e-3
Amounts = Mapping[str, float]


@dataclass
class Leftovers:
    """Compares what is in use with what was before the sweep, once after the end of every trial.

    Attributes:
        before: In use when the sweep began, ``{unit in words: amount}``; None: not known, nothing is compared.
        settle_s: An ended trial may go on holding its resources for this long, and two looks this far apart must
            agree.
    """

    before: Amounts | None = None
    settle_s: float = 5.0
    _since: dict[str, float] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)
    _suspect: str | None = None
    _seen: tuple[float, dict[str, float]] | None = None

    def settling(self, ended: Collection[str], now: float) -> set[str]:
        """Of all ended trials, those that may still hold what they had; brings the state up to date."""
        for trial in set(ended) - self._settled:
            if now - self._since.setdefault(trial, now) > self.settle_s:
                del self._since[trial]
                self._settled.add(trial)
                self._suspect = trial
        return set(self._since)

    def due(self, now: float) -> bool:
        """Whether the cluster is to be looked at now."""
        if self.before is None or self._suspect is None:
            return False
        return self._seen is None or now - self._seen[0] >= self.settle_s

    def looked(self, used: Amounts, held: Amounts, now: float) -> tuple[str, str] | None:
        """What to warn of.

        Args:
            used: In use on all nodes.
            held: Of that at most the trials that run, start or have just ended.
            now: Seconds on a clock that only goes forward.

        Returns:
            The trial after which something is missing, and what, in words; None as long as nothing is for sure.
        """
        assert self.before is not None
        missing = beyond(used, self.before, held)
        common = {}
        if self._seen is not None:
            common = {k: min(n, self._seen[1][k]) for k, n in missing.items() if k in self._seen[1]}
        trial = self._suspect
        if missing and self._seen is None:
            self._seen = (now, missing)
            return None
        self._suspect, self._seen = None, None
        if not common or trial is None:
            return None
        # It is told once.
        self.before = {
            k: self.before.get(k, 0.0) + common.get(k, 0.0) for k in {*self.before, *common}
        }
        return trial, in_words(common)


def beyond(used: Amounts, before: Amounts, held: Amounts) -> dict[str, float]:
    """What is in use beyond ``before`` and ``held``."""
    rest = {k: n - before.get(k, 0.0) - held.get(k, 0.0) for k, n in used.items()}
    return {k: n for k, n in rest.items() if n > EPS}


def in_words(missing: Amounts) -> str:
    """The warning of a ledger line."""
    amounts = [
        f"{amount:g} {unit.removesuffix('s') if amount == 1 else unit}"
        for unit, amount in sorted(missing.items())
    ]
    verb = "is" if list(missing.values()) == [1] else "are"
    return f"{', '.join(amounts)} {verb} in use that no trial of the sweep holds"


def total(parts: Collection[Amounts]) -> dict[str, float]:
    """The sum of all parts."""
    names = {name for part in parts for name in part}
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}
