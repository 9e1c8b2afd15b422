"""A whole trial: repeatable, resumable, and every option that matters moves something."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import trial_config

from rlhf_core import checkpoint
from rlhf_core.config import TrialConfig, known_keys
from rlhf_core.config.fields import NAME
from rlhf_core.errors import CheckpointError, ConfigError, DivergedError
from rlhf_core.metrics import (
    CATALOGUE,
    IterationMetrics,
    names_under,
    repeatable,
    staleness_shares,
)
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import plan_trial
from rlhf_core.store import LocalStore
from rlhf_core.trial import PPOTrial

Metrics = dict[int, dict[str, float]]
SECOND = {"reward.extra.length.function": "core_rewards:length"}


def _trial(config: TrialConfig, store: LocalStore | None = None) -> PPOTrial:
    plan = plan_trial(config)
    return PPOTrial(config, LocalRuntime(config, plan), plan, store)


def _run(config: TrialConfig, store: LocalStore | None = None) -> list[IterationMetrics]:
    trial = _trial(config, store)
    try:
        return list(trial)
    finally:
        trial.close()


def _by_iteration(results: list[IterationMetrics]) -> Metrics:
    return {m.iteration: repeatable(m.values) for m in results}


def _weights(trial: PPOTrial) -> torch.Tensor:
    trained = trial.runtime.group("learner").workers[0].host.role("learner")  # type: ignore[attr-defined]
    return torch.cat([p.detach().flatten() for p in trained.model.parameters()])


@pytest.fixture(scope="module")
def config(zoo: Zoo) -> TrialConfig:
    return trial_config(zoo)


@pytest.fixture(scope="module")
def base(config: TrialConfig) -> list[IterationMetrics]:
    return _run(config)


def test_iterations_are_yielded_in_order_with_the_evaluation_first(
    base: list[IterationMetrics],
) -> None:
    assert [m.iteration for m in base] == [0, 1, 2, 3, 4]
    assert "eval/proxy" in base[0].values
    assert "policy/loss" not in base[0].values
    assert "eval/proxy" in base[4].values
    assert not any("eval/proxy" in m.values for m in base[1:4])
    assert base[0].values["time/eval"] > 0
    assert base[0].values["time/eval"] <= base[0].values["time/iteration"]


def test_every_metric_is_in_the_catalogue(zoo: Zoo, base: list[IterationMetrics]) -> None:
    reported = {name for m in base for name in m.values}
    assert reported <= CATALOGUE.keys()
    with_heldout = _run(
        trial_config(
            zoo, budget__iterations=1, reward__heldout_function="core_rewards:length",
            checkpoint__every_iterations=1,
        )
    )  # fmt: skip
    reported |= {name for m in with_heldout for name in m.values}
    with_everything = _run(
        trial_config(
            zoo, budget__iterations=1, **SECOND,
            ppo__correction__kind="tis", ppo__kl__mode="loss", ppo__dual_clip=2.0,
            ppo__filter_groups=True, rollout__samples_per_prompt=2, rollout__partial_tokens=4,
        )
    )  # fmt: skip
    reported |= {name for m in with_everything for name in m.values}
    assert set(names_under(["length"])) - reported <= {
        "time/checkpoint",
        "util/imbalance",
        "runtime/replaced",
    }
    assert reported <= set(names_under(["length"]))


def test_metrics_hang_together(base: list[IterationMetrics]) -> None:
    for m in base[1:]:
        values = m.values
        assert values["cost/episodes"] == 8 * m.iteration
        assert values["weights/version"] == m.iteration
        assert values["staleness/max"] == 0
        assert 1 <= values["rollout/length"] <= 8
        assert values["cost/gpu_seconds"] == 0
        assert values["cost/cpu_seconds"] > 0
        assert values["reward/total"] == pytest.approx(
            values["reward/proxy"] - values["kl/coef"] * values["kl/response"], abs=1e-4
        )
        busy = sum(v for k, v in values.items() if k.startswith("util/busy"))
        assert 0 < busy <= 1.001
    assert base[1].values["kl/response"] == pytest.approx(0.0, abs=1e-4)
    tokens = sum(m.values["rollout/length"] * 8 for m in base[1:])
    assert base[4].values["cost/tokens"] == pytest.approx(tokens)


def test_equal_seeds_give_equal_trials_and_another_seed_another(
    zoo: Zoo, config: TrialConfig, base: list[IterationMetrics]
) -> None:
    assert _by_iteration(_run(config)) == _by_iteration(base)
    other = _by_iteration(_run(trial_config(zoo, seed=1)))
    assert other[0] == _by_iteration(base)[0]
    assert all(other[i] != _by_iteration(base)[i] for i in range(1, 5))


def test_a_short_budget_is_a_prefix_of_a_long_one(zoo: Zoo, base: list[IterationMetrics]) -> None:
    schedule = {"optim__policy__schedule": "cosine", "optim__policy__horizon_iterations": 10}
    short = _by_iteration(_run(trial_config(zoo, budget__iterations=3, **schedule)))
    long = _by_iteration(_run(trial_config(zoo, budget__iterations=6, **schedule)))
    assert list(short) == [0, 1, 2, 3]
    for iteration, metrics in short.items():
        kept = {k: v for k, v in metrics.items() if k in long[iteration]}
        assert kept == long[iteration]
        extra = metrics.keys() - kept.keys()
        assert all(name.startswith("eval/") for name in extra)
    assert short[3].keys() - long[3].keys()


RESUMED = {
    "sync.interval 1": {},
    "sync.interval 2": {"sync__interval": 2},
    "async": {"sync__mode": "async"},
    "async, interval 2, staleness 3": {
        "sync__mode": "async",
        "sync__interval": 2,
        "sync__max_staleness": 3,
    },
    "partial, async, interval 2": {
        "rollout__partial_tokens": 2,
        "rollout__samples_per_prompt": 2,
        "sync__mode": "async",
        "sync__interval": 2,
    },
    "adaptive KL": {"ppo__kl__controller": "adaptive", "ppo__kl__horizon": 20},
    "linear schedule": {
        "optim__policy__schedule": "linear",
        "optim__policy__horizon_iterations": 5,
        "optim__policy__warmup_iterations": 2,
    },
    "minibatches": {"ppo__minibatches": 4, "optim__micro_batch_size": 3},
    "running norm, groups, correction 2": {
        "reward__normalise": "running",
        "rollout__samples_per_prompt": 2,
        "ppo__advantage": "rloo",
        "sync__interval": 2,
        "ppo__correction__kind": "tis",
    },
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_trial_equals_one_that_ran_through(
    zoo: Zoo, tmp_path: Path, base: list[IterationMetrics], name: str
) -> None:
    """Bit for bit, saved after an iteration whose weights were not delivered where the interval is 2."""
    config = trial_config(zoo, checkpoint__every_iterations=1, **RESUMED[name])
    through = _trial(config, LocalStore(tmp_path / "a"))
    whole = _by_iteration(list(through))
    if name != "sync.interval 1":
        assert whole != _by_iteration(base)
    store = LocalStore(tmp_path / "b")
    first = _trial(config, store)
    seen = _by_iteration([next(it) for it in [iter(first)] for _ in range(4)])
    assert list(seen) == [0, 1, 2, 3]
    first.close()
    second = _trial(config, store)
    assert second.restore()
    assert second.iteration == 3
    assert second.stream.held == (2 if "2" in name else 3)
    seen |= _by_iteration(list(second))
    assert seen == whole
    assert torch.equal(_weights(second), _weights(through))
    for trial in (through, second):
        trial.close()


def test_parts_as_long_as_a_response_and_no_surplus_are_whole_responses(
    zoo: Zoo, base: list[IterationMetrics]
) -> None:
    config = trial_config(zoo, rollout__partial_tokens=8, rollout__partial_prompts=8)
    for iteration, metrics in _by_iteration(_run(config)).items():
        assert metrics.pop("rollout/continued_share", 0.0) == 0.0
        assert metrics == _by_iteration(base)[iteration]


def test_a_continued_response_is_what_the_policy_would_say(zoo: Zoo) -> None:
    """Under weights that do not move the stamped log-probabilities are the learner's; tokens keep their stamps."""
    still = {"ppo__epochs": 1, "ppo__minibatches": 1, "optim__policy__lr": 1e-12}
    results = _run(trial_config(zoo, rollout__partial_tokens=2, budget__iterations=5, **still))
    for m in results[1:]:
        assert m.values["policy/ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert m.values["kl/response"] == pytest.approx(0.0, abs=1e-4)
    last = results[-1].values
    assert last["rollout/continued_share"] > 0.2
    shares = [last[name] for name in staleness_shares()]
    assert sum(shares) == pytest.approx(1.0)
    assert 0 < shares[0] < 1
    assert last["staleness/mean"] >= 1 - shares[0]
    assert 1 <= last["staleness/max"] <= 4


def test_a_trial_can_go_back_to_any_step(zoo: Zoo, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    config = trial_config(zoo, checkpoint__every_iterations=1, checkpoint__keep=9)
    trial = _trial(config, store)
    whole = _by_iteration(list(trial))
    assert checkpoint.steps(store) == [1, 2, 3, 4]
    assert trial.restore(2)
    again = _by_iteration(list(trial))
    assert again == {i: whole[i] for i in (2, 3, 4)}
    assert list(trial) == []


def test_an_iteration_that_was_saved_and_never_yielded_comes_after_the_restore(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: list[IterationMetrics]
) -> None:
    """A process that dies between the two; the last iteration is no exception."""
    store = LocalStore(tmp_path)
    config = trial_config(zoo, checkpoint__every_iterations=1)
    for lost in (3, 4):
        trial = _trial(config, store)
        trial.restore()
        busy = trial._busy

        def dies(
            elapsed: float, trial: PPOTrial = trial, lost: int = lost, busy: Any = busy
        ) -> Any:
            if trial.iteration == lost:
                raise ConnectionError
            return busy(elapsed)

        monkeypatch.setattr(trial, "_busy", dies)
        with pytest.raises(ConnectionError):
            list(trial)
        assert checkpoint.pointed(store, "latest") == lost
    last = _trial(config, store)
    assert last.restore()
    (again,) = last
    assert (again.iteration, again.repeated) == (4, True)
    assert repeatable(again.values) == _by_iteration(base)[4]
    assert again.values["time/iteration"] > 0
    assert again.values["cost/cpu_seconds"] > 0


def test_nothing_to_restore(config: TrialConfig, tmp_path: Path) -> None:
    trial = _trial(config)
    assert not trial.restore()
    with pytest.raises(CheckpointError, match="no store"):
        trial.save()
    assert not _trial(config, LocalStore(tmp_path)).restore()
    with pytest.raises(CheckpointError, match="step 3 has no manifest"):
        _trial(config, LocalStore(tmp_path)).restore(3)


def test_a_manifest_without_a_part_is_named(config: TrialConfig, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    checkpoint.commit(store, 1, {"state": {}, "parts": {"learner": {}}})
    with pytest.raises(CheckpointError, match=r"step 1 in .* lacks critic"):
        _trial(config, store).restore()


@pytest.mark.parametrize(("metric", "choose"), [("reward/proxy", max), ("kl/response", min)])
def test_the_best_checkpoint_is_the_best_in_its_metrics_direction(
    zoo: Zoo, tmp_path: Path, metric: str, choose: Any
) -> None:
    store = LocalStore(tmp_path)
    config = trial_config(
        zoo, checkpoint__every_iterations=1, checkpoint__metric=metric, checkpoint__keep=0
    )
    results = _run(config, store)[1:]
    values = {m.iteration: m.values[metric] for m in results}
    best = choose(values, key=values.__getitem__)
    assert checkpoint.pointed(store, "best") == best
    assert checkpoint.pointed(store, "latest") == 4
    assert checkpoint.steps(store) == sorted({best, 4})
    assert checkpoint.read_manifest(store, best)["metrics"][metric] == values[best]


def test_without_an_interval_there_is_one_checkpoint_at_the_end(
    zoo: Zoo, config: TrialConfig, tmp_path: Path
) -> None:
    _run(config, LocalStore(tmp_path / "a"))
    assert checkpoint.steps(LocalStore(tmp_path / "a")) == [4]
    _run(
        trial_config(zoo, checkpoint__every_minutes=1e-9, checkpoint__keep=9),
        LocalStore(tmp_path / "b"),
    )
    assert checkpoint.steps(LocalStore(tmp_path / "b")) == [1, 2, 3, 4]


def test_a_diverged_iteration_is_not_saved(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    trial = _trial(trial_config(zoo, checkpoint__every_iterations=1), store)
    results = iter(trial)
    next(results)
    next(results)
    iterate = trial._iterate
    monkeypatch.setattr(trial, "_iterate", lambda p: iterate(p) | {"policy/loss": float("nan")})
    with pytest.raises(DivergedError, match="policy/loss is nan"):
        next(results)
    assert checkpoint.steps(store) == [1]
    assert checkpoint.pointed(store, "latest") == 1


def test_a_learning_rate_of_about_zero_keeps_the_policy(zoo: Zoo) -> None:
    config = trial_config(zoo, optim__policy__lr=1e-12, ppo__epochs=1, ppo__minibatches=1)
    for m in _run(config)[1:]:
        assert m.values["kl/response"] == pytest.approx(0.0, abs=1e-4)
        assert m.values["policy/ratio_max"] == pytest.approx(1.0, abs=1e-5)
        assert m.values["policy/approx_kl"] == pytest.approx(0.0, abs=1e-9)


def test_the_kl_penalty_lowers_the_kl(zoo: Zoo) -> None:
    kl = {}
    for coef in (0.0, 3.0):
        config = trial_config(
            zoo, budget__iterations=8, ppo__kl__coef=coef, rollout__prompts_per_iteration=16
        )
        kl[coef] = _run(config)[-1].values["kl/response"]
    assert kl[3.0] < 0.7 * kl[0.0]


def test_closing_the_iteration_early_ends_cleanly(config: TrialConfig, tmp_path: Path) -> None:
    trial = _trial(config, LocalStore(tmp_path))
    results = iter(trial)
    next(results)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert list(results) == []
    # Whoever asks again goes on, without a second evaluation of the start.
    assert next(iter(trial)).iteration == 2
    trial.close()
    trial.close()


def test_the_evaluation_asks_each_prompt_once(zoo: Zoo, tmp_path: Path) -> None:
    path = tmp_path / "eval.txt"
    path.write_text("the film\na bad\n")
    few = trial_config(
        zoo, data__eval_prompts=str(path), eval__prompts=64, budget__iterations=1,
        reward__heldout_function="core_rewards:length",
    )  # fmt: skip
    two = few.model_copy(update={"eval": few.eval.model_copy(update={"prompts": 2})})
    assert _by_iteration(_run(few))[0] == _by_iteration(_run(two))[0]


def test_prompts_go_on_where_the_last_iteration_ended(config: TrialConfig) -> None:
    trial = _trial(config)
    asked = []
    for batch in (0, 1, 2):
        chunks = trial.stream.take(batch).sample.chunks
        asked += [prompt.text for chunk in chunks for prompt in chunk.prompts]
    assert len(set(asked)) == len(asked) == 24


def test_the_evaluation_is_of_the_learner_not_of_older_weights(zoo: Zoo) -> None:
    """The rollouts keep the first weights for three iterations."""
    results = _run(trial_config(zoo, sync__interval=3, eval__every_iterations=1))
    for m in results[1:3]:
        assert m.values["kl/response"] == pytest.approx(0.0, abs=1e-4)
        assert abs(m.values["eval/kl_response"]) > 1e-2
    assert [m.values["staleness/max"] for m in results[1:]] == [0, 1, 2, 0]


def test_errors_of_a_role_arrive_as_themselves(zoo: Zoo) -> None:
    with pytest.raises(ConfigError, match="lacks weights"):
        _run(trial_config(zoo, **{"reward.model": zoo.policies["Llama"]}))


@pytest.mark.parametrize(
    ("family", "reward"), [("GPT2", "other"), ("Qwen2", "encoder"), ("Llama", "same")]
)
def test_every_family_trains_under_a_reward_model(zoo: Zoo, family: str, reward: str) -> None:
    config = trial_config(
        zoo, family, budget__iterations=2, **{"reward.model": zoo.rewards[reward]}
    )
    first, last = _run(config)[1:]
    assert first.values["policy/grad_norm"] > 0
    assert first.values["value/grad_norm"] > 0
    assert last.values["kl/response"] != pytest.approx(first.values["kl/response"], abs=1e-6)


# Options that do not change what a trial learns.
ELSEWHERE = (
    "resources.", "checkpoint.", "budget.", "eval.", "data.", "reward.workers",
    "model.policy", "model.reference", "model.critic_init", "model.dtype", "model.device",
    "optim.engine", "optim.zero_stage", "optim.offload", "optim.gradient_checkpointing",
    "reward.timeout_s", "reward.offset", "reward.heldout", "reward.model", "reward.function",
    "reward.url", "reward.extra.NAME.url",
    "optim.micro_batch_size", "optim.micro_batch_tokens", "rollout.chunk_size",
    "rollout.engine", "rollout.vllm.",
    "sync.transport", "sync.bucket_mb", "sync.timeout_s",
)  # fmt: skip
SHORT = {"budget__iterations": 3, "eval__prompts": 2, "rollout__chunk_size": 64}
# key: (value, what has to be set beside it, iteration at which it shows); {same} is that reward model
KNOBS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "optim.critic_lr_ratio": (20.0, {}, 1),
    "reward.clip": (0.05, {}, 1),
    "reward.missing_eos_penalty": (1.0, {}, 1),
    "reward.normalise": ("running", {}, 1),
    "reward.mean": (0.5, {"reward__normalise": "static"}, 1),
    "reward.std": (3.0, {"reward__normalise": "static"}, 1),
    "reward.truncation_penalty": (-1.0, {}, 1),
    "reward.overlong_buffer": (4, {}, 1),
    "reward.overlong_penalty": (3.0, {"reward__overlong_buffer": 4}, 1),
    "reward.weight": (3.0, {}, 1),
    "reward.extra.NAME.function": ("core_rewards:letter_a", SECOND, 1),
    "reward.extra.NAME.model": ("{same}", {}, 1),
    "reward.extra.NAME.weight": (3.0, SECOND, 1),
    "reward.extra.NAME.offset": (3.0, {"reward.extra.length.model": "{same}"}, 1),
    "rollout.top_p": (0.5, {}, 1),
    "rollout.top_k": (3, {}, 1),
    "rollout.stop": (("a", "e"), {}, 1),
    "rollout.prompts_per_iteration": (12, {}, 1),
    "rollout.samples_per_prompt": (2, {}, 1),
    "rollout.max_new_tokens": (6, {}, 1),
    "rollout.temperature": (0.7, {}, 1),
    "ppo.gamma": (0.9, {}, 1),
    "ppo.lam": (0.5, {}, 1),
    "ppo.clip_range_low": (0.01, {}, 1),
    "ppo.clip_range_high": (0.01, {}, 1),
    "ppo.advantage": ("reinforce", {}, 1),
    "ppo.dual_clip": (1.001, {"ppo__epochs": 4}, 1),
    "ppo.ratio": ("sequence", {}, 1),
    "ppo.log_ratio_clamp": (0.011, {"ppo__clip_range_low": 0.01, "ppo__clip_range_high": 0.01}, 1),
    "ppo.aggregation": ("sequence_sum", {}, 1),
    "ppo.constant_length": (2, {"ppo__aggregation": "sequence_sum"}, 1),
    "ppo.critic_warmup_iterations": (1, {}, 1),
    "ppo.filter_groups": (
        True,
        {"rollout__samples_per_prompt": 2, "reward__function": "core_rewards:letter_a"},
        1,
    ),
    "ppo.correction.kind": ("tis", {"sync__interval": 2}, 2),
    "ppo.correction.low": (0.999, {"sync__interval": 2, "ppo__correction__kind": "icepop"}, 2),
    "ppo.correction.high": (1.001, {"sync__interval": 2, "ppo__correction__kind": "tis"}, 2),
    "ppo.kl.mode": ("loss", {"ppo__kl__coef": 5.0}, 1),
    "ppo.kl.target_per_token": (
        0.001,
        {"ppo__kl__controller": "adaptive", "ppo__kl__horizon": 20},
        3,
    ),
    "ppo.kl.measure": (False, {"ppo__kl__coef": 0.0}, 1),
    "ppo.value_clip_range": (0.001, {}, 1),
    "ppo.epochs": (3, {}, 1),
    "ppo.minibatches": (2, {}, 1),
    "ppo.whitening": ("off", {}, 1),
    "ppo.entropy_coef": (0.1, {}, 1),
    "ppo.kl.coef": (1.0, {}, 2),
    "ppo.kl.controller": (
        "adaptive",
        {"ppo__kl__coef": 20.0, "rollout__prompts_per_iteration": 32},
        2,
    ),
    "ppo.kl.target_per_response": (
        0.01,
        {"ppo__kl__controller": "adaptive", "ppo__kl__horizon": 20},
        3,
    ),
    "ppo.kl.horizon": (20, {"ppo__kl__controller": "adaptive"}, 2),
    "ppo.kl.estimator": ("k3", {"ppo__kl__coef": 1.0}, 2),
    "rollout.partial_tokens": (4, {}, 1),
    "rollout.partial_prompts": (24, {"rollout__partial_tokens": 4}, 1),
    "sync.interval": (2, {}, 2),
    "sync.interval_episodes": (16, {}, 2),
    "sync.mode": ("async", {}, 2),
    "sync.max_staleness": (2, {"sync__mode": "async"}, 3),
    "seed": (1, {}, 1),
    "model.lora.rank": (2, {}, 1),
    "model.lora.alpha": (64.0, {"model__lora__rank": 2}, 1),
    "model.lora.dropout": (0.5, {"model__lora__rank": 2}, 1),
    "model.lora.targets": (("q_proj",), {"model__lora__rank": 2}, 1),
    "optim.autocast": ("bfloat16", {}, 1),
}
for _role in ("policy", "critic"):
    KNOBS |= {
        f"optim.{_role}.lr": (1e-2, {}, 1),
        f"optim.{_role}.beta1": (0.5, {}, 2),
        f"optim.{_role}.beta2": (0.5, {}, 2),
        f"optim.{_role}.eps": (0.1, {}, 1),
        f"optim.{_role}.weight_decay": (10.0, {}, 1),
        f"optim.{_role}.max_grad_norm": (1e-4, {}, 1),
        f"optim.{_role}.schedule": ("linear", {f"optim__{_role}__horizon_iterations": 4}, 2),
        f"optim.{_role}.warmup_iterations": (2, {}, 1),
        f"optim.{_role}.horizon_iterations": (4, {f"optim__{_role}__schedule": "linear"}, 2),
        f"optim.{_role}.min_lr_ratio": (
            0.5,
            {f"optim__{_role}__schedule": "linear", f"optim__{_role}__horizon_iterations": 3},
            2,
        ),
    }


# Options that evaluation sees before the first update.
EVALUATED = (
    "reward.weight",
    "reward.extra.NAME.weight",
    "reward.extra.NAME.model",
    "reward.extra.NAME.function",
    "reward.extra.NAME.offset",
    "rollout.max_new_tokens",
    "rollout.temperature",
    "rollout.top_p",
    "rollout.top_k",
    "rollout.stop",
    "ppo.kl.measure",
)


def test_every_option_that_matters_has_a_knob() -> None:
    keys = {key for key in known_keys() if not key.startswith(ELSEWHERE)}
    assert keys == KNOBS.keys()


def _filled(zoo: Zoo, values: dict[str, Any]) -> dict[str, Any]:
    """The values with reward models in place of their names."""
    return {
        key: value.format_map(zoo.rewards) if isinstance(value, str) else value
        for key, value in values.items()
    }


@pytest.fixture(scope="module")
def unmoved(zoo: Zoo) -> Callable[..., Metrics]:
    """Three iterations with what stands beside a knob; run once for equal ones."""

    @functools.cache
    def run(**beside: Any) -> Metrics:
        return _by_iteration(_run(trial_config(zoo, **SHORT, **_filled(zoo, beside))))

    return run


@pytest.mark.parametrize("key", KNOBS)
def test_every_knob_moves_something(zoo: Zoo, unmoved: Callable[..., Metrics], key: str) -> None:
    value, beside, shows = KNOBS[key]
    moved_by = {**beside, key.replace(NAME, "length"): value}
    config = trial_config(zoo, **{**SHORT, **_filled(zoo, moved_by), "budget__iterations": shows})
    before, after = unmoved(**beside), _by_iteration(_run(config))
    assert before[0] == after[0] or key in EVALUATED
    own = {
        "optim.policy.": "policy/lr", "optim.critic.": "value/lr", "ppo.kl.": "kl/coef",
        "sync.": "sync/bytes",
    }  # fmt: skip
    ignore = {metric for prefix, metric in own.items() if key.startswith(prefix)}
    moved = {
        i for i in range(1, shows + 1) for name in before[i]
        if name not in ignore and not name.startswith("eval/")
        and (name not in after[i]
             or before[i][name] != pytest.approx(after[i][name], rel=1e-4, abs=1e-5))
    }  # fmt: skip
    assert moved, f"{key} changed nothing"
    assert min(moved) == shows


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optim.micro_batch_size", 2),
        ("optim.micro_batch_tokens", 30),
        ("optim.gradient_checkpointing", True),
        ("resources.roles.fused.cpus", 9.0),
        ("sync.transport", "collective"),
        ("sync.bucket_mb", 1e-4),
        ("sync.timeout_s", 9.0),
        ("eval.seed", 5),
    ],
)
def test_how_it_is_computed_changes_nothing(zoo: Zoo, key: str, value: Any) -> None:
    # One optimiser step: later ones start from weights that differ in their last bits, which Adam amplifies.
    once = {"budget__iterations": 1, "ppo__epochs": 1, "ppo__minibatches": 1}
    once |= {"reward__function": "core_rewards:length"}
    one, other = (
        _by_iteration(_run(trial_config(zoo, **once, **options)))[1]
        for options in ({}, {key: value})
    )
    for name, number in one.items():
        if not name.startswith("eval/"):
            assert other[name] == pytest.approx(number, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_the_seed_of_a_chunk_makes_its_responses(zoo: Zoo, chunk: int) -> None:
    one, two = (
        _by_iteration(_run(trial_config(zoo, rollout__chunk_size=chunk, budget__iterations=1)))
        for _ in range(2)
    )
    assert one == two
