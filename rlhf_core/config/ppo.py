"""Sampling and the algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from rlhf_core.config.fields import Group, group, in_vain, option
from rlhf_core.config.generation import VllmConfig


class RolloutConfig(Group):
    prompts_per_iteration: int = option(
        64, "Prompts in one iteration.", unit="prompts", ge=1, le=1_000_000
    )
    samples_per_prompt: int = option(
        1, "Responses to each prompt.", unit="responses", ge=1, le=65536
    )
    max_new_tokens: int = option(24, "Longest response.", unit="tokens", ge=1, le=131072)
    temperature: float = option(
        1.0, "Sampling temperature, used in training as well.", ge=0.001, le=10
    )
    chunk_size: int = option(
        64, "Prompts sent to a rollout worker at a time; part of the result.", unit="prompts", ge=1
    )
    top_p: float = option(
        1.0, "Sampling keeps the likeliest tokens up to this probability; 1: all.", gt=0, le=1
    )
    top_k: int = option(0, "Sampling keeps this many of the likeliest tokens; 0: all.", ge=0)
    stop: tuple[str, ...] = option(
        (), "Further tokens that end a response, as the tokenizer spells them; each one token."
    )
    partial_tokens: int | None = option(
        None,
        "Partial rollouts: responses grow by so many tokens at a time, and what is unfinished when a batch is "
        "full goes on under the weights of the next; null: each response is sampled in one go.",
        unit="tokens",
        ge=1,
        le=131072,
    )
    partial_prompts: int | None = option(
        None,
        "Prompts that partial rollouts work on at a time; null: two batches.",
        unit="prompts",
        ge=1,
        le=2_000_000,
    )
    engine: Literal["native", "vllm"] = option(
        "native", "Who samples: this project's own sampler, or vLLM within each rollout worker."
    )
    vllm: VllmConfig = group(VllmConfig, "The engine vllm.")

    @property
    def episodes(self) -> int:
        """Responses in one iteration."""
        return self.prompts_per_iteration * self.samples_per_prompt

    @property
    def prompts_under_way(self) -> int:
        """Prompts that partial rollouts work on at a time."""
        return self.partial_prompts or 2 * self.prompts_per_iteration

    @property
    def partial_lag(self) -> int:
        """Iterations that partial rollouts add to the staleness of a token, at most.

        A response is done after so many parts at the latest, and then waits for the older ones.
        """
        if self.partial_tokens is None:
            return 0
        parts = math.ceil(self.max_new_tokens / self.partial_tokens)
        return parts - 1 + math.ceil(self.prompts_under_way / self.prompts_per_iteration) - 1


class KLConfig(Group):
    coef: float = option(0.05, "Weight of the KL term.", ge=0, le=100)
    mode: Literal["reward", "loss"] = option(
        "reward", "reward: a penalty on each token's reward; loss: a term of the policy loss."
    )
    estimator: Literal["k1", "k2", "k3"] = option("k1", "Per-token estimator of the KL term.")
    controller: Literal["fixed", "adaptive"] = option(
        "fixed", "adaptive moves the coefficient towards the target."
    )
    target_per_response: float | None = option(
        6.0, "Target of the adaptive controller for kl/response.", unit="nats/response", gt=0
    )
    target_per_token: float | None = option(
        None,
        "Target for kl/token, used instead where set.",
        unit="nats/token",
        gt=0,
    )
    horizon: int = option(
        10000, "Episodes over which the adaptive controller corrects.", unit="episodes", ge=1
    )
    measure: bool = option(
        True, "false, with a coefficient of 0, runs without a reference: no KL is measured."
    )


class CorrectionConfig(Group):
    kind: Literal["none", "tis", "icepop", "sequence_mask"] = option(
        "none",
        "Correction for sampling weights that are not the learner's: none takes the stamped "
        "log-probabilities as the old ones; tis caps token weights; icepop drops tokens, sequence_mask "
        "responses outside the thresholds.",
    )
    low: float = option(0.5, "Lower threshold of icepop and sequence_mask.", gt=0, lt=1)
    high: float = option(2.0, "Upper threshold, also of tis.", gt=1, le=1e6)


class PPOConfig(Group):
    advantage: Literal[
        "gae", "reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo"
    ] = option("gae", "Advantage estimator; all but gae train and place no critic.")
    gamma: float = option(1.0, "Discount; the group estimators need 1.", gt=0, le=1)
    lam: float = option(0.95, "Lambda of GAE.", ge=0, le=1)
    whitening: Literal["auto", "off", "mean", "mean_std"] = option(
        "auto",
        "Advantages get mean 0 (and variance 1) over the batch; auto: mean_std for gae, reinforce and "
        "reinforce_baseline, off for the others.",
    )
    clip_range_low: float = option(0.2, "The ratio is clipped below at 1 - this.", gt=0, lt=1)
    clip_range_high: float = option(0.2, "The ratio is clipped above at 1 + this.", gt=0, le=10)
    dual_clip: float | None = option(
        None, "Bounds the loss of tokens with negative advantage at this ratio; null: never.", gt=1
    )
    ratio: Literal["token", "sequence"] = option(
        "token", "Ratio of each token, or of the whole response (GSPO: its geometric mean)."
    )
    log_ratio_clamp: float | None = option(
        20.0, "Log ratios are clamped to [-this, this] before exp; null: never.", gt=0, le=80
    )
    aggregation: Literal["token_mean", "sequence_mean_token_mean", "sequence_sum"] = option(
        "token_mean",
        "How token losses become one number: mean over tokens, mean over responses of their token means, or "
        "sum over tokens / (responses x constant_length).",
    )
    constant_length: int | None = option(
        None, "Divisor of sequence_sum; null: rollout.max_new_tokens.", unit="tokens", ge=1
    )
    value_clip_range: float | None = option(
        0.2, "Values may move this far from the old ones; null: unclipped.", gt=0
    )
    critic_warmup_iterations: int = option(
        0, "Iterations at the start in which only the critic learns.", unit="iterations", ge=0
    )
    epochs: int = option(2, "Passes over each rollout batch.", ge=1, le=64)
    minibatches: int = option(1, "Optimiser steps in each pass.", ge=1, le=4096)
    entropy_coef: float = option(0.0, "Weight of the entropy bonus.", ge=0, le=10)
    filter_groups: bool = option(
        False, "Prompts whose responses all score the same are left out of the update."
    )
    correction: CorrectionConfig = group(CorrectionConfig, "Off-policy correction.")
    kl: KLConfig = group(KLConfig, "KL to the reference policy.")

    @property
    def needs_critic(self) -> bool:
        return self.advantage == "gae"

    @property
    def needs_groups(self) -> bool:
        return self.advantage not in ("gae", "reinforce")

    @property
    def whitening_used(self) -> str:
        """``whitening`` with auto resolved."""
        if self.whitening != "auto":
            return self.whitening
        plain = self.advantage in ("gae", "reinforce", "reinforce_baseline")
        return "mean_std" if plain else "off"


def broken_ppo_rules(ppo: PPOConfig, rollout: RolloutConfig) -> list[str]:
    """Rules between options of the algorithm and of sampling that are broken, one line each."""
    return [
        *_broken_partial_rules(rollout),
        *_broken_group_rules(ppo, rollout),
        *_broken_critic_rules(ppo),
        *_broken_loss_rules(ppo),
        *_broken_correction_rules(ppo),
        *_broken_kl_rules(ppo.kl, rollout.episodes),
    ]


def _broken_partial_rules(rollout: RolloutConfig) -> Iterator[str]:
    tokens, longest = rollout.partial_tokens, rollout.max_new_tokens
    if tokens is None:
        off = "partial rollouts, but rollout.partial_tokens is null"
        yield from in_vain(rollout, ("partial_prompts",), "rollout.", off)
    elif longest % tokens:
        yield (
            f"rollout.partial_tokens must divide rollout.max_new_tokens, but {longest} / {tokens} leaves "
            f"{longest % tokens}; change either"
        )
    if rollout.prompts_under_way < rollout.prompts_per_iteration:
        yield (
            f"rollout.partial_prompts must be at least the {rollout.prompts_per_iteration} of "
            f"rollout.prompts_per_iteration, but is {rollout.partial_prompts}; raise it"
        )


def _broken_group_rules(ppo: PPOConfig, rollout: RolloutConfig) -> Iterator[str]:
    samples, tokens = rollout.samples_per_prompt, rollout.episodes * rollout.max_new_tokens
    if ppo.needs_groups or ppo.filter_groups:
        what = f"ppo.advantage {ppo.advantage!r}" if ppo.needs_groups else "ppo.filter_groups"
        if samples < 2:
            yield (
                f"{what} compares the responses to one prompt, but rollout.samples_per_prompt is {samples}; "
                "set it to 2 or more"
            )
        if rollout.top_k == 1:
            yield (
                f"{what} compares the responses to one prompt, but with rollout.top_k 1 they are all the "
                "same; set it to 0, or to 2 or more"
            )
    if ppo.needs_groups and ppo.gamma != 1:
        yield f"ppo.advantage {ppo.advantage!r} is defined for ppo.gamma 1, but it is {ppo.gamma:g}; set it to 1"
    if ppo.whitening_used != "off" and tokens < 2:
        yield (
            f"ppo.whitening {ppo.whitening_used!r} makes the advantage of a single token 0, but an iteration "
            "is one response of one token; set it to off, or sample more"
        )


def _broken_critic_rules(ppo: PPOConfig) -> Iterator[str]:
    if ppo.needs_critic:
        return
    if ppo.critic_warmup_iterations:
        yield (
            f"ppo.critic_warmup_iterations must be 0 without a critic, but is "
            f"{ppo.critic_warmup_iterations} with ppo.advantage {ppo.advantage!r}; set it to 0 or use gae"
        )
    off = f"ppo.advantage 'gae', but that is {ppo.advantage!r}"
    yield from in_vain(ppo, ("lam", "value_clip_range"), "ppo.", off)


def _broken_loss_rules(ppo: PPOConfig) -> Iterator[str]:
    if ppo.constant_length is not None and ppo.aggregation != "sequence_sum":
        yield (
            f"ppo.constant_length belongs to ppo.aggregation 'sequence_sum', but that is "
            f"{ppo.aggregation!r}; remove it or change the aggregation"
        )
    if ppo.log_ratio_clamp is None:
        return
    reach = {
        "ppo.clip_range_low": -math.log1p(-ppo.clip_range_low),
        "ppo.clip_range_high": math.log1p(ppo.clip_range_high),
        "ppo.dual_clip": math.log(ppo.dual_clip or 1),
    }
    for key, needed in reach.items():
        if ppo.log_ratio_clamp <= needed:
            yield (
                f"ppo.log_ratio_clamp must exceed {needed:.4g}, the log ratio at which {key} clips, but is "
                f"{ppo.log_ratio_clamp:g}; raise it"
            )


def _broken_correction_rules(ppo: PPOConfig) -> Iterator[str]:
    kind = ppo.correction.kind
    if ppo.ratio == "sequence" and kind == "icepop":
        yield (
            "ppo.correction.kind 'icepop' drops single tokens, but ppo.ratio 'sequence' has one ratio a "
            "response; use sequence_mask, or ppo.ratio token"
        )
    vain = {"none": ("low", "high"), "tis": ("low",)}.get(kind, ())
    off = f"another ppo.correction.kind, but that is {kind!r}"
    yield from in_vain(ppo.correction, vain, "ppo.correction.", off)


def _broken_kl_rules(kl: KLConfig, episodes: int) -> Iterator[str]:
    if not kl.measure and (kl.coef > 0 or kl.controller == "adaptive"):
        yield (
            f"ppo.kl.measure false needs ppo.kl.coef 0 and a fixed controller, but they are {kl.coef:g} and "
            f"{kl.controller!r}; set measure to true"
        )
    if kl.controller == "fixed":
        names = ("target_per_response", "target_per_token", "horizon")
        off = "ppo.kl.controller 'adaptive', but that is 'fixed'"
        yield from in_vain(kl, names, "ppo.kl.", off)
        return
    if kl.coef == 0:
        yield (
            "ppo.kl.controller 'adaptive' multiplies ppo.kl.coef, which stays 0 where it starts at 0; set "
            "it above 0, or use a fixed controller"
        )
    if kl.target_per_response is None and kl.target_per_token is None:
        yield "ppo.kl.controller 'adaptive' needs a target; set ppo.kl.target_per_response or target_per_token"
    if kl.target_per_token is not None:
        off = f"a controller without ppo.kl.target_per_token, but that is {kl.target_per_token:g}"
        yield from in_vain(kl, ("target_per_response",), "ppo.kl.", off)
    if episodes >= 5 * kl.horizon:
        yield (
            f"ppo.kl.horizon must exceed a fifth of the episodes of an iteration, but is "
            f"{kl.horizon} for {episodes} episodes (rollout.prompts_per_iteration x "
            "rollout.samples_per_prompt); raise it"
        )
