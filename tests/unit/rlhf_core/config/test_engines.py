"""Options of engines and adapters: what excludes what, in one line with its remedy; DeepSpeed's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.config import TrialConfig, apply
from rlhf_core.config.deepspeed import engine_json
from rlhf_core.config.engines import joint_methods, keeps_models
from rlhf_core.errors import ConfigError

ZERO = {"optim.engine": "deepspeed"}
LORA = {"model.lora.rank": 8}
HALF = {"model.dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"optim.zero_stage": 3},
            "optim.zero_stage 3 has no effect: it belongs to the engine deepspeed",
        ),
        ({"optim.offload": "all"}, "optim.offload 'all' has no effect: it belongs to the engine"),
        (
            {**ZERO, "optim.offload": "all"},
            "'all' needs optim.zero_stage 3, but it is 2; change either",
        ),
        (
            {**ZERO, "optim.zero_stage": 0, "optim.offload": "optimizer"},
            "'optimizer' needs optim.zero_stage 1 or more, but it is 0; change either",
        ),
        (
            {**ZERO, **HALF, "optim.zero_stage": 0},
            "optim.zero_stage must be 1, 2 or 3 with model.dtype 'bfloat16', but is 0",
        ),
        (
            {**ZERO, "optim.zero_stage": 3, "sync.transport": "collective"},
            "sync.transport 'collective' needs whole weights on the learner's first rank",
        ),
        ({**HALF, "optim.autocast": "bfloat16"}, "optim.autocast 'bfloat16' has no effect"),
        (
            {"model.lora.dropout": 0.1},
            "model.lora.dropout 0.1 has no effect: it belongs to adapters",
        ),
        ({**LORA, "model.lora.targets": ()}, "model.lora.targets must name a module, but is empty"),
        (
            {**LORA, "model.lora.targets": ("q_proj", "all-linear")},
            "'all-linear' stands alone, but is one of q_proj, all-linear",
        ),
        ({"optim.zero_stage": 4}, "optim.zero_stage must be 0, 1, 2 or 3, but is 4"),
        ({"model.lora.rank": 5000}, "model.lora.rank must be less than or equal to 4096"),
        ({**LORA, "model.lora.dropout": 1.0}, "model.lora.dropout must be less than 1"),
    ],
)
def test_impossible_combinations_are_one_line(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(TrialConfig(), values)
    (problem,) = caught.value.problems
    assert line in problem


@pytest.mark.parametrize(
    "values",
    [
        {**ZERO, **HALF, "optim.zero_stage": 1},
        {**ZERO, "optim.zero_stage": 3, "optim.offload": "all"},
        {**LORA, "model.lora.targets": ("q_proj", "mlp.up_proj"), "model.lora.alpha": 1.5},
        {**LORA, **HALF, **ZERO, "optim.gradient_checkpointing": True},
    ],
)
def test_possible_ones_are_taken(values: dict[str, Any]) -> None:
    apply(TrialConfig(), values)


def test_the_json_shards_what_was_asked_for() -> None:
    values = {**ZERO, **HALF, "optim.zero_stage": 3, "optim.offload": "all"}
    assert engine_json(apply(TrialConfig(), values), ranks=4, width=64) == {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
            "stage3_param_persistence_threshold": 640,
        },
        "bf16": {"enabled": True, "check_grad_overflow": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    }
    plain = engine_json(apply(TrialConfig(), {**ZERO, "optim.zero_stage": 1}), ranks=1, width=64)
    assert plain["zero_optimization"] == {"stage": 1}
    assert plain["bf16"] == {"enabled": False}
    assert "data_types" not in plain


def test_ranks_meet_where_no_rank_has_the_whole() -> None:
    def joint(role: str, **values: Any) -> set[str]:
        dotted = {f"optim.{key}": value for key, value in values.items()}
        return set(joint_methods(apply(TrialConfig(), dotted), role))

    assert joint("learner") == joint("learner", engine="deepspeed", zero_stage=0) == set()
    assert joint("learner", engine="deepspeed", zero_stage=2) == {"save"}
    assert joint("critic", engine="deepspeed", zero_stage=1) == {"save"}
    assert joint("rollout", engine="deepspeed", zero_stage=3) == set()
    whole = {"save", "generate", "publish", "export"}
    assert joint("learner", engine="deepspeed", zero_stage=3) == whole


def test_only_plain_torch_leaves_models_for_another_trial() -> None:
    assert keeps_models(TrialConfig())
    assert not keeps_models(apply(TrialConfig(), ZERO))
