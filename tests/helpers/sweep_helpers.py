"""Rewards, programs and a space that sweeps and worker processes of the tests import by name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core import checkpoint
from rlhf_core.metrics import IterationMetrics
from rlhf_core.runtime.placement import Bundle, PlacementPlan
from search_spaces import Logit, Parameter, Space
from sweeps.programs.base import TrialContext, TrialProgram
from sweeps.programs.ppo import PPOProgram, RunningPPO, trial_config

SPACE = Space({"ppo.gamma": Parameter(Logit(0.9, 0.999))})


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


class UnheardProgram(PPOProgram):
    """PPO whose process ends once between the checkpoint of iteration 2 and its result."""

    def start(self, context: TrialContext) -> RunningPPO:
        return UnheardTrial(trial_config(context.base, context.params), context)


class UnheardTrial(RunningPPO):
    def __iter__(self) -> Iterator[IterationMetrics]:
        for metrics in self.trial:
            if metrics.iteration == 2 and not metrics.repeated:
                os._exit(1)
            yield metrics


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


class WarmGpuProgram(GpuScriptProgram):
    """The same, one trial after the other in a process; it tells which."""

    warm = True

    def start(self, context: TrialContext) -> WarmGpuTrial:
        return WarmGpuTrial(self.resolve(context.base, context.params))


class WarmGpuTrial(ScriptTrial):
    def restart(self, context: TrialContext) -> bool:
        self.config, self.step = {**self.config, **context.params}, 0
        return True

    def placement(self) -> dict[str, Any]:
        return {**super().placement(), "pid": os.getpid()}


class DiaryProgram(ScriptProgram):
    """The same with checkpoints: each trial notes its steps in ``diary``, a file, before they are reported."""

    warm = True

    def keys(self) -> tuple[str, ...]:
        return (*super().keys(), "diary", "pause")

    def start(self, context: TrialContext) -> DiaryTrial:
        return DiaryTrial(self.resolve(context.base, context.params), context)


class DiaryTrial(ScriptTrial):
    def __init__(self, config: dict[str, Any], context: TrialContext) -> None:
        super().__init__(config)
        self._begin(context)

    def _begin(self, context: TrialContext) -> None:
        self.trial, self.store = context.trial, context.store
        self.step = int(self.store.get("step")) if "step" in self.store.list() else 0
        self._began = self.step
        self._note(f"begin {self.step}")

    def restart(self, context: TrialContext) -> bool:
        self.config = {"x": 0.0, "steps": 3, **context.base, **context.params}
        self._begin(context)
        return True

    @property
    def recalled(self) -> IterationMetrics | None:
        return self._metrics() if self._began else None

    def _metrics(self) -> IterationMetrics:
        loss = (self.config["x"] - 3.0) ** 2 + 1.0 / self.step
        return IterationMetrics(self.step, {"script/loss": loss})

    def _note(self, what: str) -> None:
        with Path(self.config["diary"]).open("a") as file:
            file.write(f"{self.trial} {what}\n")

    def __iter__(self) -> Iterator[IterationMetrics]:
        while not self.is_last:
            time.sleep(self.config["pause"])
            self.step += 1
            self._note(f"step {self.step}")
            self.store.put("step", str(self.step).encode())
            yield self._metrics()


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


class SeededProgram(ScriptProgram):
    """The same with a seed, which shifts its loss."""

    def keys(self) -> tuple[str, ...]:
        return (*super().keys(), "seed")

    def resolve(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        return {"seed": 0, **super().resolve(base, params)}

    def iterations(self, base: Mapping[str, Any]) -> int:
        return int({"steps": 3, **base}["steps"])

    def start(self, context: TrialContext) -> ScriptTrial:
        config = self.resolve(context.base, context.params)
        return ScriptTrial({**config, "x": config["x"] + 0.01 * (config["seed"] % 10)})
