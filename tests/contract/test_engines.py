"""Every training engine, on one and two processes, trains what plain torch trains on one, and keeps it.

One pair of processes runs all cases one after another, since a process takes seconds to start.
"""

from __future__ import annotations

import functools
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
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
Seen = tuple[dict[str, Found], Path]


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
# Engine, ranks, role and options beside, first those of the default run.
ALIKE: list[tuple[str, int, str, dict[str, Any]]] = [
    ("torch", 2, "learner", {}),
    ("zero1", 2, "learner", {}),
    ("zero2", 2, "learner", {}),
    ("zero3", 1, "learner", {}),
    ("zero3", 2, "learner", {}),
    ("zero0", 2, "critic", {}),
    ("zero3, all in host memory", 2, "critic", {}),
]
MORE: list[tuple[str, int, str, dict[str, Any]]] = [
    ("torch", 1, "learner", {}),
    ("zero0", 1, "learner", {}),
    ("zero1", 1, "learner", {}),
    ("zero2", 1, "learner", {}),
    ("zero3", 2, "critic", {}),
    ("zero2, optimiser in host memory", 2, "critic", {}),
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


def _resumed(*pairs: tuple[str, str, int]) -> list[Found]:
    """A checkpoint goes on with another engine and another number of ranks."""
    return [
        _case(engine, ranks, "learner", {}, resumed=f"learner, {before}", updates=2,
              name=f"{before} goes on with {engine}, {ranks}")
        for before, engine, ranks in pairs
    ]  # fmt: skip


LONG = pytest.mark.long
CASES = [_case(*case) for case in ALIKE]
CASES_LONG = [_case(*case) for case in MORE]
RESUMED = _resumed(("zero3, 2", "torch", 1), ("torch, 2", "zero3", 2))
RESUMED_LONG = _resumed(
    ("zero2, 1", "zero3", 2), ("torch, 1", "zero3", 1), ("zero1, 1", "zero2", 2)
)
BREAKS = [_case(e, 2, "critic", {}, breaks=True, name=f"{e} breaks") for e in ("torch", "zero3")]
ON = _case("torch", 1, "learner", {}, resumed="learner reference False", updates=2, name="on")


def _marked(cases: list[Found], late: list[Found]) -> Any:
    marked = [pytest.param(case, marks=LONG, id=case["name"]) for case in late]
    return pytest.mark.parametrize(
        "case", [*(pytest.param(case, id=case["name"]) for case in cases), *marked]
    )


@pytest.fixture(scope="module")
def found(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Found], Seen]:
    """What rank 0 found in the run that has a case, by the names of its cases, and the folder of exports."""

    @functools.cache
    def run(late: bool) -> Seen:
        folder = tmp_path_factory.mktemp("engines")
        references = [case for key, case in REFERENCES.items() if late or not key[1]]
        cases = [*CASES_LONG, *RESUMED_LONG, *BREAKS] if late else [*CASES, *RESUMED]
        return _on_two_processes([*references, *cases, ON], zoo, folder)

    return lambda case: run(case in [*CASES_LONG, *RESUMED_LONG, *BREAKS])


def _on_two_processes(cases: list[Found], zoo: Zoo, folder: Path) -> Seen:
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, "-W", "ignore", str(HELPER), str(folder), pickle.dumps(zoo).hex()]
    logs = [(folder / f"log{rank}").open("w+") for rank in (0, 1)]
    both = [
        subprocess.Popen([*command, str(rank)], stdout=log, stderr=log, env=dict(os.environ))
        for rank, log in enumerate(logs)
    ]
    try:
        codes = [process.wait(220) for process in both]
    finally:
        for process in both:
            process.kill()
    tails = [(folder / f"log{rank}").read_text()[-3000:] for rank in (0, 1)]
    assert codes == [0, 0], "\n".join(tails)
    first, second = (pickle.loads((folder / f"found{rank}.pkl").read_bytes()) for rank in (0, 1))
    return first | {f"{name}, rank 1": found for name, found in second.items()}, folder


def _reference(case: Found) -> str:
    return str(REFERENCES[case["role"], "model.lora.rank" in case["options"]]["name"])


def _moved(one: Found) -> torch.Tensor:
    """The change of all trained weights, flat."""
    names = [name for name in sorted(one["end"]) if name.startswith("model.")]
    return torch.cat([(one["end"][n] - one["start"][n]).double().flatten() for n in names])


@_marked(CASES, CASES_LONG)
def test_losses_and_steps_are_those_of_one_process(
    found: Callable[[Found], Seen], case: Found
) -> None:
    seen, _ = found(case)
    got, want = seen[case["name"]], seen[_reference(case)]
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


@_marked(RESUMED, RESUMED_LONG)
def test_a_checkpoint_goes_on_with_another_engine_and_number_of_ranks(
    found: Callable[[Found], Seen], case: Found
) -> None:
    seen, _ = found(case)
    got, before, want = (seen[n] for n in (case["name"], case["resumed"], ON["name"]))
    assert all(torch.equal(got["start"][n], tensor) for n, tensor in before["end"].items())
    step, expected = _moved(got), _moved(want)
    assert float((step - expected).norm()) < 2 * TOLERANCE * float(expected.norm())
    assert int(got["end"][next(n for n in got["end"] if n.endswith(".step"))]) == 14


def _learners(cases: list[Found]) -> list[Found]:
    return [case for case in cases if case["role"] == "learner"]


@_marked(_learners(CASES), _learners(CASES_LONG))
def test_what_leaves_an_engine_is_what_it_trained(
    found: Callable[[Found], Seen], case: Found
) -> None:
    seen, folder = found(case)
    got, want = seen[case["name"]], seen[_reference(case)]
    assert got["header"] == want["header"]
    sent = got["bytes"].view(torch.float32)
    names = [name for name, *_ in got["header"]["tensors"]]
    trained = torch.cat([got["end"][f"model.{name}"].flatten() for name in names])
    assert torch.equal(sent, trained)
    loaded, plain = (
        load_policy(str(folder / name), "float32", CPU) for name in (case["name"], _reference(case))
    )
    for (name, one), (_, other) in zip(
        loaded.named_parameters(), plain.named_parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5, msg=name)
    # Samples of the trained weights: the same tokens, unless a probability lies on a border.
    assert got["logprobs"].shape == want["logprobs"].shape
    torch.testing.assert_close(got["logprobs"], want["logprobs"], rtol=1e-2, atol=1e-3)


@_marked([case for case in CASES if case["name"].startswith("learner, zero3")], [])
def test_sharded_weights_are_gathered_tensor_by_tensor(
    found: Callable[[Found], Seen], case: Found
) -> None:
    seen, _ = found(case)
    got, want = seen[case["name"]], seen["learner reference False"]
    largest = max(math.prod(shape) for _, _, shape in want["header"]["tensors"])
    assert got["left_whole"] == 0
    assert 0 < got["whole_at_once"] <= largest < want["elements"] / 4


@_marked(
    [case for case in CASES if case["role"] == "critic"],
    [case for case in CASES_LONG if case["role"] == "critic"],
)
def test_values_are_those_of_one_process(found: Callable[[Found], Seen], case: Found) -> None:
    seen, _ = found(case)
    want, got = seen["critic reference False"]["values"], seen[case["name"]]["values"]
    assert float(want.abs().max()) > 0.05
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-4)


@_marked([], BREAKS)
def test_a_loss_that_is_not_finite_on_one_rank_is_named_there_and_ends_all(
    found: Callable[[Found], Seen], case: Found
) -> None:
    seen, _ = found(case)
    errors = {seen[case["name"]], seen[f"{case['name']}, rank 1"]}
    alike = case["options"].get("optim.engine") != "deepspeed"
    assert errors == ({"DivergedError"} if alike else {"DivergedError", "RankError"})
