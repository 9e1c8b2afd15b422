"""From token losses to one number that does not depend on how a batch was split.

B sequences, T response tokens; ``mask_BT`` bool, True = counts. Give every micro-batch of an
optimiser step the ``Normalizer`` of the whole step, over all ranks: the parts then add up to the
full batch in value and gradient under every aggregation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rlhf_core.ppo.checks import check_batch, check_choice, select

Aggregation = Literal["token_mean", "sequence_mean_token_mean", "sequence_sum"]

AGGREGATIONS: tuple[Aggregation, ...] = (
    "token_mean",
    "sequence_mean_token_mean",
    "sequence_sum",
)


@dataclass(frozen=True, slots=True)
class Normalizer:
    """What the losses of one optimiser step are divided by; sums of them are again one.

    Args:
        tokens: Tokens that count, over all micro-batches and ranks.
        sequences: Sequences with at least one such token.
        replicas: Factor on the result: the number of ranks where their gradients are averaged and
            not summed.

    Raises:
        ValueError: A count is negative, or ``replicas`` is not above 0.
    """

    tokens: float
    sequences: float
    replicas: float = 1.0

    def __post_init__(self) -> None:
        if not (self.tokens >= 0 and self.sequences >= 0 and self.replicas > 0):
            raise ValueError(
                f"tokens and sequences must be at least 0 and replicas above 0, got {self}; "
                "count the mask of the whole optimiser step"
            )

    @classmethod
    def of(cls, mask_BT: Tensor) -> Normalizer:
        """Counts of one mask."""
        check_batch(mask_BT)
        return cls(tokens=float(mask_BT.sum()), sequences=float(mask_BT.any(1).sum()))

    def __add__(self, other: Normalizer) -> Normalizer:
        if self.replicas != other.replicas:
            raise ValueError(
                f"replicas must agree, got {self.replicas!r} and {other.replicas!r}; "
                "set them after the sum"
            )
        return Normalizer(
            self.tokens + other.tokens, self.sequences + other.sequences, self.replicas
        )


def aggregate(
    x_BT: Tensor,
    mask_BT: Tensor,
    *,
    aggregation: Aggregation = "token_mean",
    constant_length: float | None = None,
    normalizer: Normalizer | float | Tensor | None = None,
) -> Tensor:
    r"""One number from the values of tokens.

    With N tokens and S sequences of the optimiser step, and $n_b$ tokens of sequence b:
    ``token_mean`` $\frac{1}{N} \sum_{bt} m_{bt} x_{bt}$; ``sequence_mean_token_mean``
    $\frac{1}{S} \sum_b \frac{1}{n_b} \sum_t m_{bt} x_{bt}$; ``sequence_sum``
    $\frac{1}{S L} \sum_{bt} m_{bt} x_{bt}$ with a constant L, so that no token weighs less because
    its response is long.

    Args:
        x_BT: Values of tokens.
        mask_BT: True = counts. A sequence without a True is no sequence.
        aggregation: One of ``AGGREGATIONS``.
        constant_length: L, above 0, usually the longest response allowed; None is 1. Only for
            ``sequence_sum``.
        normalizer: N and S of the whole optimiser step; a plain number is N and serves
            ``token_mean`` only; None takes those of this mask.

    Returns:
        Scalar.

    Raises:
        ConfigError: The aggregation is unknown.
        ValueError: The normalizer or ``constant_length`` does not fit, or shapes disagree.
    """
    check_batch(mask_BT, x_BT=x_BT)
    check_choice("aggregation", aggregation, AGGREGATIONS)
    if constant_length is not None and (aggregation != "sequence_sum" or not constant_length > 0):
        raise ValueError(
            f"constant_length must be above 0 and belongs to 'sequence_sum', got "
            f"{constant_length!r} with {aggregation!r}; leave it out or change the aggregation"
        )
    x_BT = select(x_BT, mask_BT)
    if aggregation == "sequence_mean_token_mean":
        total = (x_BT.sum(1) / mask_BT.sum(1).clamp(min=1)).sum()
    else:
        total = x_BT.sum()
    total = total / _denominator(mask_BT, aggregation, normalizer)
    if constant_length is not None:
        total = total / constant_length
    return total * normalizer.replicas if isinstance(normalizer, Normalizer) else total


def _denominator(
    mask_BT: Tensor, aggregation: str, normalizer: Normalizer | float | Tensor | None
) -> float | Tensor:
    by_token = aggregation == "token_mean"
    if normalizer is None:
        count: Tensor = (mask_BT if by_token else mask_BT.any(1)).sum().clamp(min=1)
        return count
    if isinstance(normalizer, Normalizer):
        # Nothing to divide where nothing counts.
        return (normalizer.tokens if by_token else normalizer.sequences) or 1.0
    if not by_token:
        raise ValueError(
            f"normalizer must be a Normalizer for {aggregation!r}, got {normalizer!r}; "
            "pass the tokens and the sequences of the whole optimiser step"
        )
    if not isinstance(normalizer, Tensor) and not normalizer > 0:
        raise ValueError(
            f"normalizer must be above 0, got {normalizer!r}; "
            "pass the number of tokens of the whole optimiser step"
        )
    return normalizer
