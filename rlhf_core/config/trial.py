"""``TrialConfig``: everything that one PPO-RLHF trial depends on.

A trial is a ``TrialConfig`` plus ``{dotted key: value}`` (see ``overrides``). Every option carries a
description, a unit and its bounds, from which the JSON schema and the reference page are made.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from rlhf_core.config.fields import BrokenRulesError, Group, group, option
from rlhf_core.config.resources import ROLES, ResourcesConfig, broken_resource_rules
from rlhf_core.errors import ConfigError
from rlhf_core.metrics import find


class ModelConfig(Group):
    policy: str | None = option(
        None, "Policy: local Hugging Face folder or hub id; null takes the task's."
    )
    reference: str | None = option(
        None, "Reference policy: folder or hub id; null is the policy at its start."
    )
    critic_init: Literal["reward", "policy"] = option(
        "reward",
        "Initial weights of the critic: the reward model where its tokenizer is the policy's, "
        "or the policy with a zero value head.",
    )
    dtype: Literal["float32", "bfloat16"] = option("float32", "Type of the weights.")
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", "Where tensors live; auto takes a GPU when the process was given one."
    )


class DataConfig(Group):
    task: str | None = option(
        None,
        "'builtin:NAME', or a folder written by `rlhf-sweep prepare`; gives every model, reward "
        "and prompt file that is not named.",
    )
    prompts: str | None = option(
        None,
        "Training prompts: .txt (one a line) or .jsonl with a 'prompt'; null takes the task's.",
    )
    eval_prompts: str | None = option(
        None, "Prompts for evaluation, never trained on; null takes the task's."
    )
    test_prompts: str | None = option(
        None, "Prompts for the final judgement only; null takes the task's."
    )
    max_prompt_tokens: int = option(
        64, "Longer prompts lose their beginning.", unit="tokens", ge=1, le=131072
    )
    chat_template: Literal["auto", "off"] = option(
        "auto", "auto renders prompts through the tokenizer's chat template where it has one."
    )


class RewardConfig(Group):
    model: str | None = option(
        None, "Reward model: folder or hub id of a sequence classifier; null takes the task's."
    )
    function: str | None = option(
        None, "Import path 'package.module:function' of a reward used instead of a model."
    )
    offset: float = option(0.0, "Subtracted from the score of reward.model.", ge=-1e6, le=1e6)
    heldout_offset: float = option(
        0.0, "Subtracted from the score of reward.heldout_model.", ge=-1e6, le=1e6
    )
    heldout_model: str | None = option(
        None, "Sequence classifier that is measured, never optimised."
    )
    heldout_function: str | None = option(
        None, "Import path of a reward that is measured, never optimised."
    )
    workers: int = option(
        1,
        "CPU processes that run reward functions; 0 runs them inside the reward role.",
        unit="processes",
        ge=0,
        le=256,
    )
    timeout_s: float = option(
        300.0,
        "A reward function slower than this fails the trial; not watched where reward.workers is 0.",
        unit="s",
        gt=0,
    )
    clip: float | None = option(
        None, "Scores are clipped to [-clip, clip] before the KL penalty; null: never.", gt=0
    )
    normalise: Literal["off", "static", "running"] = option(
        "off",
        "(score - mean) / std: with the mean and std below, or with those of all scores so far.",
    )
    mean: float = option(0.0, "Mean of the static normalisation.", ge=-1e6, le=1e6)
    std: float = option(1.0, "Standard deviation of the static normalisation.", gt=0, le=1e6)
    missing_eos_penalty: float = option(
        0.0, "Subtracted from the score of a response without end-of-sequence.", ge=0
    )
    truncation_penalty: float | None = option(
        None,
        "A response without end-of-sequence keeps this share of its score, or, below 0, gets this score; "
        "null: neither.",
        ge=-1e6,
        le=1,
    )
    overlong_buffer: int | None = option(
        None,
        "Responses lose score linearly over the last tokens before max_new_tokens; null: never.",
        unit="tokens",
        ge=1,
    )
    overlong_penalty: float = option(
        1.0, "What a response of max_new_tokens loses to the overlong buffer.", ge=0, le=1e6
    )
    extra_function: str | None = option(
        None, "Import path of a second reward that is added to the first and logged beside it."
    )
    extra_weight: float = option(1.0, "Weight of the second reward in the sum.", ge=-1e6, le=1e6)


class RolloutConfig(Group):
    prompts_per_iteration: int = option(64, "Prompts in one iteration.", unit="prompts", ge=1)
    samples_per_prompt: int = option(1, "Responses to each prompt.", unit="responses", ge=1)
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


class AdamWConfig(Group):
    lr: float = option(1e-5, "Peak learning rate.", gt=0, le=1)
    beta1: float = option(0.9, "AdamW beta 1.", ge=0, lt=1)
    beta2: float = option(0.95, "AdamW beta 2.", ge=0, lt=1)
    eps: float = option(1e-5, "AdamW epsilon.", gt=0, le=1)
    weight_decay: float = option(0.0, "Decoupled weight decay.", ge=0, le=10)
    max_grad_norm: float | None = option(1.0, "Gradient norm is clipped here; null: never.", gt=0)
    schedule: Literal["constant", "linear", "cosine"] = option(
        "constant", "Learning rate after the warm-up."
    )
    warmup_iterations: int = option(0, "Linear warm-up.", unit="iterations", ge=0)
    horizon_iterations: int = option(
        1000,
        "Where the schedule ends. Independent of the budget, so a shorter trial is a prefix of a "
        "longer one.",
        unit="iterations",
        ge=1,
    )
    min_lr_ratio: float = option(0.0, "Final learning rate over the peak.", ge=0, le=1)


class OptimConfig(Group):
    policy: AdamWConfig = group(AdamWConfig, "Optimiser of the policy.")
    critic: AdamWConfig = group(AdamWConfig, "Optimiser of the critic.")
    micro_batch_size: int = option(
        64, "Sequences in one forward and backward pass.", unit="sequences", ge=1
    )
    micro_batch_tokens: int | None = option(
        None,
        "Tokens, padding included, in one forward and backward pass of an update, used instead where set.",
        unit="tokens",
        ge=1,
    )


class SyncConfig(Group):
    interval: int = option(
        1,
        "Deliveries of learner weights to the rollouts are this far apart.",
        unit="iterations",
        ge=1,
    )
    interval_episodes: int | None = option(
        None,
        "The same in episodes, used instead where set; below one batch it means every iteration.",
        unit="episodes",
        ge=1,
    )


class CheckpointConfig(Group):
    every_iterations: int | None = option(
        None,
        "A checkpoint after every N iterations; null: only at the end.",
        unit="iterations",
        ge=1,
    )
    every_minutes: float | None = option(
        None, "A checkpoint when this long has passed since the last.", unit="min", gt=0
    )
    keep: int = option(
        2, "Newest checkpoints kept; those that `latest` and `best` name always are.", ge=0
    )
    metric: str = option(
        "eval/heldout",
        "The metric that says which checkpoint is `best`, among those made in an iteration that "
        "measured it.",
    )


class BudgetConfig(Group):
    iterations: int = option(20, "Length of the trial.", unit="iterations", ge=1)


class EvalConfig(Group):
    every_iterations: int = option(
        5,
        "Evaluation on held-out prompts, also before the first and after the last iteration.",
        unit="iterations",
        ge=1,
    )
    prompts: int = option(64, "Prompts of one evaluation.", unit="prompts", ge=2)
    seed: int = option(1_000_003, "Sampling seed of evaluations, apart from the trial's.", ge=0)


class TrialConfig(Group):
    """One PPO-RLHF trial."""

    model: ModelConfig = group(ModelConfig, "Models.")
    data: DataConfig = group(DataConfig, "Prompts.")
    reward: RewardConfig = group(RewardConfig, "What is optimised and what is only measured.")
    rollout: RolloutConfig = group(RolloutConfig, "Sampling.")
    ppo: PPOConfig = group(PPOConfig, "The algorithm.")
    optim: OptimConfig = group(OptimConfig, "Optimisers.")
    sync: SyncConfig = group(SyncConfig, "Weight delivery to the rollouts.")
    resources: ResourcesConfig = group(ResourcesConfig, "Where the roles run.")
    checkpoint: CheckpointConfig = group(CheckpointConfig, "When state is saved.")
    budget: BudgetConfig = group(BudgetConfig, "When the trial ends.")
    eval: EvalConfig = group(EvalConfig, "Evaluation on prompts that are never trained on.")
    seed: int = option(0, "Seed of prompt order, sampling and minibatch order.", ge=0)

    @property
    def episodes_per_iteration(self) -> int:
        return self.rollout.prompts_per_iteration * self.rollout.samples_per_prompt

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that the algorithm uses, in the order of ``ROLES``."""
        kl = self.ppo.kl
        absent = {"critic": not self.ppo.needs_critic, "reference": not (kl.coef > 0 or kl.measure)}
        return tuple(role for role in ROLES if not absent.get(role, False))

    @property
    def sync_interval(self) -> int:
        """Iterations between two deliveries; whole batches are never split."""
        if self.sync.interval_episodes is None:
            return self.sync.interval
        return max(1, self.sync.interval_episodes // self.episodes_per_iteration)

    @model_validator(mode="after")
    def _rules(self) -> TrialConfig:
        problems = list(_broken_rules(self))
        if problems:
            raise BrokenRulesError(problems)
        return self


def _broken_rules(config: TrialConfig) -> list[str]:
    problems = broken_resource_rules(config.resources, config.roles)
    episodes, minibatches = config.episodes_per_iteration, config.ppo.minibatches
    if episodes % minibatches:
        problems.append(
            f"ppo.minibatches must divide the episodes of an iteration, but {episodes} episodes "
            f"(rollout.prompts_per_iteration x rollout.samples_per_prompt) / {minibatches} leaves "
            f"{episodes % minibatches}; change either"
        )
    if config.reward.model and config.reward.function:
        problems.append("reward.model and reward.function exclude each other; remove one")
    if config.reward.heldout_model and config.reward.heldout_function:
        problems.append(
            "reward.heldout_model and reward.heldout_function exclude each other; remove one"
        )
    problems += _broken_ppo_rules(config)
    for role in ("policy", "critic"):
        optim = getattr(config.optim, role)
        if optim.warmup_iterations >= optim.horizon_iterations:
            problems.append(
                f"optim.{role}.warmup_iterations must be below horizon_iterations, but is "
                f"{optim.warmup_iterations} of {optim.horizon_iterations}; lower the one or raise the other"
            )
    if config.sync.interval != 1 and config.sync.interval_episodes is not None:
        problems.append("sync.interval and sync.interval_episodes exclude each other; remove one")
    try:
        if find(config.checkpoint.metric, "checkpoint.metric").direction == "none":
            problems.append(
                f"checkpoint.metric: {config.checkpoint.metric!r} has no better direction; name "
                "another"
            )
    except ConfigError as error:
        problems += error.problems
    return problems


def _broken_ppo_rules(config: TrialConfig) -> list[str]:
    ppo, samples = config.ppo, config.rollout.samples_per_prompt
    kl, episodes = ppo.kl, config.episodes_per_iteration
    problems = []
    if (ppo.needs_groups or ppo.filter_groups) and samples < 2:
        what = f"ppo.advantage {ppo.advantage!r}" if ppo.needs_groups else "ppo.filter_groups"
        problems.append(
            f"{what} compares the responses to one prompt, but rollout.samples_per_prompt is {samples}; "
            "set it to 2 or more"
        )
    if ppo.needs_groups and ppo.gamma != 1:
        problems.append(
            f"ppo.advantage {ppo.advantage!r} is defined for ppo.gamma 1, but it is {ppo.gamma:g}; set it to 1"
        )
    if not ppo.needs_critic and ppo.critic_warmup_iterations:
        problems.append(
            f"ppo.critic_warmup_iterations must be 0 without a critic, but is "
            f"{ppo.critic_warmup_iterations} with ppo.advantage {ppo.advantage!r}; set it to 0 or use gae"
        )
    if ppo.ratio == "sequence" and ppo.correction.kind == "icepop":
        problems.append(
            "ppo.correction.kind 'icepop' drops single tokens, but ppo.ratio 'sequence' has one ratio a "
            "response; use sequence_mask, or ppo.ratio token"
        )
    if ppo.constant_length is not None and ppo.aggregation != "sequence_sum":
        problems.append(
            f"ppo.constant_length belongs to ppo.aggregation 'sequence_sum', but that is "
            f"{ppo.aggregation!r}; remove it or change the aggregation"
        )
    if not kl.measure and (kl.coef > 0 or kl.controller == "adaptive"):
        problems.append(
            f"ppo.kl.measure false needs ppo.kl.coef 0 and a fixed controller, but they are {kl.coef:g} and "
            f"{kl.controller!r}; set measure to true"
        )
    if (
        kl.controller == "adaptive"
        and kl.target_per_response is None
        and kl.target_per_token is None
    ):
        problems.append(
            "ppo.kl.controller 'adaptive' needs a target; set ppo.kl.target_per_response or target_per_token"
        )
    if kl.controller == "adaptive" and episodes >= 5 * kl.horizon:
        problems.append(
            f"ppo.kl.horizon must exceed a fifth of the episodes of an iteration, but is "
            f"{kl.horizon} for {episodes} episodes (rollout.prompts_per_iteration x "
            "rollout.samples_per_prompt); raise it"
        )
    buffer = config.reward.overlong_buffer
    if buffer is not None and buffer > config.rollout.max_new_tokens:
        problems.append(
            f"reward.overlong_buffer must be at most rollout.max_new_tokens, but is {buffer} of "
            f"{config.rollout.max_new_tokens}; lower it"
        )
    return problems
