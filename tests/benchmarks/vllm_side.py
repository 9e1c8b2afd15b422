"""vLLM as a side of the benchmark of generation, where it is installed and takes the model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlhf_core.config import TrialConfig, apply
from rlhf_core.errors import ConfigError
from rlhf_core.generation.sampler import Sampling
from rlhf_core.generation.vllm_checks import is_installed

CPU = torch.device("cpu")


def vllm_side(
    model: Any, rows: Sequence[Sequence[int]], sampling: Sampling
) -> Callable[[int], Any] | str:
    """One batch of vLLM's as a function of the seed, or why there is none."""
    if not is_installed():
        return "not installed"
    from rlhf_core.generation.vllm_engine import VllmEngine

    # Long enough for the engine to have read it.
    with tempfile.TemporaryDirectory() as folder:
        source = str(Path(folder) / "policy")
        model.save_pretrained(source)
        config = apply(
            TrialConfig(),
            {
                "rollout.engine": "vllm",
                "data.max_prompt_tokens": max(map(len, rows)),
                "rollout.max_new_tokens": sampling.max_new_tokens,
                "rollout.prompts_per_iteration": len(rows),
                "rollout.chunk_size": len(rows),
            },
        )
        try:
            engine = VllmEngine(config, source, model, CPU)
        except ConfigError as error:
            return str(error)
    # It refuses a token outside the vocabulary, with which the others never stop.
    endless = replace(sampling, stop_ids=())
    return lambda seed: engine.sample(rows, endless, seed)
