"""The arithmetic of PPO as pure functions of tensors. Legend and mask rule: ``checks``."""

from rlhf_core.ppo.gae import gae
from rlhf_core.ppo.kl import ESTIMATORS, LOG_RATIO_BOUND, KLEstimator, estimate, k1, k2, k3
from rlhf_core.ppo.kl_control import KLController
from rlhf_core.ppo.logprobs import entropy, token_logprobs, token_logprobs_and_entropy
from rlhf_core.ppo.losses import entropy_bonus, policy_loss, value_loss
from rlhf_core.ppo.masked import masked_mean, masked_sum, masked_var, whiten
from rlhf_core.ppo.minibatches import micro_batches, minibatch_indices
from rlhf_core.ppo.rewards import clip_scores, kl_penalised, missing_eos_penalty, terminal_rewards
from rlhf_core.ppo.schedule import ScheduleKind, lr_scale
from rlhf_core.ppo.stats import EntropyStats, PolicyStats, ValueStats

__all__ = [
    "ESTIMATORS",
    "LOG_RATIO_BOUND",
    "EntropyStats",
    "KLController",
    "KLEstimator",
    "PolicyStats",
    "ScheduleKind",
    "ValueStats",
    "clip_scores",
    "entropy",
    "entropy_bonus",
    "estimate",
    "gae",
    "k1",
    "k2",
    "k3",
    "kl_penalised",
    "lr_scale",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "micro_batches",
    "minibatch_indices",
    "missing_eos_penalty",
    "policy_loss",
    "terminal_rewards",
    "token_logprobs",
    "token_logprobs_and_entropy",
    "value_loss",
    "whiten",
]
