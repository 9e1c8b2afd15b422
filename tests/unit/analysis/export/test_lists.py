"""Every option is exported, converted or dropped, in exactly one of the lists, for every target."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from analysis.export.render import report
from analysis.export.rules import apply_table
from analysis.export.targets import FRAMEWORKS, Target, framework
from rlhf_core.config import TrialConfig, apply, flatten, known_keys, resolve_trial

ROLES = ("rollout", "learner", "critic", "reference", "reward", "fused")
TARGETS = [*FRAMEWORKS.values(), framework("deepspeed"), framework("deepspeed", "critic")]
CASES = [pytest.param(t, v, id=f"{t.name}-{v}") for t in TARGETS for v in t.versions]

# A new option without counterpart anywhere is one line here; one of every role one in ``OF_ROLES``.
EVERYWHERE = """
    resources.max_replacements resources.roles.reference.merge resources.roles.reference.placement
    resources.roles.reward.merge resources.roles.reward.placement
    data.task data.eval_prompts data.test_prompts
    reward.heldout_offset reward.heldout_model reward.heldout_function reward.heldout_url
    reward.workers reward.timeout_s reward.url_batch_size reward.url_retries
    rollout.chunk_size rollout.partial_tokens rollout.partial_prompts
    rollout.engine rollout.vllm.gpu_memory_utilization rollout.vllm.enforce_eager
    sync.transport sync.timeout_s
    resources.threads resources.cpus_per_gpu resources.head_cpus resources.affinity resources.labels
    resources.gpu_memory_gb
    checkpoint.every_minutes checkpoint.metric eval.seed optim.critic_lr_ratio optim.autocast
"""
OF_ROLES = ("cpus", "memory_gb", "share", "custom", "labels")
NO_COUNTERPART = {
    "openrlhf": "sync.bucket_mb eval.every_iterations eval.prompts",
    "verl": """
        data.prompts reward.mean reward.std reward.overlong_penalty
        model.lora.dropout optim.engine optim.zero_stage optim.offload
    """,
    "trl": """
        sync.bucket_mb reward.mean reward.std reward.overlong_penalty
        resources.strategy eval.every_iterations eval.prompts
        model.lora.alpha model.lora.dropout model.lora.targets optim.engine optim.zero_stage optim.offload
    """,
}
DEEPSPEED = """
    model.dtype optim.engine optim.zero_stage optim.offload
    ppo.minibatches optim.micro_batch_size optim.micro_batch_tokens
    optim.policy.lr optim.policy.beta1 optim.policy.beta2 optim.policy.eps optim.policy.weight_decay
    optim.policy.max_grad_norm optim.policy.schedule optim.policy.warmup_iterations
    optim.policy.horizon_iterations optim.policy.min_lr_ratio
    optim.critic.lr optim.critic.beta1 optim.critic.beta2 optim.critic.eps optim.critic.weight_decay
    optim.critic.max_grad_norm optim.critic.schedule optim.critic.warmup_iterations
    optim.critic.horizon_iterations optim.critic.min_lr_ratio
"""
NAMED = {"reward": {"extra": {"style": {"model": "org/style"}, "brevity": {"function": "a.b:c"}}}}


HEADING = "Dropped (with the value where it is not the default):"


def ruled(target: Target, version: str) -> list[str]:
    return [key for rule in target.table(version) for key in rule.keys]


@pytest.mark.parametrize(("target", "version"), CASES)
@pytest.mark.parametrize("preset", [{}, "tiny", NAMED], ids=["default", "tiny", "named"])
def test_every_option_is_in_exactly_one_list(
    target: Target, version: str, preset: dict[str, object] | str
) -> None:
    config = resolve_trial(preset, "test")
    applied = target.apply(config, version)
    listed = Counter([*applied.exported, *applied.converted, *applied.dropped])
    assert {key: count for key, count in listed.items() if count > 1} == {}
    assert sorted(listed) == sorted(flatten(config))


@pytest.mark.parametrize(("target", "version"), CASES)
def test_a_rule_names_options_that_exist_and_no_other_rule_has(
    target: Target, version: str
) -> None:
    named = Counter(ruled(target, version))
    assert {key: count for key, count in named.items() if count > 1} == {}
    assert set(named) - set(known_keys()) == set()


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_the_options_without_counterpart_are_these(name: str) -> None:
    """A new option lands here until a rule for it stands in the target's table, or it is listed above."""
    target = FRAMEWORKS[name]
    wanted = set((EVERYWHERE + NO_COUNTERPART[name]).split())
    wanted |= {f"resources.roles.{role}.{leaf}" for role in ROLES for leaf in OF_ROLES}
    for version in target.versions:
        assert set(known_keys()) - set(ruled(target, version)) == wanted


@pytest.mark.parametrize("role", ["policy", "critic"])
def test_deepspeed_takes_these_options_only(role: str) -> None:
    target = framework("deepspeed", role)
    assert set(ruled(target, target.versions[0])) == set(DEEPSPEED.split())


def test_what_no_rule_names_is_dropped_with_a_reason() -> None:
    applied = apply_table((), TrialConfig(), lambda key: f"no rule for {key}")
    assert applied.dropped == {key: f"no rule for {key}" for key in flatten(TrialConfig())}


def replaced(group: Any, key: str, value: object) -> Any:
    """A configuration with another value, which no rule of it is asked about."""
    name, _, below = key.partition(".")
    inner = replaced(getattr(group, name), below, value) if below else value
    return group.model_copy(update={name: inner})


VAIN = [
    {},
    {"ppo.advantage": "rloo", "rollout.samples_per_prompt": 4},
    {"ppo.kl.controller": "adaptive", "ppo.kl.target_per_token": 0.1},
    {"ppo.correction.kind": "tis"},
    {"optim.micro_batch_tokens": 4096, "sync.mode": "async"},
]


@pytest.mark.parametrize(("target", "version"), CASES)
@pytest.mark.parametrize("values", VAIN, ids=str)
def test_what_has_no_effect_is_not_written(
    target: Target, version: str, values: dict[str, object]
) -> None:
    config, table = apply(TrialConfig(), values), target.rules(version)
    applied = apply_table(table, config, str)
    for key, why in applied.dropped.items():
        if "has no effect" in why:
            other = apply_table(table, replaced(config, key, 3), str)
            assert other.theirs == applied.theirs, key


@pytest.mark.parametrize(("target", "version"), CASES)
def test_what_was_set_and_is_dropped_stands_first(target: Target, version: str) -> None:
    values = {"reward.missing_eos_penalty": 2.0, "resources.cpus_per_gpu": 3.0, "seed": 5}
    values |= {"resources.roles.reward.cpus": 7.0, "sync.timeout_s": 99.0, "eval.seed": 5}
    config = apply(TrialConfig(), values)
    applied = target.apply(config, version)
    lines = report(applied, config)
    dropped = " ".join(lines[lines.index(HEADING) + 1 : lines.index("Exported as they are:")])
    changed = [key for key in values if key in applied.dropped]
    assert "resources.roles.reward.cpus" in changed
    at_default = min(
        place
        for key in applied.dropped
        if key not in values and not key.startswith("resources.roles.")
        if (place := f" {dropped} ".find(f" {key}")) >= 0
    )
    assert all(dropped.index(f"{key} = ") < at_default for key in changed)
    (summary,) = [line for line in lines if "resources.roles.*" in line]
    left = [k for k in applied.dropped if k.startswith("resources.roles.") and k not in values]
    assert f"{len(left)} options at their defaults" in summary
    assert not any(f"{key}," in dropped or f"{key}:" in dropped for key in left)


@pytest.mark.parametrize(("target", "version"), CASES)
def test_every_dropped_and_converted_option_says_why(target: Target, version: str) -> None:
    applied = target.apply(TrialConfig(), version)
    assert all({**applied.converted, **applied.dropped}.values())
