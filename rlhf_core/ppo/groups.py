"""Statistics of the responses to one prompt, and the groups that have something to teach.

B responses; ``groups_B`` int64, responses to one prompt share an id, in any order. Statistics are
taken in float64 whatever the input: where all rewards of a group are equal, rounding left over from
the mean would otherwise be blown up by the division by a standard deviation near 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.ppo.checks import check_groups, statistic_dtype


def group_size(groups_B: Tensor) -> Tensor:
    """Number of responses in the group of each response, int64 [B]."""
    _, index_B, count_G = torch.unique(groups_B, return_inverse=True, return_counts=True)
    sizes_B: Tensor = count_G[index_B]
    return sizes_B


def group_mean(scores_B: Tensor, groups_B: Tensor) -> Tensor:
    r"""Mean of the group, own score included, $\bar r_b = \frac{1}{n} \sum_{i \in G(b)} r_i$, [B]."""
    check_groups(scores_B, groups_B)
    mean_B = _mean(scores_B.double(), groups_B)
    return mean_B.to(statistic_dtype(scores_B))


def leave_one_out_mean(scores_B: Tensor, groups_B: Tensor) -> Tensor:
    r"""Mean of the others, $\frac{1}{n - 1} \sum_{i \in G(b), i \ne b} r_i$, [B].

    A response without others takes its own score, so that its advantage is 0.
    """
    check_groups(scores_B, groups_B)
    exact_B, size_B = scores_B.double(), group_size(groups_B)
    deviation_B = exact_B - _mean(exact_B, groups_B)
    # r - others = n / (n - 1) (r - mean): no difference of large sums, and 0 for a group of one.
    others_B = exact_B - deviation_B * size_B / (size_B - 1).clamp(min=1)
    return others_B.to(statistic_dtype(scores_B))


def group_std(scores_B: Tensor, groups_B: Tensor, *, unbiased: bool = True) -> Tensor:
    r"""Standard deviation of the group, $\sqrt{\sum_{i \in G(b)} (r_i - \bar r)^2 / (n - 1)}$, [B].

    Args:
        scores_B: Scores.
        groups_B: Group ids.
        unbiased: Divide by n - 1 instead of n; a group of one then has 0.

    Returns:
        [B].
    """
    check_groups(scores_B, groups_B)
    exact_B, size_B = scores_B.double(), group_size(groups_B)
    mean_square_B = _mean((exact_B - _mean(exact_B, groups_B)).square(), groups_B)
    if unbiased:
        mean_square_B = mean_square_B * size_B / (size_B - 1).clamp(min=1)
    return mean_square_B.sqrt().to(statistic_dtype(scores_B))


def groups_with_spread(scores_B: Tensor, groups_B: Tensor, *, eps: float = 0.0) -> Tensor:
    r"""Rows of groups with $\max_i r_i - \min_i r_i > \epsilon$, bool [B].

    A group whose rewards are all equal has advantage 0 under every group estimator: it costs
    tokens and teaches nothing. A group of one has no spread.

    Args:
        scores_B: Scores.
        groups_B: Group ids.
        eps: Spread that does not count, at least 0.

    Raises:
        ValueError: ``eps`` is negative, or shapes disagree.
    """
    check_groups(scores_B, groups_B)
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, got {eps!r}; 0 drops groups of equal scores")
    if scores_B.numel() == 0:
        return torch.zeros_like(groups_B, dtype=torch.bool)
    _, index_B = torch.unique(groups_B, return_inverse=True)
    count = int(index_B.max()) + 1
    exact_B = scores_B.double()
    high_G = exact_B.new_full((count,), -torch.inf).scatter_reduce(0, index_B, exact_B, "amax")
    low_G = exact_B.new_full((count,), torch.inf).scatter_reduce(0, index_B, exact_B, "amin")
    spread_B: Tensor = (high_G - low_G > eps)[index_B]
    return spread_B


def _mean(exact_B: Tensor, groups_B: Tensor) -> Tensor:
    _, index_B, count_G = torch.unique(groups_B, return_inverse=True, return_counts=True)
    total_G = exact_B.new_zeros(count_G.shape).index_add(0, index_B, exact_B)
    mean_B: Tensor = (total_G / count_G)[index_B]
    return mean_B
