"""The cases of verl through our functions, with the settings that reproduce its readings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import vectors_shared as shared
from torch import Tensor
from vector_case import Case, Result

from rlhf_core import ppo

WHITEN: dict[str, Any] = {"whiten_unbiased": True, "whiten_floor": "add", "whiten_eps": 1e-8}
GROUPS: dict[str, Any] = {"group_eps": 1e-6, "kl_placement": "sequence"}
GSPO: dict[str, Any] = {"ratio": "sequence_token", "log_ratio_clamp": (-math.inf, 10.0)}
KL: dict[str, dict[str, Any]] = {
    "k1": {},
    "k2": {},
    "k3": {"bound": 20.0, "value_clamp": 10.0},
}
ESTIMATORS = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
ADVANTAGES = {
    "grpo": "group_norm",
    "grpo_nostd": "dr_grpo",
    "grpo_vectorized": "group_norm",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "reinforce_plus_plus_baseline": "reinforce_baseline",
    "reinforce_plus_plus": "reinforce",
}


def _from_token_rewards(case: Case, estimator: str, **options: Any) -> Result:
    """An estimator over token rewards: a score of 0 and a penalty that is minus the reward."""
    mask_BT, rewards_BT = case.mask(), case.f64("token_rewards")
    advantages_BT, returns_BT = ppo.estimate_advantages(
        estimator,
        scores_B=torch.zeros(len(mask_BT), dtype=torch.float64),
        kl_BT=-rewards_BT,
        kl_coef=1.0,
        mask_BT=mask_BT,
        whitening=ppo.USUAL_WHITENING[estimator],
        **WHITEN,
        **GROUPS,
        **options,
    )
    return {"advantages": (advantages_BT, mask_BT), "returns": (returns_BT, mask_BT)}


def _advantages(case: Case) -> Result:
    name = case.name.removesuffix("_three_samples").removesuffix("_singletons")
    single = "keep" if case.name.endswith("_singletons") else "zero"
    return _from_token_rewards(
        case,
        ADVANTAGES[name],
        groups_B=case.ids("group"),
        gamma=case.params.get("gamma", 1.0),
        single=single,
    )


def _gae(case: Case) -> Result:
    return _from_token_rewards(
        case,
        "gae",
        values_BT=case.f64("values"),
        gamma=case.params["gamma"],
        lam=case.params["lam"],
    )


def _kl_penalty(case: Case) -> Result:
    logprobs_BT, mask_BT = case.f64("logprob", grad=True), case.mask()
    name = case.params["kl_penalty"]
    estimator = ESTIMATORS[name.removesuffix("+")]
    kl_BT = ppo.kl_surrogate(
        estimator,
        logprobs_BT,
        case.f64("ref_logprob"),
        gradient="straight_through" if name.endswith("+") else "pathwise",
        **KL[estimator],
    )
    grad_BT = shared.gradient(ppo.masked_sum(kl_BT, mask_BT), logprobs_BT)
    return {"kl": kl_BT, "grad_logprob": grad_BT}


def _reward(case: Case) -> Result:
    params, mask_BT = case.params, case.mask()
    estimator = ESTIMATORS[params["kl_penalty"]]
    kl_BT = ppo.estimate(
        estimator, case.f64("old_log_probs"), case.f64("ref_log_prob"), **KL[estimator]
    )
    controller = ppo.KLController(params["init_kl_coef"], params["target_kl"], params["horizon"])
    kl = float(ppo.mean_kl(kl_BT, mask_BT, per="response_token"))
    # The caller has placed the scores already.
    scores_BT = case.f64("token_level_scores")
    nothing_B = torch.zeros(len(mask_BT), dtype=torch.float64)
    rewards_BT = scores_BT + ppo.kl_penalised(nothing_B, kl_BT, mask_BT, coef=controller.coef)
    return {
        "token_level_rewards": rewards_BT,
        "current_kl": kl,
        "coefficient_used": controller.coef,
        "coefficient_after_update": controller.update(kl, len(mask_BT)).coef,
    }


def _logits(case: Case) -> Result:
    logprobs_BT, entropy_BT, grad_BTV = shared.entropies(case, case.params["temperature"])
    mask_BT = case.mask()
    loss, _ = ppo.entropy_bonus(
        entropy_BT,
        mask_BT,
        coef=-1.0,
        **shared.aggregation(case, mask_BT, case.params["loss_agg_mode"]),
    )
    return {
        "log_probs": logprobs_BT,
        "entropy": entropy_BT,
        "entropy_loss": loss,
        "grad_scaled_logits": grad_BTV,
    }


def _policy_loss(case: Case) -> Result:
    params, mask_BT = case.params, case.mask()
    logprobs_BT = case.f64("log_prob", grad=True)
    gspo, bypass = case.name.startswith("gspo"), case.name.startswith("bypass")
    old_BT = case.f64("rollout_log_prob" if bypass else "old_log_prob")
    shown: dict[str, Any] = {}
    if bypass:
        assert params["rollout_rs"] == "token_k1"
        fix = _reject("icepop", params["rollout_rs_threshold"], logprobs_BT, old_BT, mask_BT)
        shown["share_of_tokens_rejected"] = fix.stats.metrics()["rejected_share"]
        mask_BT = fix.kept_BT
    loss, stats = ppo.policy_loss(
        logprobs_BT,
        old_BT,
        case.f64("advantages"),
        mask_BT,
        clip_low=params.get("clip_ratio_low", params.get("cliprange")),
        clip_high=params.get("clip_ratio_high", params.get("cliprange")),
        dual_clip=None if gspo else params["clip_ratio_c"],
        weights_BT=case.f64("rollout_is_weights") if case.has("rollout_is_weights") else None,
        **(GSPO if gspo else {}),
        **shared.aggregation(case, mask_BT, params["loss_agg_mode"]),
    )
    numbers = stats.metrics()
    return shown | {
        "loss": loss,
        "grad_log_prob": shared.gradient(loss, logprobs_BT),
        "pg_clipfrac": numbers["clip_fraction_low"] + numbers["clip_fraction_high"],
        "ppo_kl": numbers["approx_kl_k1"],
        "pg_clipfrac_lower": numbers.get("dual_clip_fraction", 0.0),
    }


def _reject(
    kind: str, threshold: str, old_BT: Tensor, rollout_BT: Tensor, mask_BT: Tensor
) -> ppo.Correction:
    """Rejection by bounds on rollout / old, the inverse of our ratio; one number u is 1/u to u."""
    numbers = [float(x) for x in threshold.split("_")]
    low, high = numbers if len(numbers) == 2 else (1 / numbers[0], numbers[0])
    return ppo.correct(kind, old_BT, rollout_BT, mask_BT, low=1 / high, high=1 / low)


def _rollout_correction(case: Case) -> Result:
    params, mask_BT = case.params, case.mask()
    old_BT, rollout_BT = case.f64("old_log_prob"), case.f64("rollout_log_prob")
    if case.name == "offpolicy_metrics":
        numbers = ppo.correct("none", old_BT, rollout_BT, mask_BT).stats.metrics()
        return {"metrics": {"kl": numbers["kl_k1"], "k3_kl": numbers["kl_k3"]}}
    if "rollout_rs" in params:
        kind = {"token_k1": "icepop", "seq_mean_k1": "sequence_mask"}[params["rollout_rs"]]
        fix = _reject(kind, params["rollout_rs_threshold"], old_BT, rollout_BT, mask_BT)
        numbers = fix.stats.metrics()
        return {
            "new_mask": fix.kept_BT,
            "masked_fraction": numbers["rejected_share"],
            "seq_masked_fraction": numbers["rejected_sequence_share"],
        }
    threshold = params["rollout_is_threshold"]
    assert params["rollout_is"] == "token"
    assert not params["rollout_is_batch_normalize"]
    if isinstance(threshold, str):
        low, high = (float(x) for x in threshold.split("_"))
        fix = ppo.correct("icepop", old_BT, rollout_BT, mask_BT, low=low, high=high)
    else:
        fix = ppo.correct("tis", old_BT, rollout_BT, mask_BT, high=threshold)
    numbers = fix.stats.metrics()
    metrics = {
        "rollout_is_mean": numbers["weight_mean"],
        "rollout_is_max": numbers["weight_max"],
        "rollout_is_eff_sample_size": numbers["effective_share"],
        "rollout_is_ratio_fraction_high": numbers["above_share"],
    }
    if isinstance(threshold, str):
        metrics["rollout_is_ratio_fraction_low"] = numbers["below_share"]
        metrics["rollout_is_oob_ratio"] = numbers["rejected_share"]
    return {"weights": fix.weights_BT, "metrics": metrics}


def _value_loss(case: Case) -> Result:
    values_BT, mask_BT = case.f64("vpreds", grad=True), case.mask()
    loss, stats = ppo.value_loss(
        values_BT,
        case.f64("values"),
        case.f64("returns"),
        mask_BT,
        clip_range=case.params["cliprange_value"],
        **shared.aggregation(case, mask_BT, case.params["loss_agg_mode"]),
    )
    return {
        "loss": loss,
        "vf_clipfrac": stats.metrics()["clip_fraction"],
        "grad_vpreds": shared.gradient(loss, values_BT),
    }


def _aggregation(case: Case) -> Result:
    x_BT, mask_BT = case.f64("loss", grad=True), case.mask()
    options = shared.aggregation(case, mask_BT, case.params["loss_agg_mode"])
    value = ppo.aggregate(x_BT, mask_BT, **options)
    return {"value": value, "grad_loss": shared.gradient(value, x_BT)}


def whitened(case: Case) -> Result:
    """Whitening and masked statistics, as verl and TRL define them."""
    x_BT, mask_BT = case.f64("values"), case.mask()
    white_BT = ppo.whiten(x_BT, mask_BT, unbiased=True, shift_mean=case.params["shift_mean"])
    return {
        "whitened": (white_BT, mask_BT),
        "masked_mean": ppo.masked_mean(x_BT, mask_BT),
        "masked_var_unbiased": ppo.masked_var(x_BT, mask_BT, unbiased=True),
        "masked_var_biased": ppo.masked_var(x_BT, mask_BT),
        "masked_mean_per_sequence": ppo.masked_mean(x_BT, mask_BT, dim=1),
        "masked_sum": ppo.masked_sum(x_BT, mask_BT),
    }


def _same_input(case: Case) -> Result:
    name, params = case.name, case.params
    if name.startswith("kl_"):
        return shared.kl_over_gaps(case, **KL[params["estimator"]])
    mask_BT = case.mask()
    if name == "policy_gspo":
        return shared.same_input_policy(case, **GSPO)
    if name.startswith("policy_"):
        options: dict[str, Any] = {"dual_clip": params.get("dual_clip", 3.0)}
        if name == "policy_tis":
            options["weights_BT"] = shared.same_input_weights(case, kind="tis", high=params["high"])
        if name == "policy_icepop":
            options["weights_BT"] = shared.same_input_weights(
                case, kind="icepop", low=params["low"], high=params["high"]
            )
        return shared.same_input_policy(case, **options)
    if name == "value_loss":
        return shared.same_input_value(case, mask_BT)
    scores_B = case.f64("score")
    if name.startswith("group_norm"):
        pairs_B = shared.in_pairs(case)
        return {"sequence_advantage": ppo.baselined_scores("group_norm", scores_B, pairs_B)}
    estimator = "gae" if name.startswith("gae") else name.rsplit("_kl", 1)[0]
    advantages_BT, returns_BT = ppo.estimate_advantages(
        estimator,
        scores_B=scores_B,
        kl_BT=case.f64("kl") if case.has("kl") else torch.zeros(mask_BT.shape),
        kl_coef=params.get("kl_coef", 0.0),
        mask_BT=mask_BT,
        groups_B=None if estimator == "gae" else shared.in_pairs(case),
        values_BT=case.f64("values") if case.has("values") else None,
        gamma=params.get("gamma", 1.0),
        lam=params.get("lam", 1.0),
        whitening=ppo.USUAL_WHITENING[estimator],
        **WHITEN,
        **GROUPS,
    )
    return {"advantages": (advantages_BT, mask_BT), "returns": (returns_BT, mask_BT)}


RUNNERS: dict[str, Callable[[Case], Result]] = {
    "verl.advantages": _advantages,
    "verl.aggregation": _aggregation,
    "verl.gae": _gae,
    "verl.kl_controller": lambda case: shared.adaptive(case, "target_kl", "current_kl"),
    "verl.kl_penalty": _kl_penalty,
    "verl.logits": _logits,
    "verl.policy_loss": _policy_loss,
    "verl.reward": _reward,
    "verl.rollout_correction": _rollout_correction,
    "verl.same_input": _same_input,
    "verl.value_loss": _value_loss,
    "verl.whiten": whitened,
}
