"""The cases of TRL's PPO through our functions, with the settings that reproduce its readings."""

from __future__ import annotations

from collections.abc import Callable

import torch
import vectors_shared as shared
import vectors_verl
from torch import Tensor
from vector_case import Case, Result

from rlhf_core import ppo


def _logits(case: Case) -> Result:
    # TRL divides by the temperature plus 1e-7; logits are those from the last prompt token on.
    start = case.params["context_length"] - 1
    labels_BT = case.ids("labels")
    logits_BTV = case.f64("logits")
    if logits_BTV.shape[1] != labels_BT.shape[1]:
        logits_BTV = logits_BTV[:, start : start + labels_BT.shape[1]]
    logprobs_BT, entropy_BT = ppo.token_logprobs_and_entropy(
        logits_BTV, labels_BT, temperature=case.params["temperature"] + 1e-7
    )
    return {"log_probs": logprobs_BT, "entropy": entropy_BT, "entropy_from_logits": entropy_BT}


def _losses(case: Case) -> Result:
    params, mask_BT, mask_p1_BT = case.params, case.mask(), case.mask("mask_p1")
    assert torch.equal(ppo.one_past(mask_BT), mask_p1_BT)
    logprobs_BT, values_BT = case.f64("new_logprobs", grad=True), case.f64("vpred", grad=True)
    policy, policy_stats = ppo.policy_loss(
        logprobs_BT,
        case.f64("logprobs"),
        case.f64("advantages"),
        mask_BT,
        clip_low=params["cliprange"],
        clip_high=params["cliprange"],
        log_ratio_clamp=None,
    )
    value, value_stats = ppo.value_loss(
        values_BT,
        case.f64("values"),
        case.f64("returns"),
        mask_p1_BT,
        clip_range=params["cliprange_value"],
    )
    loss = policy + params["vf_coef"] * value
    numbers = policy_stats.metrics()
    return {
        "pg_loss": policy,
        "vf_loss": value,
        "loss": loss,
        "pg_clipfrac": numbers["clip_fraction_low"] + numbers["clip_fraction_high"],
        "vf_clipfrac": value_stats.metrics()["clip_fraction"],
        "grad_pg_loss_new_logprobs": shared.gradient(policy, logprobs_BT),
        "grad_vf_loss_vpred": shared.gradient(value, values_BT),
        "grad_loss_new_logprobs": shared.gradient(loss, logprobs_BT),
        "grad_loss_vpred": shared.gradient(loss, values_BT),
    }


def _advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """GAE over the mask widened by one position, whitened over the mask itself."""
    mask_p1_BT = ppo.one_past(mask_BT)
    advantages_BT, returns_BT = ppo.gae(rewards_BT, values_BT, mask_p1_BT, gamma=gamma, lam=lam)
    return ppo.whiten(advantages_BT, mask_BT, unbiased=True), returns_BT


def _rollout_gae(case: Case) -> Result:
    params = case.params
    responses_BT = torch.tensor(case.outputs["postprocessed_responses"])
    last_B1 = torch.tensor(case.outputs["last_token_index"]).unsqueeze(1)
    mask_BT = torch.arange(responses_BT.shape[1]) <= last_B1
    mask_p1_BT = ppo.one_past(mask_BT)
    scores_B = case.f64("scores")
    if params["missing_eos_penalty"] is not None:
        finished_B = (responses_BT == params["eos_token_id"]).any(1)
        scores_B = ppo.missing_eos_penalty(
            scores_B, finished_B, penalty=params["missing_eos_penalty"]
        )
    logprobs_BT = case.f64("logprobs")
    kl_BT = ppo.estimate(
        params["kl_estimator"], logprobs_BT, case.f64("ref_logprobs"), **shared.UNBOUNDED
    ).masked_fill(~mask_BT, 0.0)
    rewards_BT = ppo.kl_penalised(scores_B, kl_BT, mask_p1_BT, coef=params["kl_coef"])
    if params["whiten_rewards"]:
        rewards_BT = ppo.whiten(rewards_BT, mask_p1_BT, shift_mean=False, unbiased=True)
    advantages_BT, returns_BT = _advantages(
        rewards_BT, case.f64("values"), mask_BT, params["gamma"], params["lam"]
    )
    penalty = -params["kl_coef"] * ppo.mean_kl(kl_BT, mask_BT, per="response")
    return {
        "mask": mask_BT,
        "mask_p1": mask_p1_BT,
        "scores_after_penalty": scores_B,
        "kl": kl_BT,
        "token_rewards": rewards_BT,
        "advantages": advantages_BT,
        "returns": (returns_BT, mask_p1_BT),
        "mean_kl": ppo.mean_kl(kl_BT, mask_BT, per="response"),
        "mean_entropy": ppo.mean_kl(-logprobs_BT, mask_BT, per="response"),
        "mean_non_score_reward": penalty,
        "rlhf_reward": penalty + scores_B.mean(),
    }


def _same_input(case: Case) -> Result:
    name, params = case.name, case.params
    if name.startswith("kl_"):
        return shared.kl_over_gaps(case, **shared.UNBOUNDED)
    mask_BT = case.mask()
    if name.startswith("policy_"):
        return shared.same_input_policy(case, log_ratio_clamp=None)
    if name == "value_loss":
        return shared.same_input_value(case, ppo.one_past(mask_BT))
    rewards_BT = ppo.terminal_rewards(case.f64("score"), ppo.one_past(mask_BT))
    advantages_BT, returns_BT = _advantages(
        rewards_BT, case.f64("values"), mask_BT, params["gamma"], params["lam"]
    )
    return {"advantages": (advantages_BT, mask_BT), "returns": (returns_BT, mask_BT)}


RUNNERS: dict[str, Callable[[Case], Result]] = {
    "trl.logits": _logits,
    "trl.losses": _losses,
    "trl.rollout_gae": _rollout_gae,
    "trl.same_input": _same_input,
    "trl.whiten": vectors_verl.whitened,
}
