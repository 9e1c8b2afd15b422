"""What vLLM is asked for and what becomes of its answers; without vLLM.

The engine's temperature is 1: logits are divided by the trial's before they reach its sampler, so that what it
calls raw log-probabilities are those of the whole distribution at that temperature, whatever top-p and top-k cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf_core.config.trial import TrialConfig
from rlhf_core.generation.blocks import CPU_BLOCK, engine_cache, longest_row, rows_at_once
from rlhf_core.generation.sampler import Sampling
from rlhf_core.models.size import ModelShape
from rlhf_core.seeding import derive

# With a cache of a given size vLLM only asks whether this part of the GPU is free when it starts.
LEAST = 0.01


def engine_options(
    config: TrialConfig,
    shape: ModelShape | None,
    positions: int | None,
    *,
    on_gpu: bool,
    sleeps: bool,
) -> dict[str, Any]:
    """Arguments of ``vllm.LLM`` beside the model.

    Args:
        config: The trial.
        shape: Shape of the policy; None: not known, vLLM sizes its cache itself.
        positions: Longest sequence the policy has positions for; None: no limit.
        on_gpu: Whether it computes on a GPU.
        sleeps: Whether it is to give up its memory between batches.
    """
    own, longest = config.rollout.vllm, longest_row(config)
    options: dict[str, Any] = {
        "dtype": config.model.dtype,
        "seed": 0,
        "max_model_len": longest if positions is None else min(longest, positions),
        "max_num_seqs": rows_at_once(config),
        "enforce_eager": not on_gpu if own.enforce_eager is None else own.enforce_eager,
        "enable_sleep_mode": sleeps,
        # Blocks computed by one batch would make the numbers of the next depend on it.
        "enable_prefix_caching": False,
        "logprobs_mode": "raw_logprobs",
        # Neither the tokenizer nor the sampling defaults of the model's folder.
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        # Only vLLM's own models take weights under the names they are delivered with.
        "model_impl": "vllm",
        "disable_log_stats": True,
    }
    if not on_gpu:
        options["block_size"] = CPU_BLOCK
    if own.gpu_memory_utilization is not None:
        options["gpu_memory_utilization"] = own.gpu_memory_utilization
    elif shape is not None:
        options["kv_cache_memory_bytes"] = engine_cache(config, shape)
        options["gpu_memory_utilization"] = LEAST
    return options


def request_options(sampling: Sampling, seed: int, rows: int) -> list[dict[str, Any]]:
    """Arguments of ``vllm.SamplingParams`` for each row of a batch.

    Args:
        sampling: How to sample.
        seed: Seed of the batch; every row has one of its own, that follows from it and its place.
        rows: Rows of the batch.
    """
    shared: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": list(sampling.stop_ids),
        # All tokens that end a response are among these.
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }
    return [{**shared, "seed": derive(seed, "row", row)} for row in range(rows)]


def drawn(
    rows: Sequence[tuple[Sequence[int], Sequence[float]]], pad_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and log-probabilities of every row as ``generation.sampler.sample`` returns them.

    Example:
        >>> drawn([([5, 1], [-0.5, -1.0]), ([7], [-2.0])], pad_id=0)[0].tolist()
        [[5, 1], [7, 0]]
    """
    depth = max(len(tokens) for tokens, _ in rows)
    tokens_BT = torch.full((len(rows), depth), pad_id, dtype=torch.int64)
    logprobs_BT = torch.zeros(len(rows), depth)
    mask_BT = torch.zeros(len(rows), depth, dtype=torch.bool)
    for row, (tokens, logprobs) in enumerate(rows):
        tokens_BT[row, : len(tokens)] = torch.tensor(tokens)
        logprobs_BT[row, : len(tokens)] = torch.tensor(logprobs)
        mask_BT[row, : len(tokens)] = True
    return tokens_BT, logprobs_BT, mask_BT
