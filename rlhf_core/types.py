"""What travels between the parts of a trial. Read this first.

Shape legend: B sequences, L tokens of prompt and response together, T response tokens, V vocabulary.
Sequences are right-padded, prompt and response contiguous, so causal models need no attention mask.
One mask: ``response_mask_BT``, True = this response token counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlhf_core.config.ppo import PPOConfig


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        text: What the user wrote, before any chat template.
        tokens: What the policy continues.
        metadata: Further columns of the prompt file, handed to reward functions; of a prompt of chat
            messages these stand there as ``messages``.
        messages: The chat messages the prompt is made of, or None for plain text.
    """

    text: str
    tokens: tuple[int, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, str]] | None = None


@dataclass(frozen=True)
class Chunk:
    """A unit of sampling: its prompts and its seed are fixed, only who runs it varies.

    Attributes:
        index: Position among the chunks of the iteration.
        prompts: Prompts; equal ones stand side by side.
        seed: Sampling seed, from (trial seed, iteration, index).
        begun: Response tokens that each prompt has already, to be continued; empty: none.
        new_tokens: Each response grows by at most so many; None: by as many as the trial's configuration says.
    """

    index: int
    prompts: tuple[Prompt, ...]
    seed: int
    begun: tuple[tuple[int, ...], ...] = ()
    new_tokens: int | None = None


@dataclass(frozen=True)
class CallContext:
    """Carried by every call to a role.

    Attributes:
        caller: Trial that asks; costs are accounted to it.
        version: Weight version the caller expects, or None where any serves.
        seed: Seed of whatever randomness the call needs.
        left: Calls of the same batch that are still to come, as far as is known: the caller is not in a hurry yet.
    """

    caller: str
    version: int | None = None
    seed: int = 0
    left: int = 0


@dataclass(frozen=True)
class Rollout:
    """Sampled responses.

    Attributes:
        tokens_BL: Prompt, response, padding (int64).
        prompt_lengths_B: Tokens of each prompt (int64, at least 1).
        response_mask_BT: True on response tokens; the end-of-sequence token is one of them.
        logprobs_BT: Log-probability of each response token under the weights that sampled it,
            at sampling temperature (float32, 0 outside the mask).
        finished_B: True where the response ended with end-of-sequence.
        versions_BT: Weight version each response token was sampled with (int64, 0 outside the mask).
    """

    tokens_BL: Tensor
    prompt_lengths_B: Tensor
    response_mask_BT: Tensor
    logprobs_BT: Tensor
    finished_B: Tensor
    versions_BT: Tensor

    @property
    def size(self) -> int:
        return self.tokens_BL.shape[0]

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of prompt and response together."""
        return self.prompt_lengths_B + self.response_lengths_B

    @property
    def response_lengths_B(self) -> Tensor:
        return self.response_mask_BT.sum(1)

    def response(self, row: int) -> list[int]:
        """Response tokens of one row, end-of-sequence included."""
        start = int(self.prompt_lengths_B[row])
        return self.tokens_BL[row, start : start + int(self.response_lengths_B[row])].tolist()

    def select(self, rows: Sequence[int]) -> Rollout:
        """The given rows, with padding no longer than they need."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        picked = {name: getattr(self, name)[index] for name in self.__dataclass_fields__}
        part = Rollout(**picked)
        width = max(1, int(part.lengths_B.max()))
        depth = max(1, int(part.response_lengths_B.max()))
        return replace(
            part,
            tokens_BL=part.tokens_BL[:, :width],
            response_mask_BT=part.response_mask_BT[:, :depth],
            logprobs_BT=part.logprobs_BT[:, :depth],
            versions_BT=part.versions_BT[:, :depth],
        )

    def to(self, device: torch.device) -> Rollout:
        """The rollout with its tensors on ``device``."""
        if self.tokens_BL.device == device:
            return self
        return Rollout(**{n: getattr(self, n).to(device) for n in self.__dataclass_fields__})


def concat_rollouts(parts: Sequence[Rollout], pad_id: int) -> Rollout:
    """The rows of all parts, in order, padded to the widest."""
    width = max(part.tokens_BL.shape[1] for part in parts)
    depth = max(part.response_mask_BT.shape[1] for part in parts)

    def widen(tensor: Tensor, to: int, value: float) -> Tensor:
        return pad(tensor, (0, to - tensor.shape[1]), value=value)

    return Rollout(
        tokens_BL=torch.cat([widen(p.tokens_BL, width, pad_id) for p in parts]),
        prompt_lengths_B=torch.cat([p.prompt_lengths_B for p in parts]),
        response_mask_BT=torch.cat([widen(p.response_mask_BT, depth, False) for p in parts]),
        logprobs_BT=torch.cat([widen(p.logprobs_BT, depth, 0.0) for p in parts]),
        finished_B=torch.cat([p.finished_B for p in parts]),
        versions_BT=torch.cat([widen(p.versions_BT, depth, 0) for p in parts]),
    )


@dataclass(frozen=True)
class Experience:
    """A rollout batch with everything an update needs. All float tensors are float32.

    Attributes:
        rollout: The sampled responses.
        advantages_BT: Advantages, whitened where asked for; 0 outside the mask.
        returns_BT: Targets of the critic.
        values_BT: Values of the critic before the update; None without a critic.
        ref_logprobs_BT: Log-probabilities under the reference, where the policy loss has a KL term.
        old_logprobs_BT: Log-probabilities the ratio is taken against; None: the stamped ones.
        weights_BT: Weights of the off-policy correction; None: 1.
    """

    rollout: Rollout
    advantages_BT: Tensor
    returns_BT: Tensor
    values_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None
    old_logprobs_BT: Tensor | None = None
    weights_BT: Tensor | None = None

    def select(self, rows: Sequence[int]) -> Experience:
        """The given rows, with padding no longer than they need."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        rollout = self.rollout.select(rows)
        depth = rollout.response_mask_BT.shape[1]
        return self._mapped(rollout, lambda tensor: tensor[index, :depth])

    def to(self, device: torch.device) -> Experience:
        """The experience with its tensors on ``device``."""
        return self._mapped(self.rollout.to(device), lambda tensor: tensor.to(device))

    def _mapped(self, rollout: Rollout, change: Callable[[Tensor], Tensor]) -> Experience:
        tensors = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "rollout"
        }
        return Experience(
            rollout, **{name: t if t is None else change(t) for name, t in tensors.items()}
        )


@dataclass(frozen=True)
class AdamWSettings:
    """What one optimiser step uses; sent with every update, never stored in a role."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_grad_norm: float | None


@dataclass(frozen=True)
class UpdateSettings:
    """Settings of one update of the learner or the critic.

    Attributes:
        optim: Optimiser settings, the learning rate already scheduled.
        minibatches: Row indices of each optimiser step, in order.
        micro_batch_size: Sequences in one forward and backward pass.
        micro_batch_tokens: Tokens, padding included, in one pass; used instead where set.
        temperature: Sampling temperature; log-probabilities are taken at it.
        ppo: Everything else; the learner's and the critic's part of the algorithm.
        constant_length: Divisor of aggregation ``sequence_sum``.
        kl_coef: Weight of the KL term of the policy loss; 0 where the penalty is in the reward.
    """

    optim: AdamWSettings
    minibatches: Sequence[Sequence[int]]
    micro_batch_size: int
    micro_batch_tokens: int | None = None
    temperature: float = 1.0
    ppo: PPOConfig = field(default_factory=PPOConfig)
    constant_length: int = 1
    kl_coef: float = 0.0


@dataclass(frozen=True)
class Scores:
    """Rewards of a rollout batch.

    Attributes:
        proxy_B: The learned or user-given reward that is optimised, before its weight (float32).
        heldout_B: The held-out reward, or None where the task has none (float32).
        extra: The further rewards of the weighted sum by name, before their weights (each float32 [B]).
    """

    proxy_B: Tensor
    heldout_B: Tensor | None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
