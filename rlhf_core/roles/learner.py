"""Learner: trains the policy with the clipped PPO loss and publishes its weights."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from rlhf_core.assets import Assets
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import DivergedError
from rlhf_core.models.forward import policy_logits, response_tokens
from rlhf_core.models.load import load_policy
from rlhf_core.models.weights import Header, flatten
from rlhf_core.ppo.logprobs import token_logprobs_and_entropy
from rlhf_core.ppo.losses import policy_loss
from rlhf_core.ppo.masked import masked_sum
from rlhf_core.roles.rollout import ResponseSampler
from rlhf_core.roles.trainer import Trainer, mean
from rlhf_core.types import CallContext, Chunk, Experience, Rollout, UpdateSettings


class LearnerRole(Trainer):
    """The trained policy."""

    def __init__(self, config: TrialConfig, assets: Assets, device: torch.device) -> None:
        super().__init__("learner", load_policy(assets.policy, config.model.dtype, device), device)
        self.sampler = ResponseSampler(config, assets, self.model)

    def generate(self, context: CallContext, chunk: Chunk) -> Rollout:
        """Responses under the current weights, for evaluation: rollouts may hold older ones."""
        return self.sampler("learner", chunk, context.version or 0)

    def update(
        self, context: CallContext, experience: Experience, settings: UpdateSettings
    ) -> dict[str, float]:
        """One PPO update of the policy.

        Returns:
            Metrics of group ``policy``, means over tokens of all optimiser steps.

        Raises:
            DivergedError: If a loss or a gradient is not finite.
        """

        def loss(batch: Experience, tokens: float) -> tuple[Tensor, Any]:
            return self._loss(batch, tokens, settings)

        parts, norms = self.run(experience, settings, loss)
        stats = reduce(add, (part[0] for part in parts))
        entropies, counted = sum(part[1] for part in parts), sum(part[2] for part in parts)
        metrics = {f"policy/{name}": float(value) for name, value in stats.metrics().items()}
        metrics["policy/entropy"] = float(entropies / counted)
        metrics["policy/grad_norm"] = mean(norms)
        metrics["policy/lr"] = settings.optim.lr
        return metrics

    def _loss(
        self, batch: Experience, tokens: float, settings: UpdateSettings
    ) -> tuple[Tensor, tuple[Any, float, float]]:
        rollout, mask_BT = batch.rollout, batch.rollout.response_mask_BT
        logprobs_BT, entropy_BT = token_logprobs_and_entropy(
            policy_logits(self.model, rollout),
            response_tokens(rollout),
            temperature=settings.temperature,
            entropy_gradient=settings.entropy_coef != 0,
        )
        loss, stats = policy_loss(
            logprobs_BT,
            rollout.logprobs_BT,
            batch.advantages_BT,
            mask_BT,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            normalizer=tokens,
        )
        entropy = masked_sum(entropy_BT, mask_BT)
        if settings.entropy_coef:
            loss = loss - settings.entropy_coef * entropy / tokens
        if not bool(torch.isfinite(loss)):
            raise DivergedError("learner", "policy loss")
        return loss, (stats, float(entropy.detach()), float(mask_BT.sum()))

    def publish(self, context: CallContext) -> tuple[Header, list[Tensor]]:
        """The weights under the context's version, as flat buckets."""
        return flatten(self.model, context.version or 0)

    def export(self, context: CallContext, folder: str) -> None:
        """Saves the policy as a Hugging Face folder (without the tokenizer)."""
        self.model.save_pretrained(folder)  # type: ignore[operator]
