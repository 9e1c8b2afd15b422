"""Trials under every algorithm: which roles they need, and what an option switches on and off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import trial_config

from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import ConfigError
from rlhf_core.metrics import IterationMetrics
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import plan_trial
from rlhf_core.trial import PPOTrial

GROUPED = ("reinforce_baseline", "rloo", "group_norm", "dr_grpo")


def run(config: TrialConfig) -> tuple[PPOTrial, list[IterationMetrics]]:
    plan = plan_trial(config)
    trial = PPOTrial(config, LocalRuntime(config, plan), plan)
    try:
        return trial, list(trial)
    finally:
        trial.close()


@pytest.mark.parametrize("advantage", ["reinforce", *GROUPED])
def test_an_estimator_without_a_critic_places_and_trains_none(zoo: Zoo, advantage: str) -> None:
    config = trial_config(
        zoo, ppo__advantage=advantage, rollout__samples_per_prompt=2, budget__iterations=2
    )
    assert not plan_trial(config).group("critic")
    split = config.resources.model_copy(update={"layout": "split"})
    placed = plan_trial(config.model_copy(update={"resources": split}))
    assert "critic" not in {worker.name for worker in placed.workers}
    trial, results = run(config)
    assert "critic" not in trial.groups
    last = results[-1].values
    assert last["policy/grad_norm"] > 0
    assert not [
        name for name in last if name.startswith(("value/", "time/values", "util/busy_critic"))
    ]


def test_estimators_differ(zoo: Zoo) -> None:
    norms = set()
    for advantage in ("gae", "reinforce", *GROUPED):
        config = trial_config(
            zoo, ppo__advantage=advantage, rollout__samples_per_prompt=2, budget__iterations=1
        )
        norms.add(round(run(config)[1][-1].values["policy/loss"], 9))
    # dr_grpo is reinforce_baseline without the whitening.
    assert len(norms) == 6


def test_without_a_measured_kl_there_is_no_reference(zoo: Zoo) -> None:
    config = trial_config(zoo, ppo__kl__coef=0.0, ppo__kl__measure=False, budget__iterations=2)
    assert not plan_trial(config).group("reference")
    trial, results = run(config)
    assert "reference" not in trial.groups
    assert not [
        name for m in results for name in m.values if name in ("kl/response", "time/reference")
    ]
    measured = run(trial_config(zoo, ppo__kl__coef=0.0, budget__iterations=2))[1]
    assert "kl/response" in measured[-1].values
    # Whether it is measured changes nothing else.
    assert measured[-1].values["policy/loss"] == results[-1].values["policy/loss"]


@pytest.mark.parametrize("warmup", [1, 2])
def test_the_critic_learns_alone_for_exactly_that_many_iterations(zoo: Zoo, warmup: int) -> None:
    config = trial_config(zoo, ppo__critic_warmup_iterations=warmup, budget__iterations=3)
    results = run(config)[1]
    for m in results[1:]:
        assert ("policy/loss" in m.values) == (m.iteration > warmup)
        assert m.values["value/grad_norm"] > 0
        if m.iteration <= warmup + 1:
            assert m.values["kl/response"] == pytest.approx(0.0, abs=1e-4)


def test_groups_without_spread_are_left_out_and_counted(zoo: Zoo) -> None:
    options: dict[str, Any] = {
        "rollout__samples_per_prompt": 2,
        "reward__function": "core_rewards:letter_a",
        "budget__iterations": 1,
        "ppo__filter_groups": True,
    }
    values = run(trial_config(zoo, **options))[1][-1].values
    assert 0 < values["rollout/filtered_share"] <= 1
    # All are left out: nothing is learnt, everything is counted.
    options["reward__function"] = "core_rewards:constant"
    values = run(trial_config(zoo, **options))[1][-1].values
    assert values["rollout/filtered_share"] == 1
    assert "policy/loss" not in values
    assert values["cost/episodes"] == 16


def test_named_rewards_are_weighed_in_and_logged_by_themselves(zoo: Zoo) -> None:
    options = {
        "reward.weight": 2.0,
        "reward.extra.long.function": "core_rewards:length",
        "reward.extra.long.weight": 0.5,
        "reward.extra.safe.model": zoo.rewards["other"],
        "reward.extra.safe.weight": -3.0,
        "reward.extra.seen.function": "core_rewards:letter_a",
        "reward.extra.seen.weight": 0.0,
    }
    values = run(trial_config(zoo, budget__iterations=1, eval__prompts=8, **options))[1]
    last = values[-1].values
    parts = {name: last[f"reward/component/{name}"] for name in ("long", "safe", "seen")}
    assert len(set(parts.values())) == 3
    total = 2 * last["reward/proxy"] + 0.5 * parts["long"] - 3 * parts["safe"]
    assert last["reward/shaped"] == pytest.approx(total, rel=1e-5)
    assert last["reward/weighted"] == pytest.approx(total, rel=1e-5)
    for m in values:
        evaluated = {name: m.values[f"eval/component/{name}"] for name in parts}
        total = 2 * m.values["eval/proxy"] + 0.5 * evaluated["long"] - 3 * evaluated["safe"]
        assert m.values["eval/weighted"] == pytest.approx(total, rel=1e-5)
    # Only weighed, the rewards themselves stay: the first rollouts are those of the plain trial.
    plain = run(trial_config(zoo, budget__iterations=1, eval__prompts=8))[1][-1].values
    assert last["reward/proxy"] == plain["reward/proxy"]


def test_the_sum_is_normalised_and_clipped_not_its_parts(zoo: Zoo) -> None:
    extra = {"reward.extra.long.function": "core_rewards:length", "reward.extra.long.weight": 0.5}
    options: dict[str, Any] = {"budget__iterations": 1, **extra}
    plain = run(trial_config(zoo, **options))[1][1].values["reward/shaped"]
    static = {"reward__normalise": "static", "reward__mean": 1.0, "reward__std": 4.0}
    values = run(trial_config(zoo, **options, **static))[1][1].values
    assert values["reward/shaped"] == pytest.approx((plain - 1) / 4, rel=1e-5)
    # Every sum is above the bound, no vowel count is.
    values = run(trial_config(zoo, **options, reward__clip=0.4))[1][1].values
    assert values["reward/shaped"] == pytest.approx(0.4, rel=1e-6)
    assert values["reward/component/long"] > 0.8


def test_groups_are_filtered_by_the_weighted_sum(zoo: Zoo) -> None:
    options: dict[str, Any] = {
        "rollout__samples_per_prompt": 2,
        "reward__function": "core_rewards:constant",
        "budget__iterations": 1,
        "ppo__filter_groups": True,
        "reward.extra.vowels.function": "core_rewards:vowels",
    }
    for weight, learns in ((1.0, True), (0.0, False)):
        config = trial_config(zoo, **options, **{"reward.extra.vowels.weight": weight})
        assert ("policy/loss" in run(config)[1][-1].values) == learns


def test_the_running_normalisation_is_that_of_all_scores_so_far(zoo: Zoo) -> None:
    trial, results = run(trial_config(zoo, reward__normalise="running", budget__iterations=3))
    assert trial.norm.count == 24
    means = [m.values["reward/proxy"] for m in results[1:]]
    assert trial.norm.mean == pytest.approx(sum(means) / 3, rel=1e-5)
    assert results[1].values["reward/shaped"] == pytest.approx(0.0, abs=1e-6)


def test_a_correction_measures_how_old_the_samples_are(zoo: Zoo) -> None:
    options: dict[str, Any] = {"budget__iterations": 2, "ppo__correction__kind": "tis"}
    fresh = run(trial_config(zoo, **options))[1]
    stale = run(trial_config(zoo, sync__interval=2, **options))[1]
    for m in fresh[1:]:
        assert m.values["correction/abs_log_ratio"] == pytest.approx(0.0, abs=1e-5)
        assert m.values["correction/weight_mean"] == pytest.approx(1.0, abs=1e-5)
    assert stale[2].values["staleness/max"] == 1
    assert stale[2].values["correction/abs_log_ratio"] > 1e-4
    # The ratio starts at 1 again: it is taken against the learner's own log-probabilities.
    once = {"ppo__epochs": 1, "ppo__minibatches": 1}
    ratios = [
        run(trial_config(zoo, sync__interval=2, **options, **once))[1][2].values[
            "policy/ratio_max"
        ],
        run(trial_config(zoo, sync__interval=2, budget__iterations=2, **once))[1][2].values[
            "policy/ratio_max"
        ],
    ]
    assert ratios[0] == pytest.approx(1.0, abs=1e-5)
    assert ratios[1] > 1.001


def test_top_k_of_one_is_greedy_and_the_stamp_is_of_the_whole_distribution(zoo: Zoo) -> None:
    values = run(trial_config(zoo, rollout__top_k=1, budget__iterations=1, ppo__epochs=1))[1][
        1
    ].values
    assert values["policy/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert values["kl/response"] == pytest.approx(0.0, abs=1e-4)


def test_a_stop_token_ends_a_response(zoo: Zoo) -> None:
    short = run(trial_config(zoo, rollout__stop=("a", "e", "i", "o"), budget__iterations=1))[1][1]
    plain = run(trial_config(zoo, budget__iterations=1))[1][1]
    assert short.values["rollout/length"] < plain.values["rollout/length"]
    assert short.values["rollout/truncated_share"] < plain.values["rollout/truncated_share"]
    with pytest.raises(ConfigError, match=r"rollout.stop: 'zzz' is no token"):
        run(trial_config(zoo, rollout__stop=("zzz",)))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"ppo": {"advantage": "rloo"}}, "rollout.samples_per_prompt is 1"),
        ({"ppo": {"filter_groups": True}}, "ppo.filter_groups compares"),
        (
            {"ppo": {"advantage": "rloo", "gamma": 0.9}, "rollout": {"samples_per_prompt": 2}},
            "set it to 1",
        ),
        ({"ppo": {"advantage": "reinforce", "critic_warmup_iterations": 1}}, "without a critic"),
        ({"ppo": {"ratio": "sequence", "correction": {"kind": "icepop"}}}, "use sequence_mask"),
        ({"ppo": {"constant_length": 5}}, "belongs to ppo.aggregation"),
        ({"ppo": {"kl": {"measure": False}}}, "needs ppo.kl.coef 0"),
        (
            {"ppo": {"kl": {"controller": "adaptive", "target_per_response": None}}},
            "needs a target",
        ),
        ({"reward": {"overlong_buffer": 99}}, "at most rollout.max_new_tokens"),
        ({"reward": {"offset": 1}}, "reward.offset belongs to a reward.model"),
        ({"reward": {"heldout_offset": 1}}, "heldout_offset belongs to a reward.heldout_model"),
        ({"reward": {"weight": 0}}, "must not all be 0"),
        (
            {"reward": {"weight": 0, "extra": {"a": {"function": "b:c", "weight": 0}}}},
            "must not all be 0",
        ),
        ({"reward": {"overlong_penalty": 2}}, "belongs to reward.overlong_buffer"),
        ({"reward": {"mean": 1}}, "belongs to reward.normalise 'static', but that is 'off'"),
        ({"reward": {"normalise": "running", "std": 2}}, "but that is 'running'"),
        ({"reward": {"workers": 0, "timeout_s": 5}}, "reward.timeout_s 5.0 has no effect"),
        (
            {"ppo": {"advantage": "rloo"}, "rollout": {"samples_per_prompt": 2, "top_k": 1}},
            "they are all the same",
        ),
        (
            {"ppo": {"filter_groups": True}, "rollout": {"samples_per_prompt": 2, "top_k": 1}},
            "they are all the same",
        ),
        ({"rollout": {"prompts_per_iteration": 1, "max_new_tokens": 1}}, "ppo.whitening"),
        ({"rollout": {"prompts_per_iteration": 4}, "ppo": {"minibatches": 8}}, "must divide"),
        ({"ppo": {"advantage": "reinforce", "lam": 0.9}}, "ppo.lam 0.9 has no effect"),
        ({"ppo": {"advantage": "reinforce", "value_clip_range": 0.3}}, "belongs to ppo.advantage"),
        ({"ppo": {"log_ratio_clamp": 0.2}}, "which ppo.clip_range_low clips"),
        ({"ppo": {"log_ratio_clamp": 0.4, "clip_range_high": 0.5}}, "ppo.clip_range_high clips"),
        ({"ppo": {"log_ratio_clamp": 1, "dual_clip": 3}}, "which ppo.dual_clip clips"),
        ({"ppo": {"correction": {"high": 3}}}, "correction.high 3.0 has no effect"),
        ({"ppo": {"correction": {"kind": "tis", "low": 0.1}}}, "correction.low 0.1 has no effect"),
        ({"ppo": {"kl": {"target_per_token": 0.1}}}, "belongs to ppo.kl.controller 'adaptive'"),
        ({"ppo": {"kl": {"target_per_response": 3}}}, "belongs to ppo.kl.controller 'adaptive'"),
        ({"ppo": {"kl": {"horizon": 500}}}, "belongs to ppo.kl.controller 'adaptive'"),
        ({"ppo": {"kl": {"controller": "adaptive", "coef": 0}}}, "stays 0"),
        (
            {
                "ppo": {
                    "kl": {
                        "controller": "adaptive",
                        "target_per_response": 3,
                        "target_per_token": 0.1,
                    }
                }
            },
            "ppo.kl.target_per_response 3.0 has no effect",
        ),
        ({"optim": {"micro_batch_size": 8, "micro_batch_tokens": 99}}, "micro_batch_size 8 has no"),
        ({"optim": {"critic": {"min_lr_ratio": 0.1}}}, "optim.critic.schedule is 'constant'"),
        (
            {
                "checkpoint": {"metric": "eval/kl_response"},
                "ppo": {"kl": {"measure": False, "coef": 0}},
            },
            "is not measured with ppo.kl.measure false",
        ),
        (
            {"checkpoint": {"metric": "value/loss"}, "ppo": {"advantage": "reinforce"}},
            "is not measured with ppo.advantage 'reinforce'",
        ),
        ({"checkpoint": {"metric": "correction/rejected_share"}}, "not measured with ppo.corr"),
        ({"checkpoint": {"metric": "kl/loss"}}, "is not measured with ppo.kl.mode 'reward'"),
        ({"checkpoint": {"metric": "reward/component/a"}}, "has no better direction"),
    ],
)
def test_an_impossible_combination_is_refused(options: dict[str, Any], rule: str) -> None:
    from rlhf_core.config import resolve_trial

    with pytest.raises(ConfigError, match=rule) as caught:
        resolve_trial(options, "test")
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"reward": {"weight": 0, "extra": {"a": {"function": "b:c"}}}},
        {"reward": {"normalise": "static", "mean": 1, "std": 2}},
        {"ppo": {"advantage": "reinforce", "value_clip_range": None}},
        {"ppo": {"log_ratio_clamp": None, "dual_clip": 3}},
        {"ppo": {"correction": {"kind": "icepop", "low": 0.1, "high": 3}}},
        {"ppo": {"ratio": "sequence", "correction": {"kind": "tis", "high": 3}}},
        {"ppo": {"kl": {"coef": 0, "mode": "loss"}}},
        {
            "ppo": {
                "kl": {
                    "controller": "adaptive",
                    "target_per_response": None,
                    "target_per_token": 0.1,
                    "horizon": 500,
                }
            }
        },
        {"rollout": {"prompts_per_iteration": 1, "max_new_tokens": 2}},
        {"rollout": {"top_k": 1}},
        {"optim": {"policy": {"schedule": "cosine", "min_lr_ratio": 0.1}}},
        {"checkpoint": {"metric": "value/loss"}},
    ],
)
def test_the_neighbour_of_an_impossible_combination_is_possible(options: dict[str, Any]) -> None:
    from rlhf_core.config import resolve_trial

    assert resolve_trial(options, "test")


def test_losses_and_gradients_do_not_depend_on_how_a_batch_is_cut(zoo: Zoo) -> None:
    """Every aggregation, ratio and correction, in one optimiser step from equal weights."""
    once: dict[str, Any] = {"budget__iterations": 1, "ppo__epochs": 1, "ppo__minibatches": 1}
    forms: list[dict[str, Any]] = [
        {"ppo__aggregation": a, "ppo__ratio": r, "ppo__kl__mode": "loss", "ppo__entropy_coef": 0.01}
        for a in ("token_mean", "sequence_mean_token_mean", "sequence_sum")
        for r in ("token", "sequence")
    ]
    for form in forms:
        values = [
            run(trial_config(zoo, **once, **form, **cut))[1][1].values
            for cut in ({}, {"optim__micro_batch_size": 3}, {"optim__micro_batch_tokens": 25})
        ]
        for name in (
            "policy/loss",
            "policy/grad_norm",
            "policy/entropy",
            "value/loss",
            "value/grad_norm",
        ):
            numbers = torch.tensor([v[name] for v in values])
            assert torch.allclose(numbers, numbers[:1].expand(3), rtol=1e-5, atol=1e-6), (
                form,
                name,
            )
