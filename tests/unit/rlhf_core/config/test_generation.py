"""Options of generation engines: what excludes what, and when rollouts give up their memory."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.config import TrialConfig, apply
from rlhf_core.config.engines import keeps_models
from rlhf_core.config.generation import rests_between_batches
from rlhf_core.errors import ConfigError

VLLM = {"rollout.engine": "vllm"}
SPLIT, COLOCATED = {"resources.layout": "split"}, {"resources.layout": "colocated"}
PART = "rollout.vllm.gpu_memory_utilization"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({PART: 0.5}, f"{PART} 0.5 has no effect: it belongs to the engine vllm"),
        (
            {"rollout.vllm.enforce_eager": True},
            "rollout.vllm.enforce_eager True has no effect: it belongs to the engine vllm",
        ),
        ({**VLLM, PART: 0}, f"{PART} must be greater than 0"),
        ({**VLLM, PART: 1.5}, f"{PART} must be less than or equal to 1"),
        (
            {**VLLM, "optim.engine": "deepspeed"},
            "in resources.layout 'fused' they share a process; use layout 'colocated' or 'split'",
        ),
        (
            {**VLLM, **SPLIT, "resources.roles.rollout.gpus": 2},
            "resources.roles.rollout.gpus must be at most 1 with rollout.engine 'vllm'",
        ),
        (
            {**VLLM, "resources.roles.fused.gpus": 2},
            "resources.roles.fused.gpus must be at most 1 with rollout.engine 'vllm'",
        ),
        (
            {**VLLM, **SPLIT, PART: 0.6},
            f"{PART} must be at most the 0.5 of resources.roles.rollout.gpus",
        ),
        (
            {**VLLM, **COLOCATED, "resources.roles.rollout.share": 0.25, PART: 0.3},
            f"{PART} must be at most the 0.25 of resources.roles.rollout.share",
        ),
    ],
)
def test_impossible_combinations_are_one_line(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(TrialConfig(), values)
    assert len(caught.value.problems) == 1
    assert line in caught.value.problems[0]


@pytest.mark.parametrize(
    "values",
    [
        {"optim.engine": "deepspeed", **SPLIT},
        {"optim.engine": "deepspeed", **COLOCATED},
        {"model.lora.rank": 8},
        {"rollout.partial_tokens": 12},
        {"sync.transport": "collective"},
        {"rollout.top_p": 0.5, "rollout.top_k": 5},
        {PART: 0.5, **SPLIT},
    ],
)
def test_what_both_engines_can_do_is_allowed(values: dict[str, Any]) -> None:
    assert apply(TrialConfig(), {**VLLM, **values}).rollout.engine == "vllm"


@pytest.mark.parametrize(
    ("values", "rests"),
    [
        ({}, True),
        ({"resources.roles.fused.gpus": 0}, False),
        ({"sync.mode": "async"}, False),
        (SPLIT, False),
        (COLOCATED, True),
        ({**COLOCATED, "resources.roles.rollout.gpus": 0}, False),
        ({**COLOCATED, "resources.colocate": [{"roles": ["rollout"], "gpus": 1}]}, False),
    ],
)
def test_rollouts_rest_where_others_of_their_gpu_compute_meanwhile(
    values: dict[str, Any], rests: bool
) -> None:
    assert rests_between_batches(apply(TrialConfig(), {**VLLM, **values})) is rests


@pytest.mark.parametrize(
    ("values", "rests"),
    [({}, True), ({"sync.mode": "async"}, False), (SPLIT, False), (COLOCATED, False)],
)
def test_rollouts_of_the_native_engine_rest_where_their_process_trains_meanwhile(
    values: dict[str, Any], rests: bool
) -> None:
    assert rests_between_batches(apply(TrialConfig(), values)) is rests


def test_a_process_with_vllm_serves_no_other_trial() -> None:
    assert not keeps_models(apply(TrialConfig(), VLLM))
