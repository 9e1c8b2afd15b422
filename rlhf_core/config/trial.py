"""``TrialConfig``: everything that one PPO-RLHF trial depends on.

A trial is a ``TrialConfig`` plus ``{dotted key: value}`` (see ``overrides``). Every option carries a
description, a unit and its bounds, from which the JSON schema and the reference page are made.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from rlhf_core.config.engines import LoraConfig, broken_engine_rules
from rlhf_core.config.fields import BrokenRulesError, Group, group, in_vain, option
from rlhf_core.config.generation import broken_generation_rules
from rlhf_core.config.measured import left_out
from rlhf_core.config.ppo import PPOConfig, RolloutConfig, broken_ppo_rules
from rlhf_core.config.resources import ROLES, ResourcesConfig, broken_resource_rules
from rlhf_core.config.reward import RewardConfig, broken_reward_rules
from rlhf_core.errors import ConfigError
from rlhf_core.metrics import find


class ModelConfig(Group):
    policy: str | None = option(
        None,
        "Policy: local Hugging Face folder, hub id, GGUF file, or 'package:NAME' for the GGUF file in an "
        "installed Python package; null takes the task's.",
    )
    reference: str | None = option(
        None, "Reference policy, named like the policy; null is the policy at its start."
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
    lora: LoraConfig = group(LoraConfig, "Low-rank adapters of policy and critic.")


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
        None,
        "Prompts for evaluation; null takes the task's, or `data.prompts` where there is no task.",
    )
    test_prompts: str | None = option(
        None,
        "Prompts for the last judgement; null takes the task's, or `data.prompts` where there is no task.",
    )
    max_prompt_tokens: int = option(
        64, "Longer prompts lose their beginning.", unit="tokens", ge=1, le=131072
    )
    chat_template: Literal["auto", "off"] = option(
        "auto", "auto renders prompts through the tokenizer's chat template where it has one."
    )


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
    critic_lr_ratio: float | None = option(
        None,
        "Peak learning rate of the critic over that of the policy; where set, it sets optim.critic.lr.",
        ge=1e-6,
        le=1e6,
    )
    micro_batch_size: int = option(
        64,
        "Sequences in one pass of a model, forward or forward and backward.",
        unit="sequences",
        ge=1,
    )
    micro_batch_tokens: int | None = option(
        None,
        "Tokens, padding included, in one pass, used instead where set.",
        unit="tokens",
        ge=1,
    )
    engine: Literal["torch", "deepspeed"] = option(
        "torch", "Who trains policy and critic; deepspeed shards them over the ranks of a role."
    )
    zero_stage: Literal[0, 1, 2, 3] = option(
        2,
        "What DeepSpeed shards over the ranks: 0: nothing, 1: optimiser, 2: and gradients, 3: and weights.",
    )
    offload: Literal["none", "optimizer", "all"] = option(
        "none", "What DeepSpeed keeps in the host's memory: the optimiser, or weights as well."
    )
    gradient_checkpointing: bool = option(
        False,
        "Layers are computed again in the backward pass instead of kept: less memory, more time.",
    )
    autocast: Literal["off", "bfloat16"] = option(
        "off", "Type of matrix products in passes of policy and critic over float32 weights."
    )

    @model_validator(mode="after")
    def _critic_follows(self) -> OptimConfig:
        """Whoever reads ``critic.lr`` reads what counts."""
        if self.critic_lr_ratio is None:
            return self
        lr = self.critic_lr_ratio * self.policy.lr
        if not 0 < lr <= 1:
            raise ValueError(
                f"critic_lr_ratio x policy.lr must be above 0 and at most 1, but is {lr:g}; change either"
            )
        object.__setattr__(self, "critic", self.critic.model_copy(update={"lr": lr}))
        return self


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
    mode: Literal["sync", "async"] = option(
        "sync",
        "sync: a batch is sampled when the learner is ready for it; async: batches are sampled while the "
        "learner trains on those before.",
    )
    max_staleness: int | None = option(
        None,
        "Largest staleness of a token that is trained on; with async it says how many batches are sampled ahead "
        "(max_staleness - interval + 1, less what rollout.partial_tokens adds); null: whatever these give, with "
        "async one batch ahead.",
        unit="versions",
        ge=0,
        le=1024,
    )
    transport: Literal["object_store", "collective"] = option(
        "object_store",
        "How weights reach the rollouts: object_store: Ray's shared memory, one copy for each node; "
        "collective: a broadcast over NCCL where each worker has a GPU of its own, else gloo.",
    )
    bucket_mb: float = option(
        64.0,
        "Weights and gradients travel in buckets of at most this size (a larger gradient is summed in place).",
        unit="MB",
        gt=0,
        le=1024,
    )
    timeout_s: float = option(
        300.0,
        "A rank waits this long for the others, in sums of gradients and in broadcasts of weights.",
        unit="s",
        gt=0,
    )

    @property
    def bucket_bytes(self) -> int:
        return max(1, int(self.bucket_mb * 10**6))


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
    iterations: int = option(20, "Length of the trial.", unit="iterations", ge=1, le=10_000_000)


class EvalConfig(Group):
    every_iterations: int = option(
        5,
        "Evaluation on held-out prompts, also before the first and after the last iteration.",
        unit="iterations",
        ge=1,
    )
    prompts: int = option(64, "Prompts of one evaluation.", unit="prompts", ge=2)
    seed: int = option(
        1_000_003, "Sampling seed of evaluations, apart from the trial's.", ge=0, lt=2**63
    )


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
    eval: EvalConfig = group(EvalConfig, "Evaluation, on `data.eval_prompts`.")
    seed: int = option(0, "Seed of prompt order, sampling and minibatch order.", ge=0, lt=2**63)

    @property
    def episodes_per_iteration(self) -> int:
        return self.rollout.episodes

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

    @property
    def batches_ahead(self) -> int:
        """Batches that are sampled before the learner asks for them; 0 where ``sync.mode`` is sync."""
        if self.sync.mode == "sync":
            return 0
        bound = self.sync.max_staleness
        lag = self.rollout.partial_lag
        return 1 if bound is None else bound - lag - self.sync_interval + 1

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
    problems += broken_reward_rules(config.reward, config.rollout.max_new_tokens)
    problems += broken_ppo_rules(config.ppo, config.rollout)
    problems += _broken_optim_rules(config.optim)
    problems += broken_engine_rules(config)
    problems += broken_generation_rules(config)
    if config.sync.interval != 1 and config.sync.interval_episodes is not None:
        problems.append("sync.interval and sync.interval_episodes exclude each other; remove one")
    problems += _broken_sync_rules(config)
    return problems + _broken_metric_rules(config)


def _broken_sync_rules(config: TrialConfig) -> list[str]:
    sync, interval, problems = config.sync, config.sync_interval, []
    lag = config.rollout.partial_lag
    least = lag + (interval if sync.mode == "async" else interval - 1)
    if sync.max_staleness is not None and sync.max_staleness < least:
        problems.append(
            f"sync.max_staleness must be at least {least} with sync.mode {sync.mode!r} and a delivery every "
            f"{interval} iterations{f', and partial rollouts that may take {lag} more' if lag else ''}, but is "
            f"{sync.max_staleness}; raise it or shorten the interval"
        )
    if sync.mode == "async" and sync.transport == "collective":
        problems.append(
            "sync.transport 'collective' needs learner and rollouts at the same time, which sync.mode 'async' "
            "keeps apart; use object_store or sync"
        )
    return problems


def _broken_optim_rules(optim: OptimConfig) -> list[str]:
    problems = []
    for role in ("policy", "critic"):
        own: AdamWConfig = getattr(optim, role)
        if own.warmup_iterations >= own.horizon_iterations:
            problems.append(
                f"optim.{role}.warmup_iterations must be below horizon_iterations, but is "
                f"{own.warmup_iterations} of {own.horizon_iterations}; lower the one or raise the other"
            )
        if own.schedule == "constant":
            off = f"a schedule that falls, but optim.{role}.schedule is 'constant'"
            problems += in_vain(own, ("min_lr_ratio",), f"optim.{role}.", off)
    if optim.micro_batch_tokens is not None:
        off = f"batches without optim.micro_batch_tokens, but that is {optim.micro_batch_tokens}"
        problems += in_vain(optim, ("micro_batch_size",), "optim.", off)
    return problems


def _broken_metric_rules(config: TrialConfig) -> list[str]:
    name = config.checkpoint.metric
    try:
        direction = find(name, "checkpoint.metric").direction
    except ConfigError as error:
        return list(error.problems)
    if direction == "none":
        return [f"checkpoint.metric: {name!r} has no better direction; name another"]
    why = left_out(config.ppo, name)
    return [f"checkpoint.metric: {name!r} {why}"] if why else []
