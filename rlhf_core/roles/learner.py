"""Learner: trains the policy with the clipped PPO loss and publishes its weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.assets import Assets
from rlhf_core.config.trial import TrialConfig
from rlhf_core.engines.base import trained
from rlhf_core.errors import DivergedError
from rlhf_core.models.adapted import adapted_policy
from rlhf_core.models.forward import logprobs, logprobs_and_entropy
from rlhf_core.models.lora import plain_weights
from rlhf_core.models.save import save_pretrained
from rlhf_core.models.weights import GROUP, Bucket, Detached, Header, buckets_of, header_of, send
from rlhf_core.ppo.aggregation import Normalizer
from rlhf_core.ppo.correction import correct
from rlhf_core.ppo.losses import entropy_bonus, kl_loss, policy_loss
from rlhf_core.ppo.stats import EntropyStats, KLStats, PolicyStats
from rlhf_core.roles.rollout import ResponseSampler
from rlhf_core.roles.trainer import Trainer
from rlhf_core.types import CallContext, Chunk, Experience, Rollout, UpdateSettings

CORRECTION_METRICS = ("weight_mean", "rejected_share", "abs_log_ratio", "abs_log_ratio_max")


class LearnerRole(Trainer):
    """The trained policy."""

    def __init__(self, config: TrialConfig, assets: Assets, device: torch.device) -> None:
        model = adapted_policy(config, assets.policy, device)
        super().__init__("learner", model, device, config)
        self.sampler = ResponseSampler(config, assets, self.model)
        self.bucket_bytes = config.sync.bucket_bytes

    def generate(self, context: CallContext, chunk: Chunk) -> Rollout:
        """Responses under the current weights, for evaluation: rollouts may hold older ones."""
        with self.engine.whole(self.model.parameters()):
            try:
                return self.sampler("learner", chunk, context.version or 0)
            finally:
                # Every update changes the weights.
                self.sampler.engine.refresh()

    def update(
        self, context: CallContext, experience: Experience, settings: UpdateSettings
    ) -> dict[str, float]:
        """One PPO update of the policy.

        Returns:
            Metrics of group ``policy``, means over tokens of all optimiser steps and ranks; none on a rank
            without rows.

        Raises:
            DivergedError: If a loss or a gradient is not finite.
        """

        def loss(batch: Experience, counts: Normalizer) -> tuple[Tensor, tuple[Any, ...]]:
            return self._loss(batch, counts, settings)

        experience, metrics = self._corrected(experience, settings)
        stats, numbers = self.run(context, experience, settings, loss)
        if stats is None:
            return {}
        policy, entropy, kl = (stat and stat.metrics() for stat in stats)
        metrics |= {f"policy/{name}": value for name, value in {**policy, **entropy}.items()}
        if kl is not None:
            metrics["kl/loss"] = kl["kl"]
        metrics |= {f"policy/{name}": numbers[name] for name in ("grad_norm", "lr")}
        return metrics | {"time/allreduce_learner": numbers["allreduce"]}

    def _loss(
        self, batch: Experience, counts: Normalizer, settings: UpdateSettings
    ) -> tuple[Tensor, tuple[PolicyStats, EntropyStats, KLStats | None]]:
        rollout, ppo = batch.rollout, settings.ppo
        mask_BT = rollout.response_mask_BT
        logprobs_BT, entropy_BT = logprobs_and_entropy(
            self.model, rollout, settings.temperature, entropy_gradient=ppo.entropy_coef != 0
        )
        old_BT = batch.old_logprobs_BT
        form: dict[str, Any] = {
            "aggregation": ppo.aggregation,
            "constant_length": settings.constant_length
            if ppo.aggregation == "sequence_sum"
            else None,
            "normalizer": counts,
        }
        loss, stats = policy_loss(
            logprobs_BT,
            rollout.logprobs_BT if old_BT is None else old_BT,
            batch.advantages_BT,
            mask_BT,
            clip_low=ppo.clip_range_low,
            clip_high=ppo.clip_range_high,
            dual_clip=ppo.dual_clip,
            ratio=ppo.ratio,
            log_ratio_clamp=ppo.log_ratio_clamp,
            weights_BT=batch.weights_BT,
            **form,
        )
        bonus, entropy = entropy_bonus(entropy_BT, mask_BT, coef=ppo.entropy_coef, **form)
        loss = loss + bonus
        kl = None
        if settings.kl_coef:
            assert batch.ref_logprobs_BT is not None
            term, kl = kl_loss(
                logprobs_BT,
                batch.ref_logprobs_BT,
                mask_BT,
                coef=settings.kl_coef,
                estimator=ppo.kl.estimator,
                old_logprobs_BT=rollout.logprobs_BT if old_BT is None else old_BT,
                **form,
            )
            loss = loss + term
        if not bool(torch.isfinite(loss)):
            raise DivergedError("learner", "policy loss")
        return loss, (stats, entropy, kl)

    def _corrected(
        self, experience: Experience, settings: UpdateSettings
    ) -> tuple[Experience, dict[str, float]]:
        """The experience with the learner's own old log-probabilities and the weights of the correction."""
        wanted = settings.ppo.correction
        if wanted.kind == "none":
            return experience, {}
        rollout = experience.rollout
        old_BT = self.tokenwise(
            rollout,
            self.parts(rollout, range(rollout.size), settings),
            lambda part: logprobs(self.model, part, settings.temperature),
        )
        made = correct(
            wanted.kind,
            old_BT,
            rollout.logprobs_BT,
            rollout.response_mask_BT,
            low=None if wanted.kind == "tis" else wanted.low,
            high=wanted.high,
        )
        stats = made.stats.metrics()
        metrics = {f"correction/{name}": stats[name] for name in CORRECTION_METRICS}
        return replace(experience, old_logprobs_BT=old_BT, weights_BT=made.weights_BT), metrics

    def publish(self, context: CallContext) -> tuple[Header, list[Bucket]]:
        """The weights under the context's version, as views of the parameters."""
        model = self._deliverable()
        header = header_of(model, context.version or 0, self.bucket_bytes)
        return header, buckets_of(model, header)

    def _deliverable(self) -> nn.Module:
        """What holds the trained weights as a whole; a copy in the host's memory where no rank does."""
        if not self.engine.sharded:
            return self.model
        copies = {}
        for name, parameter in trained(self.model).items():
            with self.engine.whole([parameter]):
                if self.group.rank == 0:
                    copies[name] = parameter.detach().cpu().clone()
        return Detached(copies)

    def send_weights(self, context: CallContext) -> int:
        """Broadcasts the weights under the context's version to the rollouts; returns the bytes."""
        header = header_of(self.model, context.version or 0, self.bucket_bytes)
        send(self.model, header, self.ranks(GROUP))
        return header.nbytes

    def export(self, context: CallContext, folder: str) -> None:
        """Saves the policy as a Hugging Face folder (without the tokenizer), adapters merged."""
        weights: dict[str, Tensor] = {}
        for name, weight in plain_weights(self.model, self.engine.whole):
            if self.group.rank == 0:
                weights[name] = weight.cpu().clone() if self.engine.sharded else weight
        if weights:
            save_pretrained(self.model, folder, weights)
