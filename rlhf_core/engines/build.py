"""Configuration -> training engine."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from rlhf_core.config.trial import TrialConfig
from rlhf_core.engines.base import TrainingEngine
from rlhf_core.engines.torch_engine import TorchEngine
from rlhf_core.ranks import Ranks


def build_engine(
    config: TrialConfig, role: str, module: nn.Module, group: Callable[[], Ranks]
) -> TrainingEngine:
    """The engine that ``optim.engine`` names; for deepspeed all ranks call it together.

    Args:
        config: The trial.
        role: Name of the role.
        module: What it trains.
        group: The ranks of the role.

    Raises:
        ConfigError: If DeepSpeed is asked for and not installed.
    """
    if config.optim.engine == "torch":
        return TorchEngine(role, module, group)
    from rlhf_core.engines.deepspeed_engine import DeepSpeedEngine

    return DeepSpeedEngine(config, role, module, group)
