"""Rollout and role outputs -> Experience and the metrics of the batch. Pure; calls ``ppo``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_core.config.trial import TrialConfig
from rlhf_core.metrics import STALENESS_BINS, staleness_shares
from rlhf_core.ppo.advantages import estimate_advantages
from rlhf_core.ppo.kl import estimate, k1
from rlhf_core.ppo.masked import masked_mean, masked_sum, masked_var, whiten
from rlhf_core.ppo.rewards import clip_scores, kl_penalised, missing_eos_penalty
from rlhf_core.ppo.scores import (
    RunningNorm,
    combine_scores,
    normalise_scores,
    overlong_penalty,
    truncation_penalty,
)
from rlhf_core.types import Experience, Rollout, Scores


@dataclass(frozen=True)
class Batch:
    """What the roles said about a rollout batch.

    Attributes:
        rollout: The sampled responses.
        scores: Their rewards.
        groups_B: Rows with one number answer one prompt (int64).
        ref_logprobs_BT: Log-probabilities under the reference, or None without one.
        values_BT: Values of the critic, or None without one.
    """

    rollout: Rollout
    scores: Scores
    groups_B: Tensor
    ref_logprobs_BT: Tensor | None
    values_BT: Tensor | None


def weighted_scores(config: TrialConfig, scores: Scores) -> Tensor:
    """The weighted sum of all rewards of each response, float32 [B]."""
    reward = config.reward
    weights = {f"reward.extra.{name}": part.weight for name, part in reward.extra.items()}
    parts = {f"reward.extra.{name}": part_B for name, part_B in scores.extra.items()}
    return combine_scores({"reward": scores.proxy_B, **parts}, {"reward": reward.weight, **weights})


def shaped_scores(
    config: TrialConfig, batch: Batch, norm: RunningNorm
) -> tuple[Tensor, RunningNorm]:
    """The score of each response that is optimised: sum, normalisation, length and end, clip; in this order.

    Returns:
        Scores, float32 [B], and the running normalisation after them.
    """
    reward, rollout = config.reward, batch.rollout
    scores_B = weighted_scores(config, batch.scores)
    if reward.normalise == "static":
        scores_B = normalise_scores(scores_B, mean=reward.mean, std=reward.std)
    elif reward.normalise == "running":
        norm = norm.update(scores_B)
        scores_B = norm.apply(scores_B)
    if reward.truncation_penalty is not None:
        scores_B = truncation_penalty(scores_B, rollout.finished_B, coef=reward.truncation_penalty)
    if reward.overlong_buffer is not None:
        scores_B = overlong_penalty(
            scores_B,
            rollout.response_lengths_B,
            max_length=config.rollout.max_new_tokens,
            buffer=reward.overlong_buffer,
            factor=reward.overlong_penalty,
        )
    scores_B = missing_eos_penalty(scores_B, rollout.finished_B, penalty=reward.missing_eos_penalty)
    if reward.clip is not None:
        scores_B = clip_scores(scores_B, low=-reward.clip, high=reward.clip)
    return scores_B, norm


def build_experience(
    config: TrialConfig, batch: Batch, kl_coef: float, norm: RunningNorm
) -> tuple[Experience, dict[str, float], RunningNorm]:
    """Advantages and returns of a rollout batch.

    Args:
        config: The trial.
        batch: What the roles said.
        kl_coef: Weight of the KL term in this iteration.
        norm: Running normalisation of the scores so far.

    Returns:
        The experience, metrics of groups ``reward, kl, advantage, rollout``, and the normalisation after it.
    """
    ppo, rollout = config.ppo, batch.rollout
    mask_BT, ref_BT = rollout.response_mask_BT, batch.ref_logprobs_BT
    scores_B, norm = shaped_scores(config, batch, norm)
    in_reward = kl_coef if ppo.kl.mode == "reward" else 0.0
    kl_BT = torch.zeros_like(rollout.logprobs_BT)
    if ref_BT is not None:
        kl_BT = estimate(ppo.kl.estimator, rollout.logprobs_BT, ref_BT)
    raw_BT, returns_BT = estimate_advantages(
        ppo.advantage,
        scores_B=scores_B,
        kl_BT=kl_BT,
        kl_coef=in_reward,
        mask_BT=mask_BT,
        groups_B=batch.groups_B,
        values_BT=batch.values_BT,
        gamma=ppo.gamma,
        lam=ppo.lam,
    )
    metrics = batch_metrics(config, rollout, batch.scores, ref_BT)
    metrics["reward/shaped"] = float(scores_B.mean())
    metrics["reward/total"] = float(
        kl_penalised(scores_B, kl_BT, mask_BT, coef=in_reward).sum(1).mean()
    )
    metrics["kl/coef"] = kl_coef
    metrics["advantage/mean"] = float(masked_mean(raw_BT, mask_BT))
    metrics["advantage/std"] = float(masked_var(raw_BT, mask_BT).sqrt())
    advantages_BT = raw_BT
    if ppo.whitening_used != "off":
        advantages_BT = whiten(raw_BT, mask_BT, scale=ppo.whitening_used == "mean_std")
    experience = Experience(
        rollout,
        advantages_BT,
        returns_BT,
        values_BT=batch.values_BT,
        ref_logprobs_BT=ref_BT if ppo.kl.mode == "loss" else None,
    )
    return experience, metrics, norm


def batch_metrics(
    config: TrialConfig, rollout: Rollout, scores: Scores, ref_logprobs_BT: Tensor | None
) -> dict[str, float]:
    """Rewards, KL (where there is a reference) and length of a batch of responses."""
    mask_BT = rollout.response_mask_BT
    metrics = {
        "reward/proxy": float(scores.proxy_B.mean()),
        "reward/proxy_std": float(scores.proxy_B.std(correction=0)),
        "reward/weighted": float(weighted_scores(config, scores).mean()),
        "rollout/length": float(rollout.response_lengths_B.float().mean()),
        "rollout/truncated_share": float((~rollout.finished_B).float().mean()),
    }
    if ref_logprobs_BT is not None:
        kl = float(masked_sum(k1(rollout.logprobs_BT, ref_logprobs_BT), mask_BT))
        metrics["kl/response"] = kl / rollout.size
        metrics["kl/token"] = kl / float(mask_BT.sum())
    if scores.heldout_B is not None:
        metrics["reward/heldout"] = float(scores.heldout_B.mean())
    for name, component_B in scores.extra.items():
        metrics[f"reward/component/{name}"] = float(component_B.mean())
    return metrics


def standard_error(values_B: Tensor) -> float:
    """Standard error of the mean; 0 for a single value."""
    return float(values_B.std() / values_B.numel() ** 0.5) if values_B.numel() > 1 else 0.0


def staleness_metrics(rollout: Rollout, version: int) -> dict[str, float]:
    """How much older than the learner's ``version`` the weights were that sampled each token, and a histogram."""
    staleness_N = version - rollout.versions_BT[rollout.response_mask_BT]
    bins = torch.bincount(staleness_N.clamp(max=STALENESS_BINS), minlength=STALENESS_BINS + 1)
    shares = (bins / max(1, len(staleness_N))).tolist()
    return {
        "staleness/mean": float(staleness_N.float().mean()),
        "staleness/max": float(staleness_N.max()),
        **dict(zip(staleness_shares(), shares, strict=True)),
    }


def continued_share(rollout: Rollout) -> float:
    """Share of responses whose tokens were sampled by weights of several versions."""
    mask_BT, versions_BT = rollout.response_mask_BT, rollout.versions_BT
    # A response begins with its oldest token.
    newer_BT = mask_BT & (versions_BT > versions_BT[:, :1])
    return float(newer_BT.any(1).float().mean())
