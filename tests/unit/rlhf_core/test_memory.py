"""The estimate of memory: exact where it can be, refused before launch where it does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import Zoo
from tiny_rollouts import trial_config
from transformers import AutoModelForCausalLM

from rlhf_core.config import TrialConfig
from rlhf_core.generation import folded, packed
from rlhf_core.memory import (
    CONTEXT_BYTES,
    FOLD_BELOW,
    PACK_BELOW,
    PROCESS_BYTES,
    Engine,
    RoleMemory,
    Shapes,
    WorkerMemory,
    memory_of,
    memory_problems,
    role_memory,
)
from rlhf_core.models.size import ModelShape, shape_of

BIG = ModelShape(7_000_000_000, 32, 4096, 14336, 4096, 1024, 128_000, False, True)
PLAIN = Engine()


def _shapes(shape: ModelShape = BIG) -> Shapes:
    return Shapes(shape, shape, None, ())


def _role(
    role: str,
    config: TrialConfig,
    engine: Engine = PLAIN,
    shape: ModelShape = BIG,
    on_gpu: bool = False,
) -> RoleMemory:
    return role_memory(role, config, _shapes(shape), engine, on_gpu)


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Qwen2"])
def test_a_shape_is_read_from_the_folder_alone(zoo: Zoo, family: str) -> None:
    shape = shape_of(zoo.policies[family])
    model = AutoModelForCausalLM.from_pretrained(zoo.policies[family])
    assert shape is not None
    saved = {name: p.numel() for name, p in model.named_parameters()}
    assert shape.parameters == sum(saved.values())
    embedding = model.get_input_embeddings().weight
    assert (shape.vocabulary, shape.width) == tuple(embedding.shape)
    assert shape.tied == (model.get_output_embeddings().weight is embedding)
    assert shape.layers == 2
    assert shape.lean == (family != "GPT2")


def test_a_folder_that_says_too_little_has_no_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 32}')
    assert shape_of(str(tmp_path)) is None


def test_the_copy_for_decoding_is_the_decoders_own(zoo: Zoo) -> None:
    assert (FOLD_BELOW, PACK_BELOW) == (folded.FOLD_BELOW, packed.PACK_BELOW)
    fused, split = trial_config(zoo), trial_config(zoo, resources__layout="split")
    small, middle = (replace(BIG, parameters=count) for count in (FOLD_BELOW - 1, PACK_BELOW - 1))
    none = _role("rollout", fused).cache
    for shape in (small, middle):
        copy = 4 * shape.parameters
        resting = _role("rollout", fused, shape=shape)
        # It goes before the process trains, and stays in a process that only samples.
        assert (resting.held, resting.cache) == (0, none + copy)
        staying = _role("rollout", split, shape=shape)
        assert (staying.held, staying.cache) == (copy, none)
        assert _role("learner", split, shape=shape).cache == none + copy
    assert _role("rollout", split, shape=middle, on_gpu=True).held == 0
    assert _role("rollout", split, shape=small, on_gpu=True).held > 0
    half = trial_config(zoo, resources__layout="split", model__dtype="bfloat16")
    assert _role("rollout", half, shape=middle).held == 0


def test_what_a_trained_role_keeps(zoo: Zoo) -> None:
    whole = trial_config(zoo)
    learner, critic = _role("learner", whole), _role("critic", whole)
    count, trunk = BIG.parameters, BIG.parameters - 128_000 * 4096
    assert (learner.weights, learner.gradients, learner.optimiser) == (
        4 * count,
        4 * count,
        8 * count,
    )
    assert (critic.weights, critic.gradients, critic.optimiser) == (4 * trunk, 4 * trunk, 8 * trunk)
    half = trial_config(zoo, model__dtype="bfloat16")
    learner = _role("learner", half, Engine.of(half))
    assert (learner.weights, learner.gradients, learner.optimiser) == (
        2 * count,
        4 * count,
        12 * count,
    )
    for role in ("rollout", "reference"):
        assert _role(role, whole).standing == 4 * count


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimiser"),
    [(0, 1, 1, 1), (1, 1, 1, 4), (2, 1, 4, 4), (3, 4, 4, 4)],
)
def test_a_zero_stage_divides_what_it_shards(
    zoo: Zoo, stage: int, weights: int, gradients: int, optimiser: int
) -> None:
    config = trial_config(
        zoo, resources__layout="split", resources__roles__learner__workers=4,
        rollout__prompts_per_iteration=64,
    )  # fmt: skip
    found, count = _role("learner", config, Engine(sharded=stage)), BIG.parameters
    assert found.weights == 4 * count // weights
    assert found.gradients == 4 * count // gradients
    assert found.optimiser == 8 * count // optimiser
    moved = _role("learner", config, Engine(sharded=stage, offload="optimizer"))
    assert moved.offloaded == found.optimiser


def test_adapters_train_little_and_share_their_base(zoo: Zoo) -> None:
    config = trial_config(zoo)
    engine = Engine(rank=8)
    found = {
        role: _role(role, config, engine) for role in ("learner", "critic", "reference", "rollout")
    }
    learner = found["learner"]
    # Per layer and rank: inputs and outputs of q, k, v, o, gate, up and down.
    adapters = 8 * 32 * (4 * 4096 + 2 * 5120 + 3 * 18432)
    assert learner.gradients == 4 * adapters
    assert learner.optimiser == 8 * adapters
    assert learner.weights == 4 * (BIG.parameters + adapters)
    assert all(part.shared >= 4 * BIG.trunk for part in found.values())


def test_less_is_kept_where_layers_are_computed_again_or_passes_are_smaller(zoo: Zoo) -> None:
    long = {"rollout__max_new_tokens": 512, "rollout__prompts_per_iteration": 32}
    config = trial_config(zoo, **long)
    whole = _role("critic", config).activations
    assert _role("critic", config, Engine(recompute=True)).activations < whole / 10
    for values in ({"optim__micro_batch_size": 4}, {"optim__micro_batch_tokens": 2400}):
        assert _role("critic", trial_config(zoo, **long, **values)).activations < whole / 4
    assert _role("critic", trial_config(zoo, **long, ppo__minibatches=4)).activations < whole / 2


def test_the_cache_follows_the_chunk(zoo: Zoo) -> None:
    caches = []
    for chunk in (4, 8):
        config = trial_config(zoo, rollout__chunk_size=chunk, rollout__max_new_tokens=436)
        caches.append(_role("rollout", config).cache)
    # 500 positions of 32 layers, keys and values of 1024 numbers; and four tensors over the vocabulary.
    assert caches[0] == 4 * 4 * (500 * 32 * 2 * 1024 + 4 * 128_000)
    assert caches[1] == 2 * caches[0]


def test_vllm_has_weights_of_its_own_and_a_cache_that_stays(zoo: Zoo) -> None:
    values = {"rollout__engine": "vllm", "rollout__max_new_tokens": 436, "rollout__chunk_size": 4}
    found = _role("rollout", trial_config(zoo, **values))
    copy = 4 * BIG.parameters
    # The copy that weights are delivered to lies in the host's memory also where vLLM's is on a GPU.
    assert (found.weights, found.offloaded) == (2 * copy, copy)
    # 4 rows of 8 blocks and one to spare, each 64 tokens: 32 layers of keys and values, 1024 numbers each.
    assert found.held == (4 * 8 + 1) * 64 * 32 * 2 * 1024 * 4
    assert found.standing == found.weights + found.held
    here = WorkerMemory("rollout", {"rollout": found}, False, None, None)
    there = WorkerMemory("rollout", {"rollout": found}, True, None, None)
    assert here.host == PROCESS_BYTES + found.process + 2 * copy + found.held
    assert there.gpu == CONTEXT_BYTES + copy + found.held


def test_a_process_holds_all_that_stays_and_what_comes_and_goes_of_each_role(zoo: Zoo) -> None:
    (worker,) = memory_of(trial_config(zoo), _shapes())
    parts = worker.roles.values()
    stays, passes = sum(p.standing for p in parts), [p.passing for p in parts]
    assert worker.host == PROCESS_BYTES + stays + sum(passes)
    assert worker.gpu == 0
    # A GPU's allocator has what one role gave back for the next one.
    there = replace(worker, on_gpu=True)
    assert there.gpu == CONTEXT_BYTES + stays + max(passes)


def test_on_a_gpu_the_host_holds_what_passes_through_and_what_is_offloaded(zoo: Zoo) -> None:
    config = trial_config(
        zoo, resources__layout="split", resources__gpu_memory_gb=80.0,
        resources__roles__rollout__gpus=0.5,
    )  # fmt: skip
    workers = {worker.name: worker for worker in memory_of(config, _shapes())}
    assert workers["learner"].gpu_limit == 80e9
    assert workers["rollout"].gpu_limit == 40e9
    assert workers["learner"].gpu > 16 * BIG.parameters
    assert workers["learner"].host == PROCESS_BYTES + 4 * BIG.parameters


def test_what_does_not_fit_is_refused_before_launch(zoo: Zoo) -> None:
    assert memory_problems(trial_config(zoo)) == []
    (line,) = memory_problems(trial_config(zoo, resources__roles__fused__memory_gb=0.25))
    assert line.startswith(
        "resources.roles.fused.memory_gb: a worker of fused needs about 0.5 GB of memory ("
    )
    assert "but is given 0.2; give it more, or lower optim.micro_batch_size" in line
    on_gpu: dict[str, Any] = {"resources__roles__fused__gpus": 1, "resources__gpu_memory_gb": 0.5}
    (line,) = memory_problems(trial_config(zoo, **on_gpu))
    assert line.startswith(
        "resources.gpu_memory_gb: a worker of fused needs about 0.6 GB of GPU memory"
    )
    assert memory_problems(trial_config(zoo, **{**on_gpu, "model__device": "cpu"})) == []


def test_what_is_not_on_this_machine_yet_is_not_judged(zoo: Zoo) -> None:
    small = {"resources__roles__fused__memory_gb": 0.25, "model__policy": "org/elsewhere"}
    config = trial_config(zoo, **small)
    assert Shapes.of(config) is None
    assert memory_problems(config) == []


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 8])
def test_a_real_process_needs_what_is_estimated(rank: int) -> None:
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "memory.py"
    done = subprocess.run(
        [sys.executable, script, "--quick", "--rank", str(rank)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ok"], found
    assert (found["model"], found["rank"]) == ("tiny", rank)
