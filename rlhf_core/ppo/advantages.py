"""Advantages and returns under six estimators, with and without a critic.

B sequences, T response tokens; ``mask_BT`` bool, True = counts. The batch handed over is the whole
rollout batch, never a micro-batch: groups and whitening are statistics of all of it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlhf_core.ppo.checks import check_batch, check_choice, check_groups, select, statistic_dtype
from rlhf_core.ppo.gae import Holes, discounted_returns, gae
from rlhf_core.ppo.groups import group_mean, group_size, group_std, leave_one_out_mean
from rlhf_core.ppo.masked import Floor, whiten
from rlhf_core.ppo.rewards import clip_scores, kl_penalised

Estimator = Literal["gae", "reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo"]
Whitening = Literal["off", "mean", "mean_std"]
KLPlacement = Literal["token", "sequence"]
Single = Literal["zero", "keep"]

ADVANTAGES: tuple[Estimator, ...] = (
    "gae",
    "reinforce",
    "reinforce_baseline",
    "rloo",
    "group_norm",
    "dr_grpo",
)
WHITENINGS: tuple[Whitening, ...] = ("off", "mean", "mean_std")
KL_PLACEMENTS: tuple[KLPlacement, ...] = ("token", "sequence")
SINGLES: tuple[Single, ...] = ("zero", "keep")

NEEDS_CRITIC = frozenset({"gae"})
"""Estimators that take values."""

NEEDS_GROUPS = frozenset({"reinforce_baseline", "rloo", "group_norm", "dr_grpo"})
"""Estimators that compare the responses to one prompt: they need at least 2 samples of each."""

USUAL_WHITENING: dict[str, Whitening] = {
    "gae": "mean_std",
    "reinforce": "mean_std",
    "reinforce_baseline": "mean_std",
    "rloo": "off",
    "group_norm": "off",
    "dr_grpo": "off",
}
"""Whitening that belongs to each estimator as it was published."""

GROUP_EPS = 1e-6
"""Added to the standard deviation of a group."""


def baselined_scores(
    estimator: str,
    scores_B: Tensor,
    groups_B: Tensor | None,
    *,
    group_eps: float = GROUP_EPS,
    single: Single = "zero",
) -> Tensor:
    r"""The scores as an estimator compares them within their group G of n.

    ``gae``, ``reinforce``: $r$. ``reinforce_baseline``, ``dr_grpo``: $r - \bar r_G$. ``rloo``:
    $r - \frac{1}{n-1} \sum_{i \ne b} r_i$. ``group_norm``:
    $(r - \bar r_G) / (\mathrm{std}_G + \epsilon)$ with n - 1 in the standard deviation.

    Args:
        estimator: One of ``ADVANTAGES``.
        scores_B: Scores.
        groups_B: Ids of the prompts; needed by ``NEEDS_GROUPS``.
        group_eps: $\epsilon$, at least 0.
        single: What a group of one gets: ``zero``, since there is nothing to compare with, or
            ``keep``, its raw score (divided by $1 + \epsilon$ for ``group_norm``), as in verl.

    Returns:
        [B].

    Raises:
        ConfigError: The estimator or ``single`` is unknown.
        ValueError: Groups are missing, ``group_eps`` is negative, or shapes disagree.
    """
    check_choice("advantage estimator", estimator, ADVANTAGES)
    check_choice("single", single, SINGLES)
    if estimator not in NEEDS_GROUPS:
        return scores_B.to(statistic_dtype(scores_B))
    if groups_B is None:
        raise ValueError(f"groups_B must be given for {estimator!r}, got None; pass prompt ids")
    if not group_eps >= 0:
        raise ValueError(f"group_eps must be at least 0, got {group_eps!r}; 1e-6 is usual")
    check_groups(scores_B, groups_B)
    exact_B = scores_B.double()
    baseline = leave_one_out_mean if estimator == "rloo" else group_mean
    out_B = exact_B - baseline(exact_B, groups_B)
    alone_B = group_size(groups_B) == 1
    if single == "keep":
        out_B = torch.where(alone_B, exact_B, out_B)
    if estimator == "group_norm":
        std_B = group_std(exact_B, groups_B)
        std_B = torch.where(alone_B, torch.ones_like(std_B), std_B) + group_eps
        out_B = torch.where(out_B == 0, out_B, out_B / std_B)
    return out_B.to(statistic_dtype(scores_B))


@torch.no_grad()
def estimate_advantages(
    estimator: str,
    *,
    scores_B: Tensor,
    kl_BT: Tensor,
    kl_coef: float,
    mask_BT: Tensor,
    groups_B: Tensor | None = None,
    values_BT: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
    whitening: Whitening = "off",
    whiten_unbiased: bool = False,
    whiten_eps: float = 1e-8,
    whiten_floor: Floor = "add",
    group_eps: float = GROUP_EPS,
    single: Single = "zero",
    kl_placement: KLPlacement = "token",
    clip_baselined: tuple[float, float] | None = None,
    holes: Holes = "skip",
) -> tuple[Tensor, Tensor]:
    r"""Advantages and returns of a rollout batch.

    Token rewards are $s_b [t = last_b] - \beta \, kl_{bt}$ with $s$ from ``baselined_scores``.
    ``gae`` runs ``gae`` over them. All others are critic-free: the advantage is the return from
    the token on, $\sum_{k \ge t} \gamma^{k-t} r_k$, with $\gamma$ only for ``reinforce``, and 1 for
    the group estimators, which compare whole responses.

    Args:
        estimator: One of ``ADVANTAGES``.
        scores_B: One score for each sequence.
        kl_BT: KL estimate for each token.
        kl_coef: $\beta$; 0 where the KL stands in the loss.
        mask_BT: True = counts.
        groups_B: int64, responses to one prompt share an id; needed by ``NEEDS_GROUPS``.
        values_BT: Values at rollout time for ``NEEDS_CRITIC``, None for all others.
        gamma: Discount of ``gae`` and ``reinforce``.
        lam: Lambda of ``gae``.
        whitening: ``off``; ``mean`` shifts the advantages of all tokens to mean 0; ``mean_std``
            scales them to variance 1 too. ``USUAL_WHITENING`` has the usual choice.
        whiten_unbiased: Divide by n - 1 in that variance.
        whiten_eps: Constant of that variance.
        whiten_floor: Whether the constant is added to it or bounds it from below.
        group_eps: Constant beside the standard deviation of a group.
        single: What a group of one gets, see ``baselined_scores``.
        kl_placement: ``token``: each token bears its own penalty and those after it. ``sequence``:
            group estimators take the sum into the score before the baseline, so that all tokens
            of a response share one advantage; without effect on ``gae`` and ``reinforce``.
        clip_baselined: Bounds on $s$, that is, after the baseline; None: never.
        holes: What a token outside the mask costs inside a response, see ``gae``.

    Returns:
        Advantages, and returns that are never whitened, each [B, T], zeros outside the mask.

    Raises:
        ConfigError: A name is unknown.
        ValueError: Values or groups are missing or not wanted, or a number is out of range.
    """
    check_batch(mask_BT, kl_BT=kl_BT)
    check_choice("advantage estimator", estimator, ADVANTAGES)
    check_choice("whitening", whitening, WHITENINGS)
    check_choice("kl_placement", kl_placement, KL_PLACEMENTS)
    if (values_BT is not None) != (estimator in NEEDS_CRITIC):
        rule = "given" if estimator in NEEDS_CRITIC else "None"
        raise ValueError(
            f"values_BT must be {rule} for {estimator!r}, got "
            f"{'None' if values_BT is None else 'a tensor'}; {sorted(NEEDS_CRITIC)} need a critic"
        )
    if kl_placement == "sequence" and estimator in NEEDS_GROUPS:
        dtype = statistic_dtype(scores_B, kl_BT)
        scores_B = scores_B.to(dtype) - kl_coef * select(kl_BT, mask_BT, dtype).sum(1)
        kl_coef = 0.0
    scores_B = baselined_scores(estimator, scores_B, groups_B, group_eps=group_eps, single=single)
    if clip_baselined is not None:
        scores_B = clip_scores(scores_B, low=clip_baselined[0], high=clip_baselined[1])
    rewards_BT = kl_penalised(scores_B, kl_BT, mask_BT, coef=kl_coef)
    if values_BT is not None:
        advantages_BT, returns_BT = gae(
            rewards_BT, values_BT, mask_BT, gamma=gamma, lam=lam, holes=holes
        )
    else:
        discount = 1.0 if estimator in NEEDS_GROUPS else gamma
        returns_BT = discounted_returns(rewards_BT, mask_BT, gamma=discount, holes=holes)
        advantages_BT = returns_BT
    if whitening != "off":
        advantages_BT = whiten(
            advantages_BT,
            mask_BT,
            scale=whitening == "mean_std",
            unbiased=whiten_unbiased,
            eps=whiten_eps,
            floor=whiten_floor,
        )
    return advantages_BT, returns_BT
