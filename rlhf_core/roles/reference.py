"""Reference: log-probabilities of sampled tokens under the frozen reference policy."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.assets import Assets
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import DivergedError
from rlhf_core.models.adapted import reference_policy
from rlhf_core.models.forward import logprobs, split_rows
from rlhf_core.types import CallContext, Rollout


class ReferenceRole:
    """A frozen policy."""

    def __init__(self, config: TrialConfig, assets: Assets, device: torch.device) -> None:
        self.model = reference_policy(config, assets.reference, device)
        self.device = device
        optim = config.optim
        self.micro_batch = (optim.micro_batch_size, optim.micro_batch_tokens)

    @torch.no_grad()
    def logprobs(self, context: CallContext, rollout: Rollout, temperature: float) -> Tensor:
        """Log-probabilities of response tokens at ``temperature``, float32 [B, T] on the CPU."""
        out_BT = torch.zeros_like(rollout.logprobs_BT)
        for rows in split_rows(rollout, range(rollout.size), *self.micro_batch):
            part = rollout.select(rows).to(self.device)
            part_BT = logprobs(self.model, part, temperature)
            out_BT[rows, : part_BT.shape[1]] = part_BT.cpu()
        if not bool(torch.isfinite(out_BT).all()):
            raise DivergedError("reference", "logprobs")
        return out_BT

    def close(self) -> None:
        """Nothing to free."""
