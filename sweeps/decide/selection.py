"""The honest choice: which trials run again on fresh seeds, and what of the budget is kept for it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

# Fewer gain less than the trials of the search that they cost; a comparison needs at least two.
FEWEST_FINALISTS, FEWEST_SEEDS, PAIR = 3, 2, 2
# Test seeds that are not named are drawn from here on: far from those that people type.
FIRST_TEST_SEED = 1_000_000


@dataclass(frozen=True)
class Rule:
    """How much is run again.

    Attributes:
        top: Finalists at most.
        seeds: Fresh seeds for each at most; 0: nothing is run again.
        share: Test runs cost at most this share of what the search cost.
    """

    top: int
    seeds: int
    share: float

    def runs(self, spent: float) -> tuple[int, int]:
        """Finalists and seeds for each that a search which cost ``spent`` full trials pays for.

        As many runs as there are, of equally many the ones with more finalists; (0, 0) where not even three
        finalists on two seeds (or what is asked for, where that is less) are paid for.
        """
        return _runs(self, spent)

    def search_part(self, total: float) -> float:
        """What the search may cost of ``total`` full trials, so that its test runs fit in the rest."""
        finalists, seeds = self.runs(total / (1.0 + self.share))
        return total - finalists * seeds


# What the search may cost is asked for with each result, of the same budget.
@lru_cache(maxsize=64)
def _runs(rule: Rule, spent: float) -> tuple[int, int]:
    # A share that pays for exactly so many runs must not miss one by a rounding error.
    paid = rule.share * spent + 1e-9
    finalists = max(PAIR, min(FEWEST_FINALISTS, rule.top))
    seeds = max(1, min(FEWEST_SEEDS, rule.seeds))
    found = [
        (m, n)
        for m in range(finalists, rule.top + 1)
        for n in range(seeds, rule.seeds + 1)
        if m * n <= paid
    ]
    return max(found, key=lambda pair: (pair[0] * pair[1], pair[0]), default=(0, 0))


class Candidate(NamedTuple):
    """A trial of the search that ended.

    Attributes:
        trial: Its id.
        value: The objective, signed so that larger is better.
        eligible: Whether it may be chosen.
        params: Its parameters without the seed.
    """

    trial: str
    value: float
    eligible: bool
    params: Any


def finalists(candidates: Iterable[Candidate], top: int) -> list[str]:
    """The best eligible trials with parameters of their own, at most ``top``.

    None where there is nothing to choose between.
    """
    ranked: list[Candidate] = []
    for candidate in sorted((c for c in candidates if c.eligible), key=lambda c: -c.value):
        if candidate.params not in [other.params for other in ranked]:
            ranked.append(candidate)
    return [c.trial for c in ranked[:top]] if len(ranked) >= PAIR else []


def fresh_seeds(asked: int | Sequence[int], tuning: Collection[int]) -> tuple[int, ...]:
    """Test seeds: those that are named, or so many that no trial of the search used."""
    if not isinstance(asked, int):
        return tuple(asked)
    reach = range(FIRST_TEST_SEED, FIRST_TEST_SEED + asked + len(tuning))
    return tuple([seed for seed in reach if seed not in tuning][:asked])


def planned_runs(chosen: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, int]]:
    """``(finalist, seed)`` in the order of their start: every finalist on the first seed, then on the next.

    So an interruption leaves all of them with nearly as many runs.
    """
    return [(trial, seed) for seed in seeds for trial in chosen]
