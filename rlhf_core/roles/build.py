"""Role name -> role object."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_core.assets import Assets, resolve
from rlhf_core.config.trial import TrialConfig
from rlhf_core.roles.critic import CriticRole
from rlhf_core.roles.learner import LearnerRole
from rlhf_core.roles.reference import ReferenceRole
from rlhf_core.roles.reward import RewardRole
from rlhf_core.roles.rollout import RolloutRole

_KINDS: dict[str, Any] = {
    "rollout": RolloutRole,
    "learner": LearnerRole,
    "critic": CriticRole,
    "reference": ReferenceRole,
    "reward": RewardRole,
}


def build_role(
    name: str, config: TrialConfig, device: torch.device, assets: Assets | None = None
) -> Any:
    """The role ``name`` with its models loaded, by default those that ``config`` names."""
    return _KINDS[name](config, assets or resolve(config), device)
