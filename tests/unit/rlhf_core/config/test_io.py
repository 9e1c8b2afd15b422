"""Configuration files: what reads as what, and that every problem is named at once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import TrialConfig, apply, dump_yaml, flatten, load_trial, nest, resolve_trial
from rlhf_core.config.io import parse_yaml
from rlhf_core.errors import ConfigError


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trial.yaml"
    path.write_text(text)
    return path


def _problems(values: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        resolve_trial(values, "file")
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E-5", 1e-5),
        ("1.e-5", 1e-5),
        ("+2e3", 2000.0),
        ("-1e-3", -1e-3),
        (".5", 0.5),
        ("1_000e-6", 1e-3),
        ("1.0e-05", 1e-5),
        ("12", 12),
        ("true", True),
        ("False", False),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("'1e-5'", "1e-5"),
        ("null", None),
    ],
)
def test_a_scalar_reads_as_people_mean_it(text: str, value: object) -> None:
    read = parse_yaml(f"x: {text}", "s")["x"]
    assert read == value
    assert type(read) is type(value)


def test_off_is_the_value_of_an_option() -> None:
    values = parse_yaml("data: {chat_template: off}", "s")
    assert resolve_trial(values, "s").data.chat_template == "off"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed: 1\nppo:\n  lam: 0.5\n  lam: 0.9\n", ("line 4", "'lam' is written twice")),
        ("seed: 1\nppo: {lam: [}\n", ("line 2", "no valid YAML")),
        ("a: 1\n  b: 2\n", ("line 2",)),
        ("? [a, b]\n: 1\n", ("line 1", "key")),
        ("1: 2\n", ("line 1", "a key is text")),
        ("seed: 2020-13-45\n", ("no valid YAML",)),
        ("seed: !thing 3\n", ("line 1", "!thing")),
        ("- 1\n- 2\n", ("mapping", "is a list")),
        ("", ("is empty",)),
    ],
)
def test_a_file_that_is_no_mapping_is_one_line(
    tmp_path: Path, text: str, says: tuple[str, ...]
) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_trial(path)
    (line,) = caught.value.problems
    assert line.startswith(str(path))
    assert "\n" not in line
    for part in says:
        assert part in line


def test_a_missing_or_binary_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_trial(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_trial(tmp_path / "binary.yaml")


def test_merge_keys_work(tmp_path: Path) -> None:
    text = (
        "optim:\n  policy: &adam {lr: 1e-4, beta1: 0.8}\n  critic:\n    <<: *adam\n    lr: 1e-3\n"
    )
    config = load_trial(_write(tmp_path, text))
    assert (config.optim.critic.lr, config.optim.critic.beta1) == (1e-3, 0.8)


def test_unknown_keys_name_near_misses() -> None:
    lines = _problems({"rollout": {"temprature": 1.0}, "pp0": {}, "optim": {"lr": 1e-3}})
    assert "unknown key 'rollout.temprature'; did you mean 'rollout.temperature'" in lines[0]
    assert "'ppo'" in lines[2]
    assert "'optim.policy.lr' or 'optim.critic.lr'" in lines[1]


def test_all_problems_are_reported_together() -> None:
    lines = _problems(
        {
            "seed": -1,
            "nope": 1,
            "ppo": {"lam": 3, "minibatches": 5},
            "rollout": {"prompts_per_iteration": 64, "chunk": 3},
            "sync": {"interval": 2, "interval_episodes": 5},
            "reward": {"model": "a", "function": "b:c"},
            "checkpoint": {"metric": "eval/heldoud"},
        }
    )
    text = "\n".join(lines)
    for part in (
        "seed must be greater than or equal to 0, but is -1",
        "unknown key 'nope'",
        "ppo.lam must be less than or equal to 1, but is 3",
        "unknown key 'rollout.chunk'",
        "ppo.minibatches must divide",
        "sync.interval and sync.interval_episodes exclude each other",
        "reward.model and reward.function exclude each other",
        "checkpoint.metric: no metric 'eval/heldoud'; did you mean 'eval/heldout'",
    ):
        assert part in text
    assert len(lines) == 8
    assert all(line.startswith("file: ") for line in lines)


def test_everything_wrong_with_named_rewards_is_reported_together() -> None:
    sound = {"function": "a:b"}
    lines = _problems(
        {
            "ppo": {"minibatches": 5},
            "reward": {
                "extra": {
                    "Safety": sound,
                    "a.b": sound,
                    "n": 0.5,
                    "brevity": sound,
                    "brevty": {"weight": 2},
                    "alone": {},
                    "both": {"model": "m", **sound},
                    "moved": {"offset": 1.0, **sound},
                    "slip": {"wieght": 1, **sound},
                }
            },
        }
    )
    for part in (
        "reward.extra: a name is lower-case letters, digits and underscores, a letter first, but is 'Safety'",
        "but is 'a.b'",
        "reward.extra.n must be",
        "reward.extra.brevty must name a model, a function or a url, but names none; did you mean 'brevity'?",
        "reward.extra.alone must name a model, a function or a url, but names none; name one, or remove it",
        "reward.extra.both.model and reward.extra.both.function exclude each other",
        "reward.extra.moved.offset belongs to a reward.extra.moved.model",
        "unknown key 'reward.extra.slip.wieght'; did you mean 'reward.extra.slip.weight'",
        "ppo.minibatches must divide",
    ):
        assert len([line for line in lines if part in line]) == 1, part
    assert len(lines) == 9


def test_a_named_reward_is_changed_and_added_by_overrides() -> None:
    base = resolve_trial({"reward": {"extra": {"brevity": {"function": "a:b"}}}}, "base")
    assert apply(base, {"reward.extra.brevity.weight": 0.2}).reward.extra["brevity"].weight == 0.2
    both = apply(base, {"reward.extra.safety.model": "m", "reward.extra.safety.weight": -1})
    assert list(both.reward.extra) == ["brevity", "safety"]
    for key, says in (
        ("reward.extra.brevty.weight", "did you mean 'brevity'?"),
        ("reward.extra.brevity.wieght", "did you mean 'reward.extra.brevity.weight'"),
        ("reward.extra.Brevity.weight", "a name is lower-case letters"),
        ("reward.extra.brevity", "unknown key 'reward.extra.brevity'"),
        ("ppo.kl.coeff", "unknown key 'ppo.kl.coeff'; did you mean 'ppo.kl.coef'"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            apply(base, {key: 1.0})
        assert len(caught.value.problems) == 1


def test_a_rule_over_a_wrong_option_is_not_guessed() -> None:
    lines = _problems({"ppo": {"minibatches": 7}, "rollout": {"prompts_per_iteration": "many"}})
    assert len(lines) == 1
    assert "prompts_per_iteration" in lines[0]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"reward": {"heldout_model": "a", "heldout_function": "b:c"}}, "exclude each other"),
        ({"resources": {"roles": {"fused": {"workers": 2}}}}, "fused.workers must be 1"),
        ({"resources": {"roles": {"critic": {"gpus": 1.5}}}}, "gpus above 1 must be whole"),
        (
            {"resources": {"roles": {"reward": {"cpus": 0, "gpus": 0, "memory_gb": 0}}}},
            "resources.roles.reward needs an amount above 0",
        ),
        ({"optim": {"policy": {"warmup_iterations": 1000}}}, "policy.warmup_iterations must be"),
        ({"ppo": {"kl": {"controller": "adaptive", "horizon": 12}}}, "ppo.kl.horizon must exceed"),
        ({"checkpoint": {"metric": "policy/loss"}}, "has no better direction"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature must be"),
        ({"ppo": {"lam": float("nan")}}, "ppo.lam must be"),
        ({"ppo": {"kl": {"coef": float("inf")}}}, "ppo.kl.coef must be"),
        ({"ppo": 3}, "ppo must be"),
        (
            {"extends": "tinny"},
            "no trial preset 'tinny'; there are smollm, tiny; did you mean 'tiny'?",
        ),
        ({"extends": 3}, "extends is the name of a trial preset"),
    ],
)
def test_a_rule_is_kept(values: dict[str, Any], says: str) -> None:
    lines = _problems(values)
    assert len(lines) == 1
    assert says in lines[0]


@pytest.mark.parametrize("key", ["seed", "optim.policy.lr", "reward.clip", "ppo.epochs"])
@pytest.mark.parametrize("value", [True, False])
def test_a_truth_value_is_no_number(key: str, value: bool) -> None:
    with pytest.raises(ConfigError, match=f"{key} must be a number, but is {value}"):
        apply(TrialConfig(), {key: value})


def test_a_number_is_read_leniently_but_never_cut() -> None:
    assert apply(TrialConfig(), {"ppo.epochs": 2.0}).ppo.epochs == 2
    assert isinstance(apply(TrialConfig(), {"ppo.epochs": 2.0}).ppo.epochs, int)
    assert apply(TrialConfig(), {"ppo.gamma": 1}).ppo.gamma == 1.0
    assert apply(
        TrialConfig(), {"ppo.filter_groups": True, "rollout.samples_per_prompt": 2}
    ).ppo.filter_groups
    with pytest.raises(ConfigError, match=r"ppo\.epochs must be a valid integer"):
        apply(TrialConfig(), {"ppo.epochs": 2.5})


def test_overrides_report_unknown_keys_and_wrong_values_together() -> None:
    with pytest.raises(ConfigError) as caught:
        apply(TrialConfig(), {"optim.policy.learning_rate": 1, "ppo.lam": 7, "ppo.lamda": 0.5})
    text = "\n".join(caught.value.problems)
    assert "unknown key 'optim.policy.learning_rate'" in text
    assert "did you mean 'ppo.lam'" in text
    assert "ppo.lam must be less than or equal to 1, but is 7" in text
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_overrides_change_only_what_they_name() -> None:
    base = resolve_trial("tiny", "tiny")
    changed = apply(base, {"ppo.kl.coef": 0.5})
    before, after = flatten(base), flatten(changed)
    assert {k for k in before if before[k] != after[k]} == {"ppo.kl.coef"}
    assert base.ppo.kl.coef == 0.05


def test_extends_lies_below_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path, "extends: tiny\noptim: {policy: {lr: 3e-4}}\n")
    config, preset = load_trial(path), resolve_trial("tiny", "tiny")
    assert config.optim.policy.lr == 3e-4
    assert config.optim.policy.warmup_iterations == preset.optim.policy.warmup_iterations
    assert config.data.task == preset.data.task


def test_dump_and_load_give_the_same_configuration(tmp_path: Path) -> None:
    config = apply(
        resolve_trial("tiny", "tiny"),
        nested := {
            "optim.policy.lr": 1.23e-7,
            "model.policy": "1e5",
            "model.reference": "off",
            "reward.heldout_function": "ä.b:c",
            "reward.extra.short_1.function": "off:on",
            "reward.extra.short_1.weight": -1e-7,
            "data.prompts": "a: #b",
            "data.chat_template": "off",
            "reward.clip": 1e20,
            "ppo.value_clip_range": None,
            "resources.cpus_per_gpu": 8,
        },
    )
    text = dump_yaml(config, header="best of 8\n\nseed 3")
    assert text.startswith("# best of 8\n#\n# seed 3\n")
    assert load_trial(_write(tmp_path, text)) == config
    assert nest(nested)["model"] == {"policy": "1e5", "reference": "off"}


def test_json_is_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = apply(resolve_trial("tiny", "tiny"), {"optim.policy.lr": 1e-7})
    path.write_text(config.model_dump_json())
    assert load_trial(path) == config


def test_the_interval_in_episodes_never_splits_a_batch() -> None:
    config = apply(TrialConfig(), {"rollout.prompts_per_iteration": 8})
    for episodes, interval in ((1, 1), (8, 1), (15, 1), (16, 2), (50, 6)):
        assert apply(config, {"sync.interval_episodes": episodes}).sync_interval == interval
    assert apply(config, {"sync.interval": 3}).sync_interval == 3


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8]\n"
        + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 12)),
        "a: &a [*a]",
    ],
    ids=["anchors within anchors", "an anchor within itself"],
)
def test_anchors_that_grow_without_end_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"more than 100,000 values|recursive"):
        parse_yaml(text, "s")


def test_an_anchor_used_twice_is_read() -> None:
    assert parse_yaml("a: &a {lr: 1}\nb: *a", "s") == {"a": {"lr": 1}, "b": {"lr": 1}}


def test_the_critic_follows_the_policy_by_its_ratio() -> None:
    config = apply(resolve_trial("tiny", "tiny"), {"optim.critic_lr_ratio": 5.0})
    assert config.optim.critic.lr == pytest.approx(5e-3)
    slower = apply(config, {"optim.policy.lr": 1e-4})
    assert slower.optim.critic.lr == pytest.approx(5e-4)
    assert resolve_trial(slower.model_dump(mode="json"), "config.json") == slower
    with pytest.raises(
        ConfigError, match=r"critic_lr_ratio x policy\.lr must be above 0 and at most 1, but"
    ):
        apply(config, {"optim.policy.lr": 0.5})
