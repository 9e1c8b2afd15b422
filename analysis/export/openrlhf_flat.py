"""Names of OpenRLHF's flags up to 0.10.1, before they were grouped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from analysis.export.rules import Case, Rule, Table, Told, Values

# Where the flat name is the dotted one with the dots as underscores, nothing stands here.
FLAT = {
    "actor.model_name_or_path": "pretrain",
    "critic.model_name_or_path": "critic_pretrain",
    "reward.model_name_or_path": "reward_pretrain",
    "reward.remote_url": "remote_rm_url",
    "ds.param_dtype": "param_dtype",
    "ds.lora.rank": "lora_rank",
    "ds.lora.alpha": "lora_alpha",
    "ds.lora.dropout": "lora_dropout",
    "ds.lora.target_modules": "target_modules",
    "ds.zero_stage": "zero_stage",
    "ds.adam_offload": "adam_offload",
    "actor.gradient_checkpointing_enable": "gradient_checkpointing",
    "ds.enable_sleep": "deepspeed_enable_sleep",
    "ds.packing_samples": "packing_samples",
    "data.prompt_dataset": "prompt_data",
    "data.input_key": "input_key",
    "data.apply_chat_template": "apply_chat_template",
    "data.max_len": "max_len",
    "data.max_samples": "max_samples",
    "reward.normalize_enable": "normalize_reward",
    "reward.stop_properly_penalty_coef": "stop_properly_penalty_coef",
    "reward.overlong_buffer_len": "overlong_buffer_len",
    "reward.overlong_penalty_factor": "overlong_penalty_factor",
    "rollout.max_new_tokens": "max_new_tokens",
    "rollout.n_samples_per_prompt": "n_samples_per_prompt",
    "rollout.temperature": "temperature",
    "rollout.top_p": "top_p",
    "rollout.micro_batch_size": "micro_rollout_batch_size",
    "algo.advantage.estimator": "advantage_estimator",
    "algo.advantage.gamma": "gamma",
    "algo.advantage.lambd": "lambd",
    "algo.advantage.no_std_norm": "no_advantage_std_norm",
    "algo.advantage.is_correction_enable": "enable_vllm_is_correction",
    "algo.advantage.is_correction_type": "vllm_is_correction_type",
    "algo.advantage.is_correction_threshold": "vllm_is_truncated_threshold",
    "algo.kl.init_coef": "init_kl_coef",
    "algo.kl.estimator": "kl_estimator",
    "algo.kl.use_loss": "use_kl_loss",
    "algo.kl.target": "kl_target",
    "algo.kl.horizon": "kl_horizon",
    "actor.eps_clip": "eps_clip",
    "actor.eps_clip_low_high": "eps_clip_low_high",
    "actor.dual_clip": "dual_clip",
    "actor.policy_loss_type": "policy_loss_type",
    "actor.entropy_coef": "entropy_loss_coef",
    "critic.value_clip": "value_clip",
    "critic.freezing_steps": "freezing_actor_steps",
    "actor.adam.lr": "actor_learning_rate",
    "critic.adam.lr": "critic_learning_rate",
    "actor.adam.betas": "adam_betas",
    "actor.adam.weight_decay": "l2",
    "actor.max_norm": "max_norm",
    "actor.lr_scheduler": "lr_scheduler",
    "actor.lr_warmup_ratio": "lr_warmup_ratio",
    "train.num_episodes": "num_episodes",
    "train.max_epochs": "max_epochs",
    "train.micro_batch_size": "micro_train_batch_size",
    "train.dynamic_batch_enable": "use_dynamic_batch",
    "train.colocate_all": "colocate_all_models",
    "train.async_enable": "async_train",
    "train.async_queue_size": "async_queue_size",
    "train.seed": "seed",
    "ckpt.save_steps": "save_steps",
    "ckpt.max_num": "max_ckpt_num",
}


def flat(name: str) -> str:
    """The flat name of a dotted flag."""
    return FLAT.get(name, name.replace(".", "_"))


def rename(rules: Iterable[Rule]) -> Table:
    """Rules that speak the flat names."""
    return tuple(_renamed(rule) for rule in rules)


def _renamed(rule: Rule) -> Rule:
    def out(case: Case) -> Told:
        told = rule.out(case)
        told.theirs = {flat(name): value for name, value in told.theirs.items()}
        return told

    def back(theirs: Values) -> dict[str, Any]:
        return rule.back({name: theirs[flat(name)] for name in rule.theirs})

    return Rule(rule.keys, {flat(name): v for name, v in rule.theirs.items()}, out, back)
