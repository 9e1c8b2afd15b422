"""The arithmetic of PPO as pure functions of tensors. Legend and mask rule: ``checks``."""

from rlhf_core.ppo.advantages import (
    ADVANTAGES,
    NEEDS_CRITIC,
    NEEDS_GROUPS,
    USUAL_WHITENING,
    Estimator,
    Whitening,
    baselined_scores,
    estimate_advantages,
)
from rlhf_core.ppo.aggregation import AGGREGATIONS, Aggregation, Normalizer, aggregate
from rlhf_core.ppo.correction import CORRECTIONS, Correction, CorrectionKind, correct
from rlhf_core.ppo.gae import discounted_returns, gae
from rlhf_core.ppo.groups import (
    group_mean,
    group_size,
    group_std,
    groups_with_spread,
    leave_one_out_mean,
)
from rlhf_core.ppo.kl import (
    ESTIMATORS,
    LOG_RATIO_BOUND,
    KLEstimator,
    KLGradient,
    estimate,
    k1,
    k2,
    k3,
    kl_surrogate,
)
from rlhf_core.ppo.kl_control import KLController, KLUnit, mean_kl
from rlhf_core.ppo.logprobs import entropy, token_logprobs, token_logprobs_and_entropy
from rlhf_core.ppo.losses import RATIOS, Ratio, entropy_bonus, kl_loss, policy_loss, value_loss
from rlhf_core.ppo.masked import masked_mean, masked_sum, masked_var, one_past, whiten
from rlhf_core.ppo.minibatches import micro_batches, minibatch_indices
from rlhf_core.ppo.rewards import clip_scores, kl_penalised, missing_eos_penalty, terminal_rewards
from rlhf_core.ppo.schedule import ScheduleKind, lr_scale
from rlhf_core.ppo.scores import (
    RunningNorm,
    combine_scores,
    normalise_scores,
    overlong_penalty,
    truncation_penalty,
)
from rlhf_core.ppo.stats import CorrectionStats, EntropyStats, KLStats, PolicyStats, ValueStats

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "CORRECTIONS",
    "ESTIMATORS",
    "LOG_RATIO_BOUND",
    "NEEDS_CRITIC",
    "NEEDS_GROUPS",
    "RATIOS",
    "USUAL_WHITENING",
    "Aggregation",
    "Correction",
    "CorrectionKind",
    "CorrectionStats",
    "EntropyStats",
    "Estimator",
    "KLController",
    "KLEstimator",
    "KLGradient",
    "KLStats",
    "KLUnit",
    "Normalizer",
    "PolicyStats",
    "Ratio",
    "RunningNorm",
    "ScheduleKind",
    "ValueStats",
    "Whitening",
    "aggregate",
    "baselined_scores",
    "clip_scores",
    "combine_scores",
    "correct",
    "discounted_returns",
    "entropy",
    "entropy_bonus",
    "estimate",
    "estimate_advantages",
    "gae",
    "group_mean",
    "group_size",
    "group_std",
    "groups_with_spread",
    "k1",
    "k2",
    "k3",
    "kl_loss",
    "kl_penalised",
    "kl_surrogate",
    "leave_one_out_mean",
    "lr_scale",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "mean_kl",
    "micro_batches",
    "minibatch_indices",
    "missing_eos_penalty",
    "normalise_scores",
    "one_past",
    "overlong_penalty",
    "policy_loss",
    "terminal_rewards",
    "token_logprobs",
    "token_logprobs_and_entropy",
    "truncation_penalty",
    "value_loss",
    "whiten",
]
