"""Runs of our functions that several libraries' cases share."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from vector_case import Case, Result

from rlhf_core import ppo

AGGREGATION: dict[str, ppo.Aggregation] = {
    "token-mean": "token_mean",
    "token-sum": "token_mean",
    "seq-mean-token-mean": "sequence_mean_token_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "sequence_sum",
}
"""Mode of OpenRLHF and verl -> ours, see ``aggregation``."""


def aggregation(case: Case, mask_BT: Tensor, mode: str) -> dict[str, Any]:
    """Our options for a mode, a padded width and global totals of the case."""
    params = case.params
    options: dict[str, Any] = {"aggregation": AGGREGATION[mode]}
    if mode == "seq-mean-token-sum-norm":
        options["constant_length"] = params.get("loss_scale_factor") or mask_BT.shape[1]
    replicas = params.get("dp_size", 1)
    if mode == "token-sum":
        options["normalizer"] = ppo.Normalizer(1, 1, replicas)
    elif "batch_num_tokens" in params:
        options["normalizer"] = ppo.Normalizer(
            params["batch_num_tokens"], params["global_batch_size"], replicas
        )
    return options


def gradient(loss: Tensor, x: Tensor) -> Tensor:
    (out,) = torch.autograd.grad(loss, x, retain_graph=True)
    return out


def kl_over_gaps(case: Case, **options: Any) -> Result:
    """Value and derivative for single gaps between policy and reference."""
    logprobs_BT = torch.full((1, case.f64("gap").numel()), case.params["logprob"]).double()
    ref_BT = logprobs_BT - case.f64("gap").unsqueeze(0)
    logprobs_BT.requires_grad_()
    kl_BT = ppo.estimate(case.params["estimator"], logprobs_BT, ref_BT, **options)
    return {"kl": kl_BT[0], "grad": gradient(kl_BT.sum(), logprobs_BT)[0]}


def adaptive(case: Case, target: str, current: str) -> Result:
    """A series of updates of the KL coefficient."""
    controller = ppo.KLController(
        case.params["init_kl_coef"], case.params[target], case.params["horizon"]
    )
    coefs = []
    inputs = case.raw["inputs"]
    for kl, episodes in zip(inputs[current], inputs["n_steps"], strict=True):
        controller = controller.update(kl, episodes)
        coefs.append(controller.coef)
    return {"value_after_each_update": coefs}


def entropies(case: Case, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, entropy, and the gradient of the summed entropy by scaled logits."""
    logits_BTV = case.f64("logits", grad=True)
    logprobs_BT, entropy_BT = ppo.token_logprobs_and_entropy(
        logits_BTV, case.ids("labels"), temperature=temperature
    )
    return logprobs_BT, entropy_BT, gradient(entropy_BT.sum(), logits_BTV) * temperature


def same_input_policy(case: Case, **options: Any) -> Result:
    """Loss and gradient on the inputs that all libraries were given."""
    logprobs_BT, mask_BT = case.f64("log_prob", grad=True), case.mask()
    mode = AGGREGATION[case.params.get("loss_agg_mode", "token-mean")]
    loss, _ = ppo.policy_loss(
        logprobs_BT,
        case.f64("old_log_prob"),
        case.f64("advantages"),
        mask_BT,
        clip_low=case.params["clip"],
        clip_high=case.params["clip"],
        **({"aggregation": mode} | options),
    )
    return {"loss": loss, "grad": gradient(loss, logprobs_BT)}


def same_input_weights(case: Case, **options: Any) -> Tensor:
    """Weights of tokens on those inputs."""
    return ppo.correct(
        rollout_logprobs_BT=case.f64("rollout_log_prob"),
        old_logprobs_BT=case.f64("old_log_prob"),
        mask_BT=case.mask(),
        **options,
    ).weights_BT


def same_input_value(case: Case, mask_BT: Tensor) -> Result:
    values_BT = case.f64("values", grad=True)
    loss, _ = ppo.value_loss(
        values_BT,
        case.f64("old_values"),
        case.f64("returns"),
        mask_BT,
        clip_range=case.params["clip"],
    )
    return {"loss": loss, "grad": gradient(loss, values_BT)}


def in_pairs(case: Case) -> Tensor:
    """Group ids of neighbouring samples."""
    size = case.params["n_samples_per_prompt"]
    return torch.arange(case.mask().shape[0]) // size


UNBOUNDED = {"bound": math.inf}
"""TRL never bounds k3."""
