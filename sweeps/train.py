"""One trial outside a sweep: the same program, driven by a loop instead of by Tune."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_core.assets import make_ready, problems
from rlhf_core.config import TrialConfig, apply, flatten, load_trial
from rlhf_core.config.fields import validate
from rlhf_core.config.resources import PRIVATE
from rlhf_core.errors import ConfigError, PlacementError
from rlhf_core.memory import memory_problems
from rlhf_core.metrics import IterationMetrics
from rlhf_core.paths import user_path
from rlhf_core.runtime.placement import group_request, plan_trial, shortfall
from rlhf_core.store import LocalStore
from sweeps.config import ClusterConfig, RehearseConfig
from sweeps.programs.base import TrialContext
from sweeps.programs.ppo import PPOProgram
from sweeps.record import strict_json


def train(
    config: TrialConfig,
    out: Path | None = None,
    *,
    resume: bool = False,
    save_model: Path | None = None,
) -> Iterator[IterationMetrics]:
    """Runs a trial; yields the metrics of each iteration.

    Layout ``fused`` runs in this process. Every other layout runs on a Ray of its own; where this
    machine has not the GPUs that the roles ask for, they are logical and the roles compute on the CPU.
    Roles that a sweep would share are the trial's own: the numbers are those of a service that does not merge.

    Args:
        config: The trial.
        out: Where ``config.json``, ``metrics.jsonl`` and checkpoints go; None keeps nothing.
        resume: Goes on from the latest checkpoint in ``out``.
        save_model: Where the trained policy goes with its tokenizer, as an ordinary Hugging Face folder.

    Raises:
        ConfigError: If something the trial reads is missing, or ``out`` holds another trial.
    """
    config = apply(config, PRIVATE)
    found = problems(config) or memory_problems(config)
    if found:
        raise ConfigError(found)
    if save_model is not None:
        save_model = user_path(save_model, "--save-model").absolute()
        _check_empty("--save-model", save_model, "name another folder")
    with contextlib.ExitStack() as stack:
        if out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlhf-train-")))
        else:
            folder = user_path(out, "--out").absolute()
            _check_folder(folder, resume, config)
        recorded = _last_recorded(folder)
        store = LocalStore(folder)
        store.put("config.json", strict_json(config.model_dump(mode="json")).encode())
        make_ready(config)
        group = stack.enter_context(_placement_group(config))
        base = config.model_dump()
        running = PPOProgram().start(TrialContext("train", base, {}, store, group))
        stack.callback(running.close)
        store.put("placement.json", strict_json(running.placement()).encode())
        recalled = running.recalled
        # It was saved before it was told, so it may never have been recorded.
        unheard = [recalled] if recalled is not None and recalled.iteration > recorded else []
        for metrics in itertools.chain(unheard, running):
            line = {"iteration": metrics.iteration, "timestamp": time.time(), **metrics.values}
            store.append("metrics.jsonl", strict_json(line))
            yield metrics
        if save_model is not None:
            running.save_model(save_model)


def _last_recorded(folder: Path) -> int:
    """The last iteration in ``metrics.jsonl``, in which lines may be torn; -1 where there is none."""
    file, last = folder / "metrics.jsonl", -1
    for line in file.read_text().splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError, KeyError):
            last = max(last, int(json.loads(line)["iteration"]))
    return last


# What a trial may be continued with: a longer budget, other checkpoints, other places.
MAY_CHANGE = ("budget.", "checkpoint.", "resources.")


def _check_resume(folder: Path, config: TrialConfig) -> None:
    """A folder of another trial is not continued; one without a checkpoint yet starts from the beginning."""
    file = folder / "config.json"
    if not file.is_file():
        raise ConfigError(f"--resume: {folder} holds no trial; leave --resume out")
    before, now = flatten(load_trial(file)), flatten(config)
    # Of both: one may name a reward that the other lacks.
    keys = [key for key in {**before, **now} if not key.startswith(MAY_CHANGE)]
    changed = [key for key in keys if before.get(key) != now.get(key)]
    if changed:
        raise ConfigError(
            f"--resume: {folder} holds a trial with another {', '.join(changed[:3])}; set what it was, or "
            "name another --out"
        )


def _check_folder(folder: Path, resume: bool, config: TrialConfig) -> None:
    if resume:
        _check_resume(folder, config)
    else:
        _check_empty("--out", folder, "name another folder, or add --resume to go on from there")


def _check_empty(option: str, folder: Path, remedy: str) -> None:
    above = next(place for place in folder.parents if place.exists())
    if not above.is_dir():
        raise ConfigError(f"{option}: {folder} would lie below {above}, a file; {remedy}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise ConfigError(f"{option}: {folder} {what}; {remedy}")


@contextlib.contextmanager
def _placement_group(config: TrialConfig) -> Iterator[Any]:
    """A ready placement group on a Ray of its own, or None for a trial in this process."""
    if config.resources.layout == "fused":
        yield None
        return
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    from sweeps.tuning import cluster

    plan = plan_trial(config)
    local = ClusterConfig(local=True)
    lack = shortfall(plan, cluster.expected_nodes(local) or [])
    if lack is not None:
        shape = {
            # Ray takes more than one CPU or GPU of a node in whole numbers only.
            "cpus": max(1, math.ceil(plan.total("cpus"))),
            "gpus": math.ceil(plan.total("gpus")),
            "memory_gb": max(1.0, plan.total("memory_gb")),
        }
        sums = "sums over the workers in resources"
        local = ClusterConfig(rehearse=validate(RehearseConfig, shape, sums))
    with cluster.running(local) as nodes:
        lack = shortfall(plan, nodes)
        if lack is not None:
            raise PlacementError(lack)
        group = placement_group(**group_request(plan))
        ray.get(group.ready())
        try:
            yield group
        finally:
            remove_placement_group(group)
