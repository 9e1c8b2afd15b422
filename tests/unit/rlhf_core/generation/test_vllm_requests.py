"""What vLLM is asked for, how its answers become a batch, and what is said where it is missing; without vLLM."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tiny_models import POSITIONS, Zoo
from tiny_rollouts import CPU, role, trial_config

from rlhf_core.assets import make_ready, problems
from rlhf_core.config import TrialConfig, apply
from rlhf_core.errors import ConfigError
from rlhf_core.generation.blocks import engine_cache, held_cache, rows_at_once
from rlhf_core.generation.engine import NativeEngine, build_generation, home_of
from rlhf_core.generation.sampler import Sampling, sample
from rlhf_core.generation.vllm_requests import drawn, engine_options, request_options
from rlhf_core.models.load import load_policy
from rlhf_core.models.size import ModelShape, architectures_of, head_of

VLLM = {"rollout.engine": "vllm"}
SHAPE = ModelShape(10**6, 2, 64, 96, 64, 32, 100, tied=True, lean=True)
SAMPLING = Sampling(7, 0.8, stop_ids=(1, 5), pad_id=0, top_p=0.9, top_k=4)


def _config(**values: Any) -> TrialConfig:
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    return apply(TrialConfig(), {**VLLM, **dotted})


def _options(config: TrialConfig, *, on_gpu: bool = False, limit: int | None = None) -> Any:
    return engine_options(config, SHAPE, limit, on_gpu=on_gpu, sleeps=on_gpu)


def test_every_row_has_a_seed_of_its_own_that_its_place_gives() -> None:
    some, more = request_options(SAMPLING, 3, 4), request_options(SAMPLING, 3, 6)
    assert more[:4] == some
    assert len({one["seed"] for one in more}) == 6
    assert {one["seed"] for one in request_options(SAMPLING, 4, 6)}.isdisjoint(
        one["seed"] for one in more
    )


def test_a_request_says_how_to_sample() -> None:
    (one,) = request_options(SAMPLING, 3, 1)
    # The temperature is in the logits before vLLM's sampler sees them.
    assert (one["temperature"], one["top_p"], one["top_k"]) == (1.0, 0.9, 4)
    assert (one["stop_token_ids"], one["ignore_eos"], one["max_tokens"]) == ([1, 5], True, 7)


def test_answers_become_what_the_sampler_returns(zoo: Zoo) -> None:
    model = load_policy(zoo.policies["Llama"], "float32", CPU)
    wanted = sample(model, [[10, 7, 9], [4]] * 4, Sampling(8, 1.0, (1,), pad_id=0), seed=5)
    tokens_BT, logprobs_BT, mask_BT = wanted
    assert int((~mask_BT).sum()) > 0
    rows = [
        (tokens_BT[row][mask_BT[row]].tolist(), logprobs_BT[row][mask_BT[row]].tolist())
        for row in range(len(tokens_BT))
    ]
    for got, want in zip(drawn(rows, pad_id=0), wanted, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


def test_the_cache_holds_the_largest_chunk() -> None:
    config = _config(data__max_prompt_tokens=64, rollout__max_new_tokens=24, rollout__chunk_size=8)
    # 88 tokens are two blocks of 64, and one block is to spare; keys and values of two layers.
    assert engine_cache(config, SHAPE) == (8 * 2 + 1) * 64 * 2 * 2 * 32 * 4
    half = apply(config, {"model.dtype": "bfloat16"})
    assert engine_cache(half, SHAPE) == engine_cache(config, SHAPE) // 2
    assert _options(config)["kv_cache_memory_bytes"] == engine_cache(config, SHAPE)
    assert _options(config)["max_model_len"] == 88


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ({}, 64),
        ({"rollout__chunk_size": 8}, 8),
        ({"rollout__samples_per_prompt": 4}, 256),
        ({"rollout__chunk_size": 500}, 64),
        ({"rollout__chunk_size": 500, "rollout__partial_tokens": 12}, 128),
    ],
)
def test_rows_are_those_of_the_largest_chunk(values: dict[str, Any], rows: int) -> None:
    assert rows_at_once(_config(**values)) == rows
    assert _options(_config(**values))["max_num_seqs"] == rows


def test_a_part_of_the_gpu_takes_the_place_of_the_cache_that_is_needed() -> None:
    config = _config(rollout__vllm__gpu_memory_utilization=0.5, resources__gpu_memory_gb=10)
    options = _options(config, on_gpu=True)
    assert options["gpu_memory_utilization"] == 0.5
    assert "kv_cache_memory_bytes" not in options
    assert held_cache(config, SHAPE, weights=10**9) == 4 * 10**9
    unknown = apply(config, {"resources.gpu_memory_gb": None})
    assert held_cache(unknown, SHAPE, weights=10**9) == engine_cache(unknown, SHAPE)


def test_layers_are_compiled_on_gpus_unless_it_is_said() -> None:
    assert _options(_config())["enforce_eager"] is True
    assert _options(_config(), on_gpu=True)["enforce_eager"] is False
    assert _options(_config(rollout__vllm__enforce_eager=False))["enforce_eager"] is False


def test_a_sequence_ends_with_the_positions_of_the_policy() -> None:
    assert _options(_config(), limit=POSITIONS)["max_model_len"] == 64 + 24
    assert _options(_config(), limit=40)["max_model_len"] == 40


def test_a_folder_says_what_vllm_is_asked_about(zoo: Zoo) -> None:
    told = {family: (architectures_of(p), head_of(p)) for family, p in zoo.policies.items()}
    assert told == {
        "Llama": (("LlamaForCausalLM",), 8),
        "GPT2": (("GPT2LMHeadModel",), 8),
        "Qwen2": (("Qwen2ForCausalLM",), 8),
    }
    assert architectures_of("no/such-model") == ()


def test_native_samples_from_the_model_its_owner_changes(zoo: Zoo) -> None:
    config = trial_config(zoo)
    device = torch.device("cuda")
    assert home_of(config, device) == device
    assert home_of(apply(config, VLLM), device) == CPU
    model = load_policy(zoo.policies["Llama"], "float32", CPU)
    engine = build_generation(config, zoo.policies["Llama"], model, CPU)
    assert isinstance(engine, NativeEngine)
    assert engine.model is model


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_one_line_says_how_to_get_it(zoo: Zoo) -> None:
    config = trial_config(zoo, rollout__engine="vllm")
    line = (
        "rollout.engine: 'vllm' is not installed; install it with pip install 'rlhf-sweeps[vllm]', "
        "or use 'native'"
    )
    assert problems(config) == [line]
    with pytest.raises(ConfigError) as caught:
        role("rollout", config)
    assert caught.value.problems == (line,)
    with pytest.raises(ConfigError, match="No module named 'vllm'"):
        make_ready(config)
