"""How much a set of responses repeats itself: what a reward that is gamed shows first."""

from __future__ import annotations

from rlhf_core.types import Rollout


def distinct_share(rollout: Rollout, n: int) -> float:
    """Different n-grams of tokens over all of them, in the responses together (distinct-n, Li et al. 2016).

    It falls with the number of tokens, so sets compare where that is about the same. The token that ends a
    response counts for nothing; without any n-gram the share is 0.
    """
    grams = []
    for row in range(rollout.size):
        tokens = rollout.response(row)
        if bool(rollout.finished_B[row]):
            tokens = tokens[:-1]
        grams += list(zip(*(tokens[start:] for start in range(n)), strict=False))
    return len(set(grams)) / max(1, len(grams))
