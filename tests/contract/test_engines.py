"""Every training engine, on one and two processes, trains what plain torch trains on one, and keeps it.

One pair of processes runs all cases one after another, since a process takes seconds to start.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import CPU

from rlhf_core.metrics import repeatable
from rlhf_core.models.load import load_policy

TOLERANCE = 1e-3
HELPER = Path(__file__).parents[1] / "helpers" / "engine_ranks.py"
Found = dict[str, Any]


def _zero(stage: int, **more: Any) -> dict[str, Any]:
    return {"optim.engine": "deepspeed", "optim.zero_stage": stage, **more}


LORA = {"model.lora.rank": 4}
ENGINES: dict[str, dict[str, Any]] = {
    "torch": {},
    "zero0": _zero(0),
    "zero1": _zero(1),
    "zero2": _zero(2),
    "zero3": _zero(3),
    "zero2, optimiser in host memory": _zero(2, **{"optim.offload": "optimizer"}),
    "zero3, all in host memory": _zero(3, **{"optim.offload": "all"}),
}
PLAIN = ("torch", "zero1", "zero2", "zero3")
# (engine, ranks, role, options beside, what it is compared with)
ALIKE = [
    *((engine, ranks, "learner", {}) for engine in PLAIN for ranks in (1, 2)),
    ("zero0", 2, "critic", {}),
    ("zero3", 2, "critic", {}),
    ("zero2, optimiser in host memory", 2, "critic", {}),
    ("zero3, all in host memory", 2, "critic", {}),
    ("zero2", 2, "learner", LORA),
    ("zero3", 2, "learner", LORA),
    ("zero3", 2, "learner", {"optim.gradient_checkpointing": True}),
]


def _case(engine: str, ranks: int, role: str, beside: dict[str, Any], **more: Any) -> Found:
    options = {**ENGINES[engine], **beside}
    name = more.pop("name", None) or ", ".join([role, engine, str(ranks), *beside])
    return {"name": name, "ranks": ranks, "role": role, "options": options,
            "updates": 5, "how": {}, **more}  # fmt: skip


REFERENCES = {
    (role, lora): _case("torch", 1, role, LORA if lora else {}, name=f"{role} reference {lora}")
    for role, lora in (("learner", False), ("critic", False), ("learner", True))
}
CASES = [_case(*case) for case in ALIKE]
# A checkpoint goes on with another engine and another number of ranks.
RESUMED = [
    _case(engine, ranks, "learner", {}, resumed=f"learner, {before}", updates=2,
          name=f"{before} goes on with {engine}, {ranks}")
    for before, engine, ranks in (
        ("zero3, 2", "torch", 1), ("torch, 2", "zero3", 1), ("zero2, 1", "zero3", 2),
        ("zero3, 1", "zero1", 2), ("zero3, 2", "zero3", 2),
    )
]  # fmt: skip
ON = _case("torch", 1, "learner", {}, resumed="learner reference False", updates=2, name="on")


@pytest.fixture(scope="module")
def found(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Path]:
    """What rank 0 found in every case, by its name, and the folder of exports."""
    folder = tmp_path_factory.mktemp("engines")
    cases = [*REFERENCES.values(), *CASES, *RESUMED, ON]
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, str(HELPER), str(folder), pickle.dumps(zoo).hex()]
    logs = [(folder / f"log{rank}").open("w+") for rank in (0, 1)]
    both = [
        subprocess.Popen([*command, str(rank)], stdout=log, stderr=log, env=dict(os.environ))
        for rank, log in enumerate(logs)
    ]
    try:
        codes = [process.wait(200) for process in both]
    finally:
        for process in both:
            process.kill()
    tails = [(folder / f"log{rank}").read_text()[-3000:] for rank in (0, 1)]
    assert codes == [0, 0], "\n".join(tails)
    return pickle.loads((folder / "found0.pkl").read_bytes()), folder


def _reference(case: Found) -> str:
    return str(REFERENCES[case["role"], "model.lora.rank" in case["options"]]["name"])


def _moved(one: Found) -> torch.Tensor:
    """The change of all trained weights, flat."""
    names = [name for name in sorted(one["end"]) if name.startswith("model.")]
    return torch.cat([(one["end"][n] - one["start"][n]).double().flatten() for n in names])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_losses_and_steps_are_those_of_one_process(found: tuple[Found, Path], case: Found) -> None:
    got, want = found[0][case["name"]], found[0][_reference(case)]
    assert got["end"].keys() == want["end"].keys()
    for ours, theirs in zip(got["metrics"], want["metrics"], strict=True):
        for name, value in repeatable(theirs).items():
            assert ours[name] == pytest.approx(value, rel=TOLERANCE, abs=2e-5), name
    step, expected = _moved(got), _moved(want)
    error = float((step - expected).norm())
    assert error < TOLERANCE * float(expected.norm())
    # What is compared is no rounding: each weight could stand still within the tolerance otherwise.
    assert float(expected.norm()) > 100 * TOLERANCE
    for name, moment in want["end"].items():
        if name.startswith("optim."):
            torch.testing.assert_close(got["end"][name], moment, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("case", RESUMED, ids=lambda case: case["name"])
def test_a_checkpoint_goes_on_with_another_engine_and_number_of_ranks(
    found: tuple[Found, Path], case: Found
) -> None:
    got, before, want = (found[0][n] for n in (case["name"], case["resumed"], ON["name"]))
    assert all(torch.equal(got["start"][n], tensor) for n, tensor in before["end"].items())
    step, expected = _moved(got), _moved(want)
    assert float((step - expected).norm()) < 2 * TOLERANCE * float(expected.norm())
    assert int(got["end"][next(n for n in got["end"] if n.endswith(".step"))]) == 14


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["role"] == "learner"], ids=lambda case: case["name"]
)
def test_what_leaves_an_engine_is_what_it_trained(found: tuple[Found, Path], case: Found) -> None:
    got, want = found[0][case["name"]], found[0][_reference(case)]
    assert got["header"] == want["header"]
    sent = got["bytes"].view(torch.float32)
    names = [name for name, *_ in got["header"]["tensors"]]
    trained = torch.cat([got["end"][f"model.{name}"].flatten() for name in names])
    assert torch.equal(sent, trained)
    loaded, plain = (
        load_policy(str(found[1] / name), "float32", CPU)
        for name in (case["name"], _reference(case))
    )
    for (name, one), (_, other) in zip(
        loaded.named_parameters(), plain.named_parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5, msg=name)
    # Samples of the trained weights: the same tokens, unless a probability lies on a border.
    assert got["logprobs"].shape == want["logprobs"].shape
    torch.testing.assert_close(got["logprobs"], want["logprobs"], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("ranks", [1, 2])
def test_sharded_weights_are_gathered_tensor_by_tensor(
    found: tuple[Found, Path], ranks: int
) -> None:
    got, want = found[0][f"learner, zero3, {ranks}"], found[0]["learner reference False"]
    largest = max(math.prod(shape) for _, _, shape in want["header"]["tensors"])
    assert got["left_whole"] == 0
    assert 0 < got["whole_at_once"] <= largest < want["elements"] / 4


def test_values_of_sharded_critics_are_those_of_one_process(found: tuple[Found, Path]) -> None:
    want = found[0]["critic reference False"]["values"]
    assert float(want.abs().max()) > 0.05
    for case in CASES:
        if case["role"] == "critic":
            got = found[0][case["name"]]["values"]
            torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-4)
