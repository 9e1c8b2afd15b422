"""One recorded case as tensors, and how a result is compared with it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DATA = Path(__file__).parent / "data"

Result = Mapping[str, Any]
"""Name of an output -> ours: a number, a tensor, or a tensor and the mask where it is compared."""


@dataclass(frozen=True)
class Case:
    """A recorded case."""

    id: str
    raw: dict[str, Any]

    @property
    def topic(self) -> str:
        return ".".join(self.id.split(".")[:2])

    @property
    def name(self) -> str:
        return self.id.split(".", 2)[2].rsplit(".", 1)[0]

    @property
    def params(self) -> dict[str, Any]:
        params: dict[str, Any] = self.raw["params"]
        return params

    @property
    def outputs(self) -> dict[str, Any]:
        outputs: dict[str, Any] = self.raw["outputs"]
        return outputs

    def f64(self, name: str, *, grad: bool = False) -> Tensor:
        """An input in float64, as a leaf that takes a gradient where asked."""
        return torch.tensor(self.raw["inputs"][name], dtype=torch.float64, requires_grad=grad)

    def ids(self, name: str) -> Tensor:
        """An input of integers."""
        return torch.tensor(self.raw["inputs"][name])

    def mask(self, name: str = "mask") -> Tensor:
        return torch.tensor(self.raw["inputs"][name]) != 0

    def has(self, name: str) -> bool:
        return name in self.raw["inputs"]


def load() -> dict[str, Case]:
    """All cases by id."""
    cases = {}
    for file in sorted(DATA.glob("*/*.json")):
        for raw in json.loads(file.read_text(encoding="utf-8"))["cases"]:
            assert raw["id"] not in cases
            cases[raw["id"]] = Case(raw["id"], raw)
    return cases


def differences(case: Case, result: Result, skipped: frozenset[str]) -> list[str]:
    """What of the case our result does not reproduce within the case's tolerance."""
    problems = []
    ours, theirs = flat(result), flat(case.outputs)
    float32 = set(case.raw.get("float32_outputs", ()))
    for name, expected in theirs.items():
        if name in skipped:
            continue
        if name not in ours:
            problems.append(f"{name}: not computed")
            continue
        rtol, atol = case.raw["rtol"], case.raw["atol"]
        if name.split(".")[0] in float32:
            rtol, atol = max(rtol, 1e-6), max(atol, 1e-6)
        found = _gap(ours[name], expected, rtol, atol)
        if found:
            problems.append(f"{name}: {found}")
    return problems


def flat(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs within outputs under dotted names; a list of micro-batches counts from 0."""
    out: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = {str(i): item for i, item in enumerate(value)}
        if isinstance(value, dict):
            out |= {f"{name}.{key}": item for key, item in flat(value).items()}
        else:
            out[name] = value
    return out


def _gap(ours: Any, theirs: Any, rtol: float, atol: float) -> str:
    ours, mask = ours if isinstance(ours, tuple) else (ours, None)
    ours = ours if isinstance(ours, Tensor) else torch.tensor(ours, dtype=torch.float64)
    ours = ours.detach().double()
    expected = torch.tensor(theirs, dtype=torch.float64)
    if ours.shape != expected.shape:
        return f"shape {list(ours.shape)}, recorded {list(expected.shape)}"
    if mask is not None:
        ours, expected = ours[mask], expected[mask]
    gap = (ours - expected).abs()
    wrong = ~(gap <= atol + rtol * expected.abs())
    if not bool(wrong.any()):
        return ""
    worst = float(gap[wrong].nan_to_num(math.inf).max())
    return f"{int(wrong.sum())} of {wrong.numel()} differ, by up to {worst:.3g}"
