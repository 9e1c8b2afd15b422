"""How much cache vLLM is given: room for the largest chunk, in its blocks. Torch-free."""

from __future__ import annotations

from rlhf_core.config.trial import TrialConfig
from rlhf_core.models.size import ITEM_BYTES, ModelShape
from rlhf_core.runtime.placement import GB

# Tokens in a block: what vLLM's kernels for CPUs take, and a multiple of what those for GPUs do.
CPU_BLOCK, GPU_BLOCK = 32, 64


def rows_at_once(config: TrialConfig) -> int:
    """Responses of the largest chunk."""
    rollout = config.rollout
    partial = rollout.partial_tokens is not None
    prompts = rollout.prompts_under_way if partial else rollout.prompts_per_iteration
    return min(rollout.chunk_size, prompts) * rollout.samples_per_prompt


def longest_row(config: TrialConfig) -> int:
    """Tokens of the longest prompt and response together."""
    return config.data.max_prompt_tokens + config.rollout.max_new_tokens


def engine_cache(config: TrialConfig, shape: ModelShape) -> int:
    """Bytes of keys and values for every row of the largest chunk, in whole blocks, and of a block to spare."""
    blocks = rows_at_once(config) * -(-longest_row(config) // GPU_BLOCK) + 1
    token = shape.layers * 2 * shape.key * ITEM_BYTES[config.model.dtype]
    return blocks * GPU_BLOCK * token


def held_cache(config: TrialConfig, shape: ModelShape, weights: int) -> int:
    """Bytes of the cache beside ``weights`` bytes: as above, or what is left of its part of a GPU."""
    taken, each = config.rollout.vllm.gpu_memory_utilization, config.resources.gpu_memory_gb
    if taken is None or each is None:
        return engine_cache(config, shape)
    return max(0, int(taken * each * GB) - weights)
