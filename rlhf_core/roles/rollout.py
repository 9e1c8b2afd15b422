"""Rollout: samples responses and stamps them with the weight version that sampled them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.assets import Assets
from rlhf_core.checkpoint import copy_into, load_part, save_part
from rlhf_core.config.trial import TrialConfig
from rlhf_core.engines.base import trained
from rlhf_core.errors import ConfigError, DivergedError, RlhfError, nearest
from rlhf_core.generation.engine import (
    GenerationEngine,
    NativeEngine,
    build_generation,
    home_of,
)
from rlhf_core.generation.sampler import Sampling
from rlhf_core.models.adapted import adapted_policy
from rlhf_core.models.load import load_tokenizer, positions
from rlhf_core.models.weights import (
    GROUP,
    Bucket,
    Header,
    buckets_of,
    check_version,
    header_of,
    load,
    receive,
)
from rlhf_core.ranks import Member
from rlhf_core.store import open_store
from rlhf_core.types import CallContext, Chunk, Rollout


class ResponseSampler:
    """Samples responses with a model that its owner may change between calls.

    Args:
        config: The trial.
        assets: Where the tokenizer is.
        model: The policy.
        engine: Who samples; None: this project's own sampler.
    """

    def __init__(
        self,
        config: TrialConfig,
        assets: Assets,
        model: nn.Module,
        engine: GenerationEngine | None = None,
    ) -> None:
        tokenizer = load_tokenizer(assets.policy)
        self.engine = engine or NativeEngine(model)
        self.positions = positions(model)
        self.sampling = Sampling(
            max_new_tokens=config.rollout.max_new_tokens,
            temperature=config.rollout.temperature,
            stop_ids=_stop_ids(tokenizer, model, config.rollout.stop),
            pad_id=tokenizer.pad_token_id,
            top_p=config.rollout.top_p,
            top_k=config.rollout.top_k,
        )

    def __call__(self, role: str, chunk: Chunk, version: int) -> Rollout:
        """One response to each prompt of the chunk, as CPU tensors, stamped with ``version``.

        Of a response that is continued the row holds what is new, and counts what was there to the prompt.
        """
        begun = chunk.begun or ((),) * len(chunk.prompts)
        prompts = [(*p.tokens, *there) for p, there in zip(chunk.prompts, begun, strict=True)]
        longest = max(len(prompt.tokens) for prompt in chunk.prompts)
        new = self.sampling.max_new_tokens
        if self.positions is not None and longest + new > self.positions:
            raise ConfigError(
                f"rollout.max_new_tokens: a prompt of {longest} tokens and {new} new ones exceed the "
                f"{self.positions} positions of the policy; lower it or data.max_prompt_tokens"
            )
        sampling = replace(self.sampling, max_new_tokens=chunk.new_tokens or new)
        tokens_BT, logprobs_BT, mask_BT = self.engine.sample(prompts, sampling, chunk.seed)
        if not bool(torch.isfinite(logprobs_BT).all()):
            raise DivergedError(role, "logprobs of sampled tokens")
        stop = torch.tensor(self.sampling.stop_ids, device=tokens_BT.device)
        finished_B = (torch.isin(tokens_BT, stop) & mask_BT).any(1).cpu()
        lengths_B = torch.tensor([len(prompt) for prompt in prompts])
        tokens_BL = _join(prompts, tokens_BT.cpu(), mask_BT.cpu(), self.sampling.pad_id)
        mask_BT = mask_BT.cpu()
        return Rollout(
            tokens_BL, lengths_B, mask_BT, logprobs_BT.cpu(), finished_B, mask_BT * version
        )


class RolloutRole(Member):
    """Samples with its own copy of the policy.

    Attributes:
        version: Weight version of the copy; None where a delivery broke off in it.
    """

    def __init__(self, config: TrialConfig, assets: Assets, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.model = adapted_policy(config, assets.policy, home_of(config, device))
        self.engine = build_generation(config, assets.policy, self.model, device)
        self.sampler = ResponseSampler(config, assets, self.model, self.engine)
        self.bucket_bytes = config.sync.bucket_bytes
        self.version: int | None = 0

    def generate(self, context: CallContext, chunk: Chunk) -> Rollout:
        """One response to each prompt of the chunk.

        Raises:
            RlhfError: If the role does not hold the version the caller expects, or none.
        """
        return self.sampler("rollout", chunk, self._held(context))

    def _held(self, context: CallContext) -> int:
        """The version held; another than the context's, or none, is an error."""
        if self.version is None:
            raise RlhfError("rollout: the last delivery of weights broke off; deliver them again")
        if context.version is not None and context.version != self.version:
            raise RlhfError(
                f"rollout: weights have version {self.version}, but {context.version} was expected"
            )
        return self.version

    def publish(self, context: CallContext) -> tuple[Header, list[Bucket]]:
        """The weights held, for a rollout that takes the place of a lost one.

        Raises:
            RlhfError: As for ``generate``.
        """
        header = header_of(self.model, self._held(context), self.bucket_bytes)
        return header, buckets_of(self.model, header)

    def load_weights(self, context: CallContext, header: Header, buckets: Iterable[Bucket]) -> int:
        """Takes delivered weights in place; returns the version now held.

        Raises:
            RlhfError: If they are not those that were sent, or not of the context's version.
        """
        check_version(header, context.version)
        self.version = None
        load(self.model, header, buckets)
        self.engine.refresh()
        self.version = header.version
        return self.version

    def receive_weights(self, context: CallContext) -> int:
        """The same for weights that the learner broadcasts."""
        self.version = None
        header = receive(self.model, context.version, self.ranks(GROUP))
        self.engine.refresh()
        self.version = header.version
        return self.version

    def rest(self, context: CallContext) -> None:
        """The batch is sampled: gives up memory that others of its GPU can use."""
        self.engine.rest()

    def save(self, context: CallContext, uri: str, step: int) -> dict[str, Any]:
        """Writes the weights held, which may be older than the learner's."""
        tensors = {name: p.detach().cpu() for name, p in trained(self.model).items()}
        entry = save_part(open_store(uri), step, "rollout", tensors)
        return {**entry, "version": self.version}

    def load(self, context: CallContext, uri: str, entry: dict[str, Any]) -> None:
        """Reads weights back, with the version they had."""
        tensors = load_part(open_store(uri), entry)
        copy_into(self.model, tensors, entry, "rollout")
        self.version = None
        self.engine.refresh()
        self.version = int(entry["version"])

    def close(self) -> None:
        """Leaves its groups and ends its engine."""
        self.leave()
        self.engine.close()


def _stop_ids(tokenizer: Any, model: nn.Module, stop: tuple[str, ...]) -> tuple[int, ...]:
    """End-of-sequence tokens of the tokenizer, of the model's generation settings, and the named ones."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = {int(tokenizer.eos_token_id)}
    ids.update(named if isinstance(named, list) else [named] if isinstance(named, int) else [])
    vocabulary = tokenizer.get_vocab() if stop else {}
    for token in stop:
        if token not in vocabulary:
            raise ConfigError(
                f"rollout.stop: {token!r} is no token of the policy's tokenizer"
                f"{nearest(token, vocabulary)}; name one as the tokenizer spells it"
            )
        ids.add(vocabulary[token])
    return tuple(sorted(ids))


def _join(
    prompts: list[tuple[int, ...]], tokens_BT: Tensor, mask_BT: Tensor, pad_id: int
) -> Tensor:
    """Prompt and response side by side, padded on the right, [B, L]."""
    lengths = [len(p) + int(n) for p, n in zip(prompts, mask_BT.sum(1), strict=True)]
    tokens_BL = torch.full((len(prompts), max(lengths)), pad_id, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        tokens_BL[row, : len(prompt)] = torch.tensor(prompt)
        tokens_BL[row, len(prompt) : lengths[row]] = tokens_BT[row][mask_BT[row]]
    return tokens_BL
