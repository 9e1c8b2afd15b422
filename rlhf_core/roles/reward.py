"""Reward: scores of responses by a classifier, a Python function or a server; the held-out one beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from rlhf_core.assets import Assets, RewardSource
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import DivergedError
from rlhf_core.models.forward import hidden_at, split_lengths
from rlhf_core.models.load import (
    load_classifier,
    load_tokenizer,
    positions,
    tokenizer_fingerprint,
    trunk_and_head,
)
from rlhf_core.prompts import as_messages
from rlhf_core.roles.functions import FunctionPool
from rlhf_core.roles.remote import RemoteScorer
from rlhf_core.types import CallContext, Prompt, Rollout, Scores


class Scorer(Protocol):
    """Scores of a rollout batch, float32 [B]."""

    def __call__(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Tensor: ...
    def close(self) -> None: ...


class RewardRole:
    """The frozen rewards and the held-out measure."""

    def __init__(self, config: TrialConfig, assets: Assets, device: torch.device) -> None:
        self.tokenizer = load_tokenizer(assets.policy)
        self.config, self.device = config, device
        self.proxy = self._scorer(assets.reward, "reward", "reward.model")
        self.heldout = (
            self._scorer(assets.heldout, "held-out reward", "reward.heldout_model")
            if assets.heldout
            else None
        )
        self.extra = {
            name: self._scorer(source, f"reward.extra.{name}", f"reward.extra.{name}.model")
            for name, source in assets.extra.items()
        }

    def _scorer(self, source: RewardSource, name: str, key: str) -> Scorer:
        if source.function is not None:
            reward = self.config.reward
            pool = FunctionPool(source.function, name, reward.workers, reward.timeout_s)
            return FunctionScorer(pool, self.tokenizer)
        if source.url is not None:
            return RemoteScorer(source.url, name, self.config.reward, self.tokenizer)
        return ModelScorer(source, key, self.tokenizer, self.config, self.device)

    def scores(self, context: CallContext, rollout: Rollout, prompts: Sequence[Prompt]) -> Scores:
        """Scores of every response.

        Args:
            context: Who asks.
            rollout: The responses.
            prompts: The prompt of each row.

        Raises:
            DivergedError: If a reward model returns a number that is not finite.
        """
        proxy_B = self.proxy(rollout, prompts)
        heldout_B = self.heldout(rollout, prompts) if self.heldout else None
        extra = {name: scorer(rollout, prompts) for name, scorer in self.extra.items()}
        named = {"scores": proxy_B, "held-out scores": heldout_B}
        named |= {f"scores of reward.extra.{name}": scores_B for name, scores_B in extra.items()}
        for name, scores_B in named.items():
            if scores_B is not None and not bool(torch.isfinite(scores_B).all()):
                raise DivergedError("reward", name)
        return Scores(proxy_B, heldout_B, extra)

    def close(self) -> None:
        """Ends the worker processes of reward functions and the requests to reward servers."""
        for scorer in (self.proxy, self.heldout, *self.extra.values()):
            if scorer is not None:
                scorer.close()


class FunctionScorer:
    """A user's function of texts, run in CPU workers."""

    def __init__(self, pool: FunctionPool, tokenizer: Any) -> None:
        self.pool, self.tokenizer = pool, tokenizer

    def __call__(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Tensor:
        responses = decode_responses(self.tokenizer, rollout)
        texts = [prompt.text for prompt in prompts]
        metadata: list[Mapping[str, Any]] = [prompt.metadata for prompt in prompts]
        return torch.tensor(self.pool(texts, responses, metadata), dtype=torch.float32)

    def close(self) -> None:
        self.pool.close()


class ModelScorer:
    """A sequence classifier with one label, fed with its own tokens and chat template."""

    def __init__(
        self,
        source: RewardSource,
        key: str,
        tokenizer: Any,
        config: TrialConfig,
        device: torch.device,
    ) -> None:
        assert source.model is not None
        self.offset, self.device, self.policy_tokenizer = source.offset, device, tokenizer
        self.template = config.data.chat_template
        optim = config.optim
        self.micro_batch = (optim.micro_batch_size, optim.micro_batch_tokens)
        self.model = load_classifier(source.model, config.model.dtype, device, key)
        self.tokenizer = load_tokenizer(source.model, key)
        self.tokenizer.truncation_side = "left"
        limits = (positions(self.model), self.tokenizer.model_max_length)
        self.limit = min((n for n in limits if n is not None and n < 10**9), default=None)
        self.parts = trunk_and_head(self.model)
        self.same_tokens = self.parts is not None and (
            tokenizer_fingerprint(self.tokenizer) == tokenizer_fingerprint(tokenizer)
            and self.tokenizer.chat_template == tokenizer.chat_template
        )

    @torch.no_grad()
    def __call__(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Tensor:
        rows = self._tokens(rollout, prompts)
        scores_B = torch.empty(len(rows))
        for part in split_lengths([len(row) for row in rows], *self.micro_batch):
            scores_B[part] = self._forward([rows[i] for i in part]).float().cpu()
        return scores_B - self.offset

    def _tokens(self, rollout: Rollout, prompts: Sequence[Prompt]) -> list[list[int]]:
        if self.same_tokens:
            ids = rollout.tokens_BL.tolist()
            return [row[:n] for row, n in zip(ids, rollout.lengths_B.tolist(), strict=True)]
        responses = decode_responses(self.policy_tokenizer, rollout)
        return [self._retokenise(p, r) for p, r in zip(prompts, responses, strict=True)]

    def _retokenise(self, prompt: Prompt, response: str) -> list[int]:
        """Tokens of prompt and response in the reward model's own vocabulary and format."""
        if self.template == "auto" and self.tokenizer.chat_template:
            asked = prompt.messages or as_messages(prompt.text)
            messages = [*asked, {"role": "assistant", "content": response.strip()}]
            text = self.tokenizer.apply_chat_template(messages, tokenize=False)
            special = False
        else:
            text, special = prompt.text + response, True
        # Too long a text loses its beginning, but not the special token that an encoder reads the class from.
        ids = self.tokenizer(
            text,
            add_special_tokens=special,
            truncation=self.limit is not None,
            max_length=self.limit,
        )["input_ids"]
        return list(ids) or [self.tokenizer.eos_token_id]

    def _forward(self, rows: list[list[int]]) -> Tensor:
        width = max(len(row) for row in rows)
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=self.device)
        last = torch.tensor([len(row) - 1 for row in rows], device=self.device)
        if self.parts is None:
            mask = torch.arange(width, device=self.device) <= last.unsqueeze(1)
            logits: Tensor = self.model(input_ids=ids, attention_mask=mask.long()).logits
            return logits[:, 0]
        # Pooled here: Hugging Face pools before the first padding token, wrong where padding is end-of-sequence.
        trunk, head = self.parts
        places = torch.arange(len(rows), device=self.device) * width + last
        picked: Tensor = head(hidden_at(trunk, ids, last + 1, places))
        return picked[:, 0]

    def close(self) -> None:
        """Nothing to free."""


def decode_responses(tokenizer: Any, rollout: Rollout) -> list[str]:
    """Text of every response, special tokens left out."""
    rows = [rollout.response(row) for row in range(rollout.size)]
    texts: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return texts
