"""What is done to the scores of responses before they become rewards. [B] in, [B] out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_core.errors import ConfigError, nearest
from rlhf_core.ppo.checks import check_same_shape, check_shape, statistic_dtype


def overlong_penalty(
    scores_B: Tensor, lengths_B: Tensor, *, max_length: int, buffer: int, factor: float = 1.0
) -> Tensor:
    r"""Scores less $f \min(\max(n - (L - b), 0), b) / b$ for a response of n tokens.

    The soft overlong punishment of DAPO (https://arxiv.org/abs/2503.14476): nothing up to b tokens
    before the longest length L, then linear up to f.

    Args:
        scores_B: One score for each response.
        lengths_B: n.
        max_length: L.
        buffer: b, 1 to L.
        factor: f, at least 0.

    Raises:
        ValueError: A number is out of range, or shapes disagree.
    """
    check_same_shape(scores_B=scores_B, lengths_B=lengths_B)
    if not (1 <= buffer <= max_length and factor >= 0):
        raise ValueError(
            f"1 <= buffer <= max_length and factor >= 0 must hold, got buffer={buffer!r}, "
            f"max_length={max_length!r}, factor={factor!r}; a fifth of max_length is usual"
        )
    dtype = statistic_dtype(scores_B)
    excess_B = (lengths_B - (max_length - buffer)).clamp(0, buffer)
    return scores_B.to(dtype) - factor * (excess_B.to(dtype) / buffer)


def truncation_penalty(scores_B: Tensor, finished_B: Tensor, *, coef: float) -> Tensor:
    """Scores where the response ended by itself, else ``coef`` times the score, or ``coef``.

    A coefficient of 0 to 1 multiplies, which raises a score below 0; a negative one replaces the
    score. Both after ProRL (https://arxiv.org/abs/2505.24864).

    Args:
        scores_B: One score for each response.
        finished_B: Bool, True = the response ends with a stop token.
        coef: At most 1.

    Raises:
        ValueError: The coefficient is above 1, or the flags are not bool of that shape.
    """
    check_same_shape(scores_B=scores_B, finished_B=finished_B)
    if finished_B.dtype != torch.bool:
        raise ValueError(
            f"finished_B must be bool with True = ended by itself, got {finished_B.dtype}; "
            "compare or convert it before the call"
        )
    if not (math.isfinite(coef) and coef <= 1):
        raise ValueError(
            f"coef must be at most 1, got {coef!r}; 0 to 1 multiplies, below 0 replaces"
        )
    scores_B = scores_B.to(statistic_dtype(scores_B))
    cut_B = coef * scores_B if coef >= 0 else torch.full_like(scores_B, coef)
    return torch.where(finished_B, scores_B, cut_B)


def normalise_scores(scores_B: Tensor, *, mean: float, std: float) -> Tensor:
    r"""$(s - \mu) / \sigma$ with constants, [B].

    Raises:
        ValueError: ``std`` is not above 0, or ``mean`` is not finite.
    """
    if not (math.isfinite(mean) and std > 0):
        raise ValueError(
            f"mean must be finite and std above 0, got mean={mean!r} and std={std!r}; "
            "0 and 1 change nothing"
        )
    return (scores_B.to(statistic_dtype(scores_B)) - mean) / std


def combine_scores(components: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    r"""$\sum_k w_k s_k$ over named components, [B].

    Args:
        components: Scores of each component.
        weights: A weight for each of them.

    Raises:
        ConfigError: There is no component, or the names differ; all problems together.
        ValueError: Shapes disagree.
    """
    problems = [
        f"reward.weights names {name!r}, which no component scores"
        f"{nearest(name, components) or '; remove it'}"
        for name in weights
        if name not in components
    ]
    problems += [
        f"reward component {name!r} has no weight{nearest(name, weights) or '; give it one'}"
        for name in components
        if name not in weights
    ]
    if not components:
        problems.append("a reward needs a component, got none; add one")
    if problems:
        raise ConfigError(problems)
    check_same_shape(**components)
    dtype = statistic_dtype(*components.values())
    weighted = [weights[name] * scores_B.to(dtype) for name, scores_B in components.items()]
    return torch.stack(weighted).sum(0)


@dataclass(frozen=True, slots=True)
class RunningNorm:
    r"""Mean and spread of all scores seen so far, as an immutable value.

    After k batches it equals the mean and the variance of their concatenation, in any order
    (Chan, Golub and LeVeque 1979).

    Args:
        count: Number of scores.
        mean: Their mean.
        m2: Sum of squared deviations from it.

    Raises:
        ConfigError: A number is negative or not finite.
    """

    count: float = 0.0
    mean: float = 0.0
    m2: float = 0.0

    def __post_init__(self) -> None:
        finite = all(math.isfinite(x) for x in (self.count, self.mean, self.m2))
        if not (finite and self.count >= 0 and self.m2 >= 0):
            raise ConfigError(
                f"a running normalisation must be finite with count and m2 at least 0, got {self}; "
                "check the scores for inf and NaN"
            )

    @property
    def std(self) -> float:
        """Population standard deviation; 1 where it would be 0, so that nothing is blown up."""
        return math.sqrt(self.m2 / self.count) if self.count > 0 and self.m2 > 0 else 1.0

    def update(self, scores_B: Tensor) -> RunningNorm:
        """The state after these scores too.

        Raises:
            ConfigError: A score is not finite.
        """
        check_shape("scores_B", scores_B, "B")
        if scores_B.numel() == 0:
            return self
        exact_B = scores_B.double()
        mean = float(exact_B.mean())
        m2 = float((exact_B - mean).square().sum())
        return self + RunningNorm(float(scores_B.numel()), mean, m2)

    def __add__(self, other: RunningNorm) -> RunningNorm:
        count = self.count + other.count
        if count == 0:
            return self
        gap = other.mean - self.mean
        return RunningNorm(
            count=count,
            mean=self.mean + gap * other.count / count,
            m2=self.m2 + other.m2 + gap * gap * self.count * other.count / count,
        )

    def apply(self, scores_B: Tensor) -> Tensor:
        r"""$(s - \mu) / \sigma$, [B]; unchanged before the first update."""
        return normalise_scores(scores_B, mean=self.mean, std=self.std)
