"""The size of a model, read from its folder without loading it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_models import Zoo
from transformers import AutoModelForCausalLM

from rlhf_core.models.size import parameters_of


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_parameters_are_those_of_the_stored_model(zoo: Zoo, family: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(zoo.policies[family])
    assert parameters_of(zoo.policies[family]) == sum(p.numel() for p in model.parameters())


def test_weights_in_pickles_are_counted_by_their_size(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1000, 50, dtype=torch.bfloat16)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "bfloat16"}))
    found = parameters_of(str(tmp_path))
    assert found == pytest.approx(50_000, rel=0.05)


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert parameters_of(str(tmp_path)) is None
    assert parameters_of("nobody/has-such-a-model") is None
