"""What an update reports, as sums and counts, so that micro-batches and ranks can be added.

Every field is a detached 0-d tensor, float64 where it is a sum: no device is waited for until
``metrics`` is called, and the means do not depend on how the batch was split.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PolicyStats:
    """Sums over tokens of one policy update.

    Args:
        tokens: Number of tokens that count.
        loss: Sum of token losses.
        clipped_low: Tokens whose ratio is below the range while the advantage is negative.
        clipped_high: Tokens whose ratio is above the range while the advantage is positive.
        ratio_max: Largest ratio; 0 without tokens.
        kl_k1: Sum of old minus new log-probability, not clamped.
        kl_k3: Sum of ratio - 1 - log ratio.
        clipped_dual: Tokens at the bound of the dual clip; None where it is off.

    ``ratio_max`` is that of the ratio in use; the two KL sums are always over tokens.
    """

    tokens: Tensor
    loss: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    ratio_max: Tensor
    kl_k1: Tensor
    kl_k3: Tensor
    clipped_dual: Tensor | None = None

    def __add__(self, other: PolicyStats) -> PolicyStats:
        return PolicyStats(
            tokens=self.tokens + other.tokens,
            loss=self.loss + other.loss,
            clipped_low=self.clipped_low + other.clipped_low,
            clipped_high=self.clipped_high + other.clipped_high,
            ratio_max=torch.maximum(self.ratio_max, other.ratio_max),
            kl_k1=self.kl_k1 + other.kl_k1,
            kl_k3=self.kl_k3 + other.kl_k3,
            clipped_dual=_sum(self.clipped_dual, other.clipped_dual),
        )

    def metrics(self) -> dict[str, float]:
        """Means over tokens and the largest ratio; all 0 without tokens.

        ``dual_clip_fraction`` is there only where dual clip was on.
        """
        dual_on = self.clipped_dual is not None
        tokens, loss, low, high, ratio_max, k1, k3, dual = _floats(
            self.tokens,
            self.loss,
            self.clipped_low,
            self.clipped_high,
            self.ratio_max,
            self.kl_k1,
            self.kl_k3,
            torch.zeros_like(self.loss) if self.clipped_dual is None else self.clipped_dual,
        )
        count = max(tokens, 1.0)
        metrics = {
            "loss": loss / count,
            "clip_fraction_low": low / count,
            "clip_fraction_high": high / count,
            "ratio_max": ratio_max,
            "approx_kl": k3 / count,
            "approx_kl_k1": k1 / count,
        }
        return metrics | {"dual_clip_fraction": dual / count} if dual_on else metrics


@dataclass(frozen=True, slots=True)
class ValueStats:
    """Sums over tokens of one value update.

    Args:
        tokens: Number of tokens that count.
        loss: Sum of token losses.
        clipped: Tokens whose clipped error is the larger one.
        returns: Sum of returns.
        returns_squared: Sum of squared returns.
        errors: Sum of returns minus values at rollout time.
        errors_squared: Sum of their squares.
    """

    tokens: Tensor
    loss: Tensor
    clipped: Tensor
    returns: Tensor
    returns_squared: Tensor
    errors: Tensor
    errors_squared: Tensor

    def __add__(self, other: ValueStats) -> ValueStats:
        return ValueStats(
            tokens=self.tokens + other.tokens,
            loss=self.loss + other.loss,
            clipped=self.clipped + other.clipped,
            returns=self.returns + other.returns,
            returns_squared=self.returns_squared + other.returns_squared,
            errors=self.errors + other.errors,
            errors_squared=self.errors_squared + other.errors_squared,
        )

    def metrics(self) -> dict[str, float]:
        r"""Means over tokens, and $1 - \mathrm{Var}(R - V) / \mathrm{Var}(R)$.

        The explained variance judges the values the advantages were made from. It is 0 where all
        returns are equal, since nothing is there to explain.
        """
        tokens, loss, clipped, ret, ret_squared, error, error_squared = _floats(
            self.tokens,
            self.loss,
            self.clipped,
            self.returns,
            self.returns_squared,
            self.errors,
            self.errors_squared,
        )
        count = max(tokens, 1.0)
        ret_var = _variance(ret, ret_squared, count)
        error_var = _variance(error, error_squared, count)
        return {
            "loss": loss / count,
            "clip_fraction": clipped / count,
            "explained_variance": 1.0 - error_var / ret_var if ret_var > 0 else 0.0,
        }


@dataclass(frozen=True, slots=True)
class EntropyStats:
    """Sums over tokens of the policy's entropy.

    Args:
        tokens: Number of tokens that count.
        entropy: Sum of entropies, in nats.
    """

    tokens: Tensor
    entropy: Tensor

    def __add__(self, other: EntropyStats) -> EntropyStats:
        return EntropyStats(self.tokens + other.tokens, self.entropy + other.entropy)

    def metrics(self) -> dict[str, float]:
        """Mean entropy over tokens; 0 without tokens."""
        tokens, total = _floats(self.tokens, self.entropy)
        return {"entropy": total / max(tokens, 1.0)}


@dataclass(frozen=True, slots=True)
class KLStats:
    """Sums over tokens of a KL estimate.

    Args:
        tokens: Number of tokens that count.
        kl: Sum of estimates, in nats.
    """

    tokens: Tensor
    kl: Tensor

    def __add__(self, other: KLStats) -> KLStats:
        return KLStats(self.tokens + other.tokens, self.kl + other.kl)

    def metrics(self) -> dict[str, float]:
        """Mean estimate over tokens; 0 without tokens."""
        tokens, total = _floats(self.tokens, self.kl)
        return {"kl": total / max(tokens, 1.0)}


@dataclass(frozen=True, slots=True)
class CorrectionStats:
    """Sums over tokens of the mismatch between learner and sampler, and of its correction.

    Args:
        tokens: Number of tokens that count.
        sequences: Number of sequences with such a token.
        weights: Sum of weights; rejected tokens add 0.
        weights_squared: Sum of their squares.
        weight_max: Largest weight.
        rejected: Rejected tokens.
        rejected_sequences: Sequences with a rejected token.
        below: Tokens whose ratio (or that of their sequence, where it decides) is below the band.
        above: Tokens whose ratio is above the band.
        abs_log_ratio: Sum of absolute log-ratios, not clamped.
        abs_log_ratio_max: Largest of them.
        kl_k1: Sum of rollout minus old log-probability, not clamped.
        kl_k3: Sum of ratio - 1 - log ratio.
    """

    tokens: Tensor
    sequences: Tensor
    weights: Tensor
    weights_squared: Tensor
    weight_max: Tensor
    rejected: Tensor
    rejected_sequences: Tensor
    below: Tensor
    above: Tensor
    abs_log_ratio: Tensor
    abs_log_ratio_max: Tensor
    kl_k1: Tensor
    kl_k3: Tensor

    def __add__(self, other: CorrectionStats) -> CorrectionStats:
        return CorrectionStats(
            tokens=self.tokens + other.tokens,
            sequences=self.sequences + other.sequences,
            weights=self.weights + other.weights,
            weights_squared=self.weights_squared + other.weights_squared,
            weight_max=torch.maximum(self.weight_max, other.weight_max),
            rejected=self.rejected + other.rejected,
            rejected_sequences=self.rejected_sequences + other.rejected_sequences,
            below=self.below + other.below,
            above=self.above + other.above,
            abs_log_ratio=self.abs_log_ratio + other.abs_log_ratio,
            abs_log_ratio_max=torch.maximum(self.abs_log_ratio_max, other.abs_log_ratio_max),
            kl_k1=self.kl_k1 + other.kl_k1,
            kl_k3=self.kl_k3 + other.kl_k3,
        )

    def metrics(self) -> dict[str, float]:
        r"""Means over tokens, shares, and maxima; all 0 without tokens.

        ``effective_share`` is $(\sum w)^2 / (N \sum w^2)$: the share of tokens that would weigh as
        much if all weights were equal.
        """
        names = [field.name for field in dataclasses.fields(self)]
        values = dict(zip(names, _floats(*(getattr(self, n) for n in names)), strict=True))
        count, rows = max(values["tokens"], 1.0), max(values["sequences"], 1.0)
        return {
            "weight_mean": values["weights"] / count,
            "weight_max": values["weight_max"],
            "effective_share": values["weights"] ** 2
            / (count * (values["weights_squared"] or 1.0)),
            "rejected_share": values["rejected"] / count,
            "rejected_sequence_share": values["rejected_sequences"] / rows,
            "below_share": values["below"] / count,
            "above_share": values["above"] / count,
            "abs_log_ratio": values["abs_log_ratio"] / count,
            "abs_log_ratio_max": values["abs_log_ratio_max"],
            "kl_k1": values["kl_k1"] / count,
            "kl_k3": values["kl_k3"] / count,
        }


def _sum(mine: Tensor | None, other: Tensor | None) -> Tensor | None:
    if mine is None or other is None:
        return other if mine is None else mine
    return mine + other


def _floats(*tensors: Tensor) -> list[float]:
    # One transfer from the device instead of one for each field.
    values: list[float] = torch.stack([t.to(torch.float64) for t in tensors]).tolist()
    return values


_CANCELLATION = 1e-12
"""Share of the mean square below which a variance from sums is rounding, not spread."""


def _variance(total: float, total_squared: float, count: float) -> float:
    mean_square = total_squared / count
    variance = mean_square - (total / count) ** 2
    return variance if variance > _CANCELLATION * mean_square else 0.0
