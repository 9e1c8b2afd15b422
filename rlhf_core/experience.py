"""Rollout and role outputs -> Experience and the metrics of the batch. Pure; calls ``ppo``."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.config.trial import TrialConfig
from rlhf_core.ppo.gae import gae
from rlhf_core.ppo.kl import estimate, k1
from rlhf_core.ppo.masked import masked_mean, masked_sum, masked_var, whiten
from rlhf_core.ppo.rewards import clip_scores, kl_penalised, missing_eos_penalty
from rlhf_core.types import Experience, Rollout, Scores


def build_experience(
    config: TrialConfig,
    rollout: Rollout,
    scores: Scores,
    ref_logprobs_BT: Tensor,
    values_BT: Tensor,
    kl_coef: float,
) -> tuple[Experience, dict[str, float]]:
    """Advantages and returns of a rollout batch.

    Args:
        config: The trial.
        rollout: The sampled responses.
        scores: Their rewards.
        ref_logprobs_BT: Log-probabilities under the reference.
        values_BT: Values of the critic.
        kl_coef: Weight of the KL penalty in this iteration.

    Returns:
        The experience, and metrics of groups ``reward, kl, advantage, rollout``.
    """
    ppo, mask_BT = config.ppo, rollout.response_mask_BT
    scores_B = missing_eos_penalty(
        scores.proxy_B, rollout.finished_B, penalty=config.reward.missing_eos_penalty
    )
    if config.reward.clip is not None:
        scores_B = clip_scores(scores_B, low=-config.reward.clip, high=config.reward.clip)
    kl_BT = estimate(ppo.kl.estimator, rollout.logprobs_BT, ref_logprobs_BT)
    rewards_BT = kl_penalised(scores_B, kl_BT, mask_BT, coef=kl_coef)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, gamma=ppo.gamma, lam=ppo.lam)
    metrics = batch_metrics(rollout, scores, ref_logprobs_BT)
    metrics["reward/total"] = float(rewards_BT.sum(1).mean())
    metrics["kl/coef"] = kl_coef
    metrics["advantage/mean"] = float(masked_mean(advantages_BT, mask_BT))
    metrics["advantage/std"] = float(masked_var(advantages_BT, mask_BT).sqrt())
    if ppo.whiten_advantages:
        advantages_BT = whiten(advantages_BT, mask_BT)
    return Experience(rollout, advantages_BT, returns_BT, values_BT), metrics


def batch_metrics(rollout: Rollout, scores: Scores, ref_logprobs_BT: Tensor) -> dict[str, float]:
    """Reward, KL and length of a batch of responses."""
    mask_BT = rollout.response_mask_BT
    kl_BT = k1(rollout.logprobs_BT, ref_logprobs_BT)
    kl = float(masked_sum(kl_BT, mask_BT))
    metrics = {
        "reward/proxy": float(scores.proxy_B.mean()),
        "reward/proxy_std": float(scores.proxy_B.std(correction=0)),
        "kl/response": kl / rollout.size,
        "kl/token": kl / float(mask_BT.sum()),
        "rollout/length": float(rollout.response_lengths_B.float().mean()),
        "rollout/truncated_share": float((~rollout.finished_B).float().mean()),
    }
    if scores.heldout_B is not None:
        metrics["reward/heldout"] = float(scores.heldout_B.mean())
    return metrics


def standard_error(values_B: Tensor) -> float:
    """Standard error of the mean; 0 for a single value."""
    return float(values_B.std() / values_B.numel() ** 0.5) if values_B.numel() > 1 else 0.0


def staleness_metrics(rollout: Rollout, version: int) -> dict[str, float]:
    """How much older than the learner's ``version`` the sampling weights were."""
    staleness_B = (version - rollout.versions_B).to(torch.float32)
    return {
        "staleness/mean": float(staleness_B.mean()),
        "staleness/max": float(staleness_B.max()),
    }
