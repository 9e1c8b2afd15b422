"""The cases of OpenRLHF through our functions, with the settings that reproduce its readings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import vectors_shared as shared
from torch import Tensor
from vector_case import Case, Result

from rlhf_core import ppo

WHITEN: dict[str, Any] = {"whiten_floor": "clamp", "whiten_eps": 1e-8}
GROUPS: dict[str, Any] = {"group_eps": 1e-9, "kl_placement": "token"}
KL: dict[str, Any] = {"bound": 10.0, "value_clamp": 10.0}


def _advantages(case: Case) -> Result:
    if "micro_batches" in case.raw["inputs"]:
        return _micro_batches(case)
    scores_B = case.f64("rewards")
    values_BT = case.f64("values") if case.has("values") else None
    lengths_B = case.ids("response_length") if case.has("response_length") else None
    finished_B = case.ids("truncated") == 0 if case.has("truncated") else None
    penalised_B = _penalised(case.params, scores_B, lengths_B, finished_B)
    groups_B = torch.arange(len(scores_B)) // case.params["n_samples_per_prompt"]
    mask_BT, kl_BT = case.mask(), case.f64("kl")
    out = _estimate(case.params, penalised_B, kl_BT, mask_BT, groups_B, values_BT)
    return {
        "advantages": (out[0], mask_BT),
        "returns": (out[1], mask_BT),
        "sequence_return": out[2],
        "rewards_after_penalties": penalised_B,
        "group_reward_std": ppo.group_std(penalised_B, groups_B),
    }


def _estimate(
    params: dict[str, Any],
    scores_B: Tensor,
    kl_BT: Tensor,
    mask_BT: Tensor,
    groups_B: Tensor,
    values_BT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Advantages, returns, and the sum of token rewards."""
    estimator = params["estimator"]
    if estimator == "flash_reinforce":
        # The mean over the whole batch is the mean of one group.
        estimator, groups_B = "dr_grpo", torch.zeros_like(groups_B)
    whitening = ppo.USUAL_WHITENING[estimator]
    if whitening != "off" and params["no_std_norm"]:
        whitening = "mean"
    low, high = params["reward_clip_range"]
    advantages_BT, returns_BT = ppo.estimate_advantages(
        estimator,
        scores_B=scores_B,
        kl_BT=kl_BT,
        kl_coef=params["kl_coef"],
        mask_BT=mask_BT,
        groups_B=groups_B,
        values_BT=values_BT,
        gamma=params["gamma"],
        lam=params["lam"],
        whitening=whitening,
        clip_baselined=(low, high),
        holes="step",
        **WHITEN,
        **GROUPS,
    )
    baselined_B = ppo.baselined_scores(estimator, scores_B, groups_B, group_eps=1e-9)
    clipped_B = ppo.clip_scores(baselined_B, low=low, high=high)
    rewards_BT = ppo.kl_penalised(clipped_B, kl_BT, mask_BT, coef=params["kl_coef"])
    return advantages_BT, returns_BT, rewards_BT.sum(1)


def _micro_batches(case: Case) -> Result:
    parts = case.raw["inputs"]["micro_batches"]
    width = max(len(part["mask"][0]) for part in parts)

    def joined(name: str) -> Tensor:
        tensors = [torch.tensor(part[name], dtype=torch.float64) for part in parts]
        return torch.cat([torch.nn.functional.pad(x, (0, width - x.shape[1])) for x in tensors])

    rows_B = torch.tensor([i for part in parts for i in part["index"]])
    scores_B = torch.tensor([r for part in parts for r in part["rewards"]], dtype=torch.float64)
    mask_BT = joined("mask") != 0
    values_BT = joined("values") if "values" in parts[0] else None
    groups_B = rows_B // case.params["n_samples_per_prompt"]
    out = _estimate(case.params, scores_B, joined("kl"), mask_BT, groups_B, values_BT)
    shown, start = [], 0
    for index, part in enumerate(parts):
        stop, cut = start + len(part["index"]), len(part["mask"][0])
        part_BT = mask_BT[start:stop, :cut]
        theirs = case.outputs["micro_batches"][index]
        mine = {
            "advantages": (out[0][start:stop, :cut], part_BT),
            "returns": (out[1][start:stop, :cut], part_BT),
            "sequence_return": out[2][start:stop],
        }
        assert set(theirs) == set(mine)
        shown.append(mine)
        start = stop
    return {"micro_batches": shown}


def _penalised(
    params: dict[str, Any], scores_B: Tensor, lengths_B: Tensor | None, finished_B: Tensor | None
) -> Tensor:
    if "overlong_buffer_len" in params:
        assert lengths_B is not None
        scores_B = ppo.overlong_penalty(
            scores_B,
            lengths_B,
            max_length=params["max_new_tokens"],
            buffer=params["overlong_buffer_len"],
            factor=params["overlong_penalty_factor"],
        )
    if "stop_properly_penalty_coef" in params:
        assert finished_B is not None
        coef = params["stop_properly_penalty_coef"]
        scores_B = ppo.truncation_penalty(scores_B, finished_B, coef=coef)
    return scores_B


def _length_penalty(case: Case) -> Result:
    scores_B = case.f64("rewards")
    finished_B = case.ids("truncated") == 0 if case.has("truncated") else None
    out_B = _penalised(case.params, scores_B, case.ids("response_length"), finished_B)
    # A score of 0 that is scaled is touched and stays the same.
    touched = (out_B != scores_B).sum() if finished_B is None else (~finished_B).sum()
    return {"rewards": out_B, "number_penalised": touched}


def _gae(case: Case) -> Result:
    mask_BT, rewards_BT, gamma = case.mask(), case.f64("token_rewards"), case.params["gamma"]
    if case.name.startswith("cumulative_returns"):
        returns_BT = ppo.discounted_returns(rewards_BT, mask_BT, gamma=gamma, holes="step")
        return {"returns": (returns_BT, mask_BT)}
    advantages_BT, returns_BT = ppo.gae(
        rewards_BT, case.f64("values"), mask_BT, gamma=gamma, lam=case.params["lam"], holes="step"
    )
    return {"advantages": (advantages_BT, mask_BT), "returns": (returns_BT, mask_BT)}


def _kl(case: Case) -> Result:
    logprobs_BT, mask_BT = case.f64("log_probs", grad=True), case.mask()
    params = case.params
    old_BT = case.f64("log_probs_old") if params["log_probs_old_given"] else None
    kl_BT = ppo.kl_surrogate(
        params["kl_estimator"],
        logprobs_BT,
        case.f64("log_probs_base"),
        gradient="straight_through" if params["unbiased_gradient"] else "pathwise",
        old_logprobs_BT=old_BT,
        **KL,
    )
    return {
        "kl": kl_BT,
        "kl_mean_per_sequence": ppo.masked_mean(kl_BT, mask_BT, dim=1),
        "grad_log_probs": gradient_of_sum(kl_BT, mask_BT, logprobs_BT),
    }


def gradient_of_sum(x_BT: Tensor, mask_BT: Tensor, leaf_BT: Tensor) -> Tensor:
    return shared.gradient(ppo.masked_sum(x_BT, mask_BT), leaf_BT)


def _reward(case: Case) -> Result:
    scores_B, bounds = case.f64("r"), case.params["reward_clip_range"]
    if bounds is not None:
        scores_B = ppo.clip_scores(scores_B, low=bounds[0], high=bounds[1])
    mask_BT = case.mask()
    coef = max(0.0, case.params["kl_coef"])
    rewards_BT = ppo.kl_penalised(scores_B, case.f64("kl"), mask_BT, coef=coef)
    return {"token_rewards": (rewards_BT, mask_BT)}


def _logits(case: Case) -> Result:
    temperature = case.params["temperature"]
    if case.name.startswith("actor_forward"):
        logits_BTV = case.f64("logits").float()[:, :-1]
        logprobs_BT, entropy_BT = ppo.token_logprobs_and_entropy(
            logits_BTV, case.ids("sequences")[:, 1:], temperature=temperature
        )
        shown_BT = logprobs_BT * case.mask("action_mask")
        return {"action_log_probs": shown_BT, "entropy": entropy_BT}
    logprobs_BT, entropy_BT, grad_BTV = shared.entropies(case, temperature)
    return {"log_probs": logprobs_BT, "entropy": entropy_BT, "grad_scaled_logits": grad_BTV}


def _policy_loss(case: Case) -> Result:
    params, mask_BT = case.params, case.mask()
    logprobs_BT, old_BT = case.f64("log_probs", grad=True), case.f64("old_log_probs")
    sequence = params["policy_loss_type"] == "gspo"
    level, mode = params["is_correction_level"], params["is_correction_mode"]
    weights_BT, shown = None, {}
    if sequence and level != "off":
        old_BT = case.f64("rollout_log_probs")
    elif level != "off":
        kinds = {("token", "clip"): "tis", ("token", "mask"): "icepop", ("seq", "mask"): None}
        low, high = params["is_correction_threshold"]
        fix = ppo.correct(
            kinds[level, mode] or "sequence_mask",
            old_BT,
            case.f64("rollout_log_probs"),
            mask_BT,
            low=low,
            high=high,
        )
        weights_BT, numbers = fix.weights_BT, fix.stats.metrics()
        share = "rejected_share" if level == "token" else "rejected_sequence_share"
        if mode == "clip":
            numbers[share] = numbers["below_share"] + numbers["above_share"]
        shown = {"vllm_kl": numbers["kl_k1"], "is_filter_ratio": numbers[share]}
    loss, stats = ppo.policy_loss(
        logprobs_BT,
        old_BT,
        case.f64("advantages"),
        mask_BT,
        clip_low=params["clip_eps_low"],
        clip_high=params["clip_eps_high"],
        dual_clip=params["dual_clip"],
        ratio="sequence" if sequence else "token",
        log_ratio_clamp=None if sequence else 20.0,
        weights_BT=weights_BT,
        **shared.aggregation(case, mask_BT, params["loss_agg_mode"]),
    )
    numbers = stats.metrics()
    return shown | {
        "loss": loss,
        "clip_ratio": numbers["clip_fraction_low"] + numbers["clip_fraction_high"],
        "ppo_kl": numbers["approx_kl_k1"],
        "grad_log_probs": shared.gradient(loss, logprobs_BT),
    }


def _value_loss(case: Case) -> Result:
    values_BT, mask_BT = case.f64("values", grad=True), case.mask()
    mode = "token-mean" if case.params["token_level_loss"] else "seq-mean-token-mean"
    loss, _ = ppo.value_loss(
        values_BT,
        case.f64("old_values"),
        case.f64("returns"),
        mask_BT,
        clip_range=case.params["clip_eps"],
        **shared.aggregation(case, mask_BT, mode),
    )
    return {"loss": loss, "grad_values": shared.gradient(loss, values_BT)}


def _aggregation(case: Case) -> Result:
    mask_BT = case.mask()
    mode = "token-mean" if case.params["token_level_loss"] else "seq-mean-token-mean"
    if case.has("loss"):
        x_BT = case.f64("loss", grad=True)
        value = ppo.aggregate(x_BT, mask_BT, **shared.aggregation(case, mask_BT, mode))
        return {"value": value, "grad_loss": shared.gradient(value, x_BT)}
    # Windows of micro-batches, each divided by the number of micro-batches of a full window.
    params, logprobs_BT = case.params, case.f64("log_probs", grad=True)
    parts, steps = params["micro_batches"], params["accumulated_gradient"]
    normalisers, losses = [], []
    for number, (start, stop) in enumerate(parts):
        first = number // steps * steps
        window = slice(parts[first][0], parts[min(first + steps, len(parts)) - 1][1])
        whole = ppo.Normalizer.of(mask_BT[window])
        normalizer = ppo.Normalizer(whole.tokens / steps, whole.sequences / steps)
        normalisers.append([normalizer.tokens, normalizer.sequences])
        rows = slice(start, stop)
        loss, _ = ppo.policy_loss(
            logprobs_BT[rows],
            case.f64("old_log_probs")[rows],
            case.f64("advantages")[rows],
            mask_BT[rows],
            clip_low=params["clip_eps_low"],
            clip_high=params["clip_eps_high"],
            aggregation=shared.AGGREGATION[mode],
            normalizer=normalizer,
        )
        losses.append(loss)
    total = torch.stack(losses)
    grad_BT = shared.gradient(total.sum() / steps, logprobs_BT)
    return {"normalisers": normalisers, "micro_losses": total, "grad_log_probs": grad_BT}


def _whiten(case: Case) -> Result:
    x_BT, mask_BT = case.f64("tensor"), case.mask()
    rows = [
        ppo.whiten(x_BT[b : b + 1], mask_BT[b : b + 1], floor="clamp", eps=case.params["eps"])
        for b in range(len(x_BT))
    ]
    return {"normalised": torch.cat(rows)}


def _same_input(case: Case) -> Result:
    name, params = case.name, case.params
    if name.startswith("kl_"):
        return shared.kl_over_gaps(case, **KL)
    mask_BT = case.mask()
    if name.startswith("policy_"):
        options: dict[str, Any] = {"dual_clip": params.get("dual_clip")}
        if name == "policy_gspo":
            options |= {"ratio": "sequence", "log_ratio_clamp": None}
        if name in ("policy_tis", "policy_icepop"):
            options["weights_BT"] = shared.same_input_weights(
                case, kind=name[7:], low=params["low"], high=params["high"]
            )
        return shared.same_input_policy(case, **options)
    if name == "value_loss":
        return shared.same_input_value(case, mask_BT)
    scores_B = case.f64("score")
    if name.startswith("group_norm"):
        groups_B = shared.in_pairs(case)
        return {
            "sequence_advantage": ppo.baselined_scores(
                "group_norm", scores_B, groups_B, group_eps=1e-9
            )
        }
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
        holes="step",
        **WHITEN,
        **GROUPS,
    )
    return {"advantages": (advantages_BT, mask_BT), "returns": (returns_BT, mask_BT)}


RUNNERS: dict[str, Callable[[Case], Result]] = {
    "openrlhf.advantages": _advantages,
    "openrlhf.aggregation": _aggregation,
    "openrlhf.gae": _gae,
    "openrlhf.kl": _kl,
    "openrlhf.kl_controller": lambda case: shared.adaptive(case, "target", "current"),
    "openrlhf.length_penalty": _length_penalty,
    "openrlhf.logits": _logits,
    "openrlhf.policy_loss": _policy_loss,
    "openrlhf.reward": _reward,
    "openrlhf.same_input": _same_input,
    "openrlhf.value_loss": _value_loss,
    "openrlhf.whiten": _whiten,
}
