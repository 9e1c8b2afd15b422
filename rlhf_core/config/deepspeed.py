"""The part of DeepSpeed's JSON that follows from the configuration. Pure and torch-free."""

from __future__ import annotations

from typing import Any

from rlhf_core.config.trial import OptimConfig, TrialConfig


def sharding(optim: OptimConfig, *, half: bool) -> dict[str, Any]:
    """The sections that say what is sharded, where it lies, and in which types it is added up.

    Args:
        optim: ``zero_stage`` and ``offload`` count.
        half: Whether the weights are bfloat16.
    """
    zero: dict[str, Any] = {"stage": optim.zero_stage}
    if optim.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if optim.offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    sections: dict[str, Any] = {"zero_optimization": zero, "bf16": {"enabled": half}}
    if half:
        # A gradient that is not finite moves nothing.
        sections["bf16"]["check_grad_overflow"] = True
        # Passes add up, and ranks are summed, in float32.
        sections["data_types"] = {"grad_accum_dtype": "fp32"}
        sections["communication_data_type"] = "fp32"
    return sections


def engine_json(config: TrialConfig, ranks: int, width: int) -> dict[str, Any]:
    """What DeepSpeed is started with.

    The caller cuts the batch, says which pass is the last of a step, and gives the optimiser with its settings at
    every step; so a batch is one pass on every rank here, and nothing is said of optimiser, schedule and clipping.

    Args:
        config: The trial.
        ranks: Of the role.
        width: Of the model's hidden states; norms and biases are no larger than some of it.
    """
    sections = sharding(config.optim, half=config.model.dtype == "bfloat16")
    if config.optim.zero_stage == 3:
        # Smaller ones stay whole on every rank: gathering them would cost more than they take.
        sections["zero_optimization"]["stage3_param_persistence_threshold"] = 10 * width
    return {
        "train_batch_size": ranks,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **sections,
    }
