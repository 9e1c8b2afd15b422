"""The real vLLM, on a CPU: what it samples, stamps and takes over, alone and in trials. Marker ``vllm``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import build, characters
from tiny_rollouts import CONTEXT, prompts, role, trial_config

from rlhf_core.assets import make_ready, problems
from rlhf_core.config import TrialConfig
from rlhf_core.errors import ConfigError, RlhfError
from rlhf_core.metrics import repeatable
from rlhf_core.models.forward import logprobs
from rlhf_core.models.weights import checksum
from rlhf_core.roles.learner import LearnerRole
from rlhf_core.roles.rollout import RolloutRole
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import (
    Bundle,
    PlacementPlan,
    WorkerPlace,
    group_request,
    plan_trial,
)
from rlhf_core.store import LocalStore
from rlhf_core.trial import PPOTrial
from rlhf_core.types import CallContext, Chunk, Rollout

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
# Log-probabilities of two implementations in float32, at values of about 3.
NEAR = 2e-4
# The same in bfloat16, whose numbers have eight bits.
NEAR_IN_HALF = 0.2
CUT = {"rollout__temperature": 0.7, "rollout__top_p": 0.9, "rollout__top_k": 8}
LATER = CallContext("test", version=7)
Made = Callable[..., TrialConfig]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Trials of tiny models whose attention heads are of a size that vLLM takes on a CPU."""
    root = tmp_path_factory.mktemp("vllm")
    zoo, tokenizer = build(root / "zoo"), characters()
    common = {
        "vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
        "initializer_range": 0.25,
    }  # fmt: skip
    grouped = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 96, "max_position_embeddings": 96, **common,
    }  # fmt: skip
    configs = {
        "Wide": transformers.LlamaConfig(**grouped),
        "Tied": transformers.LlamaConfig(**grouped, tie_word_embeddings=True),
        "Qwen2": transformers.Qwen2Config(**grouped),
        "GPT2": transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, n_positions=96, **common),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for family, config in configs.items():
            model = transformers.AutoModelForCausalLM.from_config(config)
            for name, weight in model.named_parameters():
                if name.endswith("bias"):
                    # Biases start at zero, where a forgotten one would not show.
                    weight.data.normal_(0.0, 0.1)
            model.save_pretrained(root / family)
            tokenizer.save_pretrained(root / family)
    whole = replace(
        zoo, policies={**zoo.policies, **{family: str(root / family) for family in configs}}
    )

    def make(family: str = "Wide", **values: Any) -> TrialConfig:
        return trial_config(whole, family, rollout__engine="vllm", **values)

    return make


@contextmanager
def rollouts(config: TrialConfig) -> Iterator[RolloutRole]:
    """A rollout role; vLLM has state of the whole process, so there is one at a time."""
    made = role("rollout", config)
    try:
        yield made
    finally:
        made.close()


def shaken(config: TrialConfig) -> LearnerRole:
    """A learner after an update: every weight that can change has changed."""
    learner: LearnerRole = role("learner", config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in learner.model.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return learner


def apart(learner: LearnerRole, batch: Rollout, config: TrialConfig) -> float:
    """Largest difference of a stamped log-probability from the learner's own."""
    with torch.no_grad():
        own_BT = logprobs(learner.model, batch, config.rollout.temperature)
    assert float(own_BT.abs().max()) > 1
    return float((own_BT - batch.logprobs_BT).abs().max())


@pytest.mark.parametrize(
    ("family", "values", "near"),
    [
        ("Wide", {}, NEAR),
        ("Wide", CUT, NEAR),
        ("Wide", {"model__lora__rank": 4}, NEAR),
        ("Wide", {"model__dtype": "bfloat16"}, NEAR_IN_HALF),
        ("Tied", {}, NEAR),
        ("Tied", {"model__lora__rank": 4}, NEAR),
        ("Qwen2", {}, NEAR),
        ("GPT2", {}, NEAR),
    ],
    ids=["plain", "cut", "lora", "bfloat16", "tied", "tied, lora", "qwen2", "gpt2"],
)
def test_stamps_are_the_learners_own_before_and_after_weights_are_delivered(
    made: Made, family: str, values: dict[str, Any], near: float
) -> None:
    config = made(family, sync__bucket_mb=0.01, **values)
    chunk = Chunk(0, prompts(config) * 4, 3)
    with rollouts(config) as sampler:
        first, again = sampler.generate(CONTEXT, chunk), sampler.generate(CONTEXT, chunk)
        for name in first.__dataclass_fields__:
            assert torch.equal(getattr(first, name), getattr(again, name)), name
        other = sampler.generate(CONTEXT, replace(chunk, seed=4))
        assert not torch.equal(first.tokens_BL[:, :20], other.tokens_BL[:, :20])
        before, after = role("learner", config), shaken(config)
        assert apart(before, first, config) < near < 0.2 * apart(after, first, config)

        header, buckets = after.publish(LATER)
        assert len(buckets) > 1
        assert sampler.load_weights(LATER, header, buckets) == 7
        second = sampler.generate(LATER, chunk)
        assert apart(after, second, config) < near < 0.2 * apart(before, second, config)
        assert torch.equal(second.versions_BT, 7 * second.response_mask_BT)

        # A replacement is sent what this one holds; a checkpoint says the same.
        told = sampler.publish(LATER)
        assert [b.checksum for b in told[1]] == [b.checksum for b in buckets]


def test_a_bucket_that_was_altered_reaches_no_engine(made: Made) -> None:
    config = made()
    chunk = Chunk(0, prompts(config), 3)
    with rollouts(config) as sampler:
        before = sampler.generate(CONTEXT, chunk)
        header, buckets = shaken(config).publish(LATER)
        wrong = [bucket.copy() for bucket in buckets]
        wrong[-1].pieces[-1][0] += 1
        assert checksum(wrong[-1].pieces) != wrong[-1].checksum
        with pytest.raises(
            RlhfError, match=f"bucket {len(wrong) - 1} of version 7 arrived altered"
        ):
            sampler.load_weights(LATER, header, wrong)
        with pytest.raises(RlhfError, match="the last delivery of weights broke off"):
            sampler.generate(LATER, chunk)
        assert apart(role("learner", config), before, config) < NEAR
        sampler.load_weights(LATER, header, buckets)
        assert apart(shaken(config), sampler.generate(LATER, chunk), config) < NEAR


def test_responses_end_and_go_on_as_they_do_with_the_own_sampler(made: Made) -> None:
    config = made(rollout__temperature=2.0, rollout__stop=("a",))
    asked = prompts(config)
    with rollouts(config) as sampler:
        batch = sampler.generate(CONTEXT, Chunk(0, asked * 8, 1))
        stops = set(sampler.sampler.sampling.stop_ids)
        assert len(stops) == 2
        assert 0 < int(batch.finished_B.sum()) < batch.size
        for row in range(batch.size):
            response = batch.response(row)
            assert stops.isdisjoint(response[:-1])
            assert (response[-1] in stops) == bool(batch.finished_B[row])
            assert bool(batch.finished_B[row]) or len(response) == 8
        # What a row says does not depend on who is beside it.
        alone = sampler.generate(CONTEXT, Chunk(0, asked[:1], 1))
        assert alone.response(0) == batch.response(0)

        begun = tuple((5, 6) for _ in asked)
        part = sampler.generate(CONTEXT, Chunk(0, asked, 1, begun=begun, new_tokens=3))
        assert int(part.response_lengths_B.max()) == 3
        assert part.tokens_BL[0, : len(asked[0].tokens) + 2].tolist() == [*asked[0].tokens, 5, 6]
        assert apart(role("learner", config), part, config) < NEAR


def test_draws_follow_the_distribution(made: Made) -> None:
    config = made(rollout__temperature=0.8, rollout__max_new_tokens=1)
    (asked, *_), count = prompts(config), 4000
    with rollouts(config) as sampler:
        batch = sampler.generate(CONTEXT, Chunk(0, (asked,) * count, 5))
        drawn = torch.bincount(batch.tokens_BL[:, -1], minlength=31) / count
        with torch.no_grad():
            logits = sampler.model(torch.tensor([asked.tokens])).logits[0, -1]
    expected = torch.softmax(logits / 0.8, -1)
    # Five standard errors.
    assert ((drawn - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt() + 1e-3).all()


def test_weights_that_arrive_while_it_sleeps_are_there_when_it_wakes(made: Made) -> None:
    config = made()
    chunk = Chunk(0, prompts(config), 3)
    with rollouts(config) as sampler:
        sampler.rest(CONTEXT)
        assert not sampler.engine.asleep, "there is nothing to free on a CPU"
        # vLLM goes through its states on a CPU as well; it only frees nothing.
        sampler.engine.sleeps = True
        sampler.rest(CONTEXT)
        assert sampler.engine.asleep
        sampler.load_weights(LATER, *shaken(config).publish(LATER))
        assert sampler.engine.asleep
        batch = sampler.generate(LATER, chunk)
        assert not sampler.engine.asleep
        assert apart(shaken(config), batch, config) < NEAR


@pytest.mark.parametrize(
    ("family", "lines"),
    [
        ("Wide", ()),
        ("Llama", ("on a CPU 'vllm' takes attention heads of 32, 64, .* but those of .* have 8;",)),
    ],
)
def test_what_it_cannot_serve_is_refused_before_launch(
    made: Made, family: str, lines: tuple[str, ...]
) -> None:
    config = made(family)
    assert problems(config) == []
    if not lines:
        make_ready(config)
        return
    with pytest.raises(ConfigError, match=lines[0]):
        make_ready(config)


def _trial(made: Made, **values: Any) -> TrialConfig:
    return made(
        budget__iterations=2, checkpoint__every_iterations=1, reward__function="core_rewards:length",
        resources__roles__fused__gpus=0, eval__every_iterations=2, **values,
    )  # fmt: skip


def _local(config: TrialConfig, store: LocalStore) -> dict[int, dict[str, float]]:
    plan = plan_trial(config)
    trial = PPOTrial(config, LocalRuntime(config, plan), plan, store)
    try:
        trial.restore()
        return {m.iteration: repeatable(m.values) for m in trial}
    finally:
        trial.close()


@pytest.fixture(scope="module")
def local(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, float]]:
    """Two iterations in this process."""
    return _local(_trial(made), LocalStore(tmp_path_factory.mktemp("local")))


def test_a_trial_learns_from_what_it_samples(local: dict[int, dict[str, float]]) -> None:
    assert list(local) == [0, 1, 2]
    # The reference is the policy at its start, and the first step is taken at a ratio of 1.
    assert local[1]["kl/response"] == pytest.approx(0, abs=8 * NEAR)
    assert local[1]["policy/grad_norm"] > 0
    assert local[2]["weights/version"] == 2
    assert local[2]["staleness/max"] == 0
    assert abs(local[2]["kl/response"]) > 8 * NEAR


def test_a_resumed_trial_is_the_one_that_ran_through(
    made: Made, local: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    config, store = _trial(made), LocalStore(tmp_path)
    plan = plan_trial(config)
    first = PPOTrial(config, LocalRuntime(config, plan), plan, store)
    told = iter(first)
    next(told), next(told)
    first.close()
    resumed = _local(config, store)
    assert list(resumed) == [1, 2]
    for name, value in local[2].items():
        assert resumed[2][name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


@pytest.mark.ray
@pytest.mark.parametrize(
    "values",
    [{}, {"sync__transport": "collective"}, {"sync__mode": "async", "sync__max_staleness": 1}],
    ids=["plain", "collective", "async"],
)
def test_a_trial_on_ray_is_the_one_of_one_process(
    made: Made, values: dict[str, Any], ray_address: str, tmp_path: Path
) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    from rlhf_core.runtime.ray_runtime import RayRuntime

    workers = (
        WorkerPlace("rollout", ("rollout",), 0, 1),
        WorkerPlace("others", ("learner", "critic", "reference", "reward"), 0, 2),
    )
    names = ("head", "rollout", "others")
    plan = PlacementPlan("split", "PACK", tuple(Bundle(n, 0.5, 0.0, 0.0) for n in names), workers)
    config = _trial(made, **values)
    local = _local(config, LocalStore(tmp_path / "local"))
    env = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    ray.init(address=ray_address, log_to_driver=False, logging_level="ERROR", runtime_env=env)
    try:
        group = placement_group(**group_request(plan))
        ray.get(group.ready(), timeout=60)
        trial = PPOTrial(config, RayRuntime(config, plan, group), plan, LocalStore(tmp_path))
        try:
            found = {m.iteration: repeatable(m.values) for m in trial}
        finally:
            trial.close()
            remove_placement_group(group)
    finally:
        ray.shutdown()
    for iteration, metrics in local.items():
        for name, value in metrics.items():
            assert found[iteration][name] == pytest.approx(value, rel=1e-2, abs=1e-3), name
