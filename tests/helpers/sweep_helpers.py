"""Rewards and programs that worker processes of the tests import by name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core import checkpoint
from rlhf_core.metrics import IterationMetrics
from rlhf_core.runtime.placement import Bundle, PlacementPlan
from sweeps.programs.base import TrialContext, TrialProgram


def brevity(
    prompts: list[str], responses: list[str], metadata: list[Mapping[str, Any]]
) -> list[float]:
    """Short responses are good."""
    return [-float(len(response.split())) for response in responses]


def letters(
    prompts: list[str], responses: list[str], metadata: list[Mapping[str, Any]]
) -> list[float]:
    """Responses with many an e are good."""
    return [float(response.count("e")) for response in responses]


def broken(
    prompts: list[str], responses: list[str], metadata: list[Mapping[str, Any]]
) -> list[float]:
    """A bug in user code."""
    raise KeyError("no such rating")


def dies(
    prompts: list[str], responses: list[str], metadata: list[Mapping[str, Any]]
) -> list[float]:
    """Ends its process."""
    os._exit(1)


def dies_once(
    prompts: list[str], responses: list[str], metadata: list[Mapping[str, Any]]
) -> list[float]:
    """Ends its process at the sixth training batch, the first time; counts in the prompts' ``state`` folder."""
    if "state" in metadata[0]:
        counter, flag = (Path(metadata[0]["state"]) / name for name in ("calls", "died"))
        calls = int(counter.read_text()) + 1 if counter.exists() else 1
        counter.write_text(str(calls))
        if calls == 6 and not flag.exists():
            flag.touch()
            os._exit(1)
    return brevity(prompts, responses, metadata)


class ScriptProgram(TrialProgram):
    """A script of the user's own as a trial: it minimises a parabola and reports its loss."""

    def keys(self) -> tuple[str, ...]:
        return ("x", "steps")

    def check(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> list[str]:
        return [] if {**base, **params}.get("x", 0.0) < 100 else ["x must be below 100"]

    def resolve(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        return {"x": 0.0, "steps": 3, **base, **params}

    def placement(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> PlacementPlan:
        return PlacementPlan("fused", "PACK", (Bundle("script", 1.0, 0.0, 0.0),), ())

    def start(self, context: TrialContext) -> ScriptTrial:
        return ScriptTrial(self.resolve(context.base, context.params))


class GpuScriptProgram(ScriptProgram):
    """The same on ``gpus`` GPUs."""

    def keys(self) -> tuple[str, ...]:
        return (*super().keys(), "gpus")

    def placement(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> PlacementPlan:
        gpus = float({**base, **params}.get("gpus", 0))
        return PlacementPlan("fused", "PACK", (Bundle("script", 1.0, gpus, 0.0),), ())


class ScriptTrial:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.step = config, 0

    def __iter__(self) -> Iterator[IterationMetrics]:
        while not self.is_last:
            self.step += 1
            loss = (self.config["x"] - 3.0) ** 2 + 1.0 / self.step
            yield IterationMetrics(self.step, {"script/loss": loss, "script/time": time.time()})

    @property
    def is_last(self) -> bool:
        return bool(self.step >= self.config["steps"])

    def placement(self) -> dict[str, Any]:
        return {"layout": "fused", "bundles": [], "workers": []}

    def close(self) -> None:
        return None


class ForkingProgram(ScriptProgram):
    """A script whose trials can be paused and copied: a sum that grows by ``x`` in each of ``steps``."""

    mutable = ("x",)

    def iterations(self, base: Mapping[str, Any]) -> int | None:
        return int({"steps": 3, **base}["steps"])

    def start(self, context: TrialContext) -> ForkingTrial:
        return ForkingTrial(self.resolve(context.base, context.params), context)


class ForkingTrial(ScriptTrial):
    def __init__(self, config: dict[str, Any], context: TrialContext) -> None:
        super().__init__(config)
        self.store, self.score = context.store, 0.0
        latest = checkpoint.pointed(self.store, "latest")
        if latest is not None:
            self.step, self.score = latest, checkpoint.read_manifest(self.store, latest)["score"]

    def __iter__(self) -> Iterator[IterationMetrics]:
        while not self.is_last:
            self.step += 1
            self.score += self.config["x"]
            yield IterationMetrics(
                self.step, {"script/score": self.score, "script/x": self.config["x"]}
            )

    def save(self) -> None:
        checkpoint.commit(self.store, self.step, {"score": self.score})
        checkpoint.prune(self.store, 1)
