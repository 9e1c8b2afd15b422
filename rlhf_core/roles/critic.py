"""Critic: values of states, trained with the clipped value loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf_core.assets import Assets
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import DivergedError
from rlhf_core.models.adapted import adapted_critic
from rlhf_core.models.forward import values
from rlhf_core.models.load import load_tokenizer, tokenizer_fingerprint
from rlhf_core.ppo.aggregation import Normalizer
from rlhf_core.ppo.losses import value_loss
from rlhf_core.roles.trainer import Trainer
from rlhf_core.types import CallContext, Experience, Rollout, UpdateSettings


@dataclass(frozen=True)
class _Pass:
    """A forward pass that can still be differentiated."""

    rows: list[int]
    rollout: Rollout
    values_BT: Tensor

    def of(self, rows: Sequence[int], rollout: Rollout) -> Tensor | None:
        """Its values for a batch of the same rows in any order; None for another."""
        places = {row: place for place, row in enumerate(self.rows)}
        if sorted(rows) != sorted(places):
            return None
        index_B = torch.tensor([places[row] for row in rows], device=self.values_BT.device)
        same = torch.equal(self.rollout.tokens_BL[index_B], rollout.tokens_BL)
        return self.values_BT[index_B] if same else None


class CriticRole(Trainer):
    """A value model.

    Where an update begins with a step over the whole batch in one pass, that pass has been made already: it gave
    the values, and is kept for its gradient.
    """

    def __init__(self, config: TrialConfig, assets: Assets, device: torch.device) -> None:
        reward = assets.reward
        source = reward.model if config.model.critic_init == "reward" else None
        if source is not None and not _same_tokens(source, assets.policy):
            # Its embeddings would be read with the wrong words.
            source = None
        model = adapted_critic(config, source, assets.policy, device, -reward.offset)
        super().__init__("critic", model, device, config)
        optim = config.optim
        self.micro_batch = (optim.micro_batch_size, optim.micro_batch_tokens)
        whole = config.ppo.minibatches == 1 and optim.engine == "torch"
        self._keeps = whole and self.passes.plain
        self._kept: _Pass | None = None

    def values(self, context: CallContext, rollout: Rollout) -> Tensor:
        """Value before each response token, float32 [B, T] on the CPU, 0 outside the mask."""
        groups = self.share(rollout, range(rollout.size), *self.micro_batch)
        self._kept = None

        def compute(part: Rollout) -> Tensor:
            with torch.set_grad_enabled(self._keeps and len(groups) == 1):
                values_BT = values(self.model, part)
            if values_BT.requires_grad:
                self._kept = _Pass(groups[0], part, values_BT)
            return values_BT.detach()

        out_BT = self.tokenwise(rollout, groups, compute)
        if not bool(torch.isfinite(out_BT).all()):
            raise DivergedError("critic", "values")
        return out_BT

    def update(
        self, context: CallContext, experience: Experience, settings: UpdateSettings
    ) -> dict[str, float]:
        """One update of the critic.

        Returns:
            Metrics of group ``value``, those of all ranks together; none on a rank without rows.

        Raises:
            DivergedError: If a loss or a gradient is not finite.
        """

        def loss(batch: Experience, counts: Normalizer) -> tuple[Tensor, tuple[Any]]:
            assert batch.values_BT is not None
            total, stats = value_loss(
                self._values(batch.rollout),
                batch.values_BT,
                batch.returns_BT,
                batch.rollout.response_mask_BT,
                clip_range=settings.ppo.value_clip_range,
                normalizer=counts,
            )
            if not bool(torch.isfinite(total)):
                raise DivergedError("critic", "value loss")
            return total, (stats,)

        stats, numbers = self.run(context, experience, settings, loss)
        if stats is None:
            return {}
        metrics = {f"value/{name}": value for name, value in stats[0].metrics().items()}
        metrics |= {f"value/{name}": numbers[name] for name in ("grad_norm", "lr")}
        return metrics | {"time/allreduce_critic": numbers["allreduce"]}

    def _values(self, rollout: Rollout) -> Tensor:
        """Values of the pass under way."""
        kept, self._kept = self._kept, None
        known_BT = None if kept is None else kept.of(self._rows, rollout)
        return values(self.model, rollout) if known_BT is None else known_BT

    def load(self, context: CallContext, uri: str, entry: dict[str, Any]) -> None:
        self._kept = None
        super().load(context, uri, entry)


def _same_tokens(one: str, other: str) -> bool:
    return one == other or tokenizer_fingerprint(
        load_tokenizer(one, "reward.model")
    ) == tokenizer_fingerprint(load_tokenizer(other))
