"""Export to DeepSpeed: the JSON of one of the two optimisers. It is not read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.export.places import ranks
from analysis.export.rules import Case, Rule, Table, Told, drop, fixed, gpu_count
from analysis.export.shared import micro_batch
from rlhf_core.config.deepspeed import sharding
from rlhf_core.config.trial import OptimConfig

VERSIONS = ("0.19.8",)
NOWHERE = "DeepSpeed only trains; this belongs to the program around it"


def policy_table(version: str) -> Table:
    """The rules for the policy's optimiser."""
    return _table("policy")


def critic_table(version: str) -> Table:
    """The rules for the critic's optimiser."""
    return _table("critic")


def _table(role: str) -> Table:
    """The rules for the optimiser of ``role``, policy or critic."""
    other = "critic" if role == "policy" else "policy"
    return (
        _rule(("ppo.minibatches", "optim.micro_batch_size"), lambda case: _batches(case, role)),
        _rule(
            _keys(role, "lr", "beta1", "beta2", "eps", "weight_decay"), lambda c: _adamw(c, role)
        ),
        _rule(_keys(role, "max_grad_norm"), lambda case: _clip(case, role)),
        _rule(_keys(role, *SCHEDULE), lambda case: _schedule(case, role)),
        _rule(("model.dtype", "optim.engine", "optim.zero_stage", "optim.offload"), _sharding),
        fixed("optim.micro_batch_tokens", None, "passes are counted in responses"),
        _rule(
            _other(other),
            lambda _: Told(dropped=drop(_other(other), f"another file; --role {other}")),
        ),
    )


SCHEDULE = ("schedule", "warmup_iterations", "horizon_iterations", "min_lr_ratio")


def _rule(keys: tuple[str, ...], out: Any) -> Rule:
    return Rule(keys, {}, out, lambda _: {})


def _keys(role: str, *names: str) -> tuple[str, ...]:
    return tuple(f"optim.{role}.{name}" for name in names)


def _other(role: str) -> tuple[str, ...]:
    names = ("lr", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm", *SCHEDULE)
    return _keys(role, *names)


def _batches(case: Case, role: str) -> Told:
    gpus = ranks(case, "learner" if role == "policy" else "critic")
    size, told = micro_batch(case, gpus, "counts, since passes are counted in responses")
    told.theirs = {
        "train_batch_size": case.responses,
        "train_micro_batch_size_per_gpu": size,
        "gradient_accumulation_steps": max(1, case.responses // (size * gpus)),
    }
    told.notes["ppo.minibatches"] = f"{case.responses} responses in a step, on {gpu_count(gpus)}"
    return told


def _adamw(case: Case, role: str) -> Told:
    lr, beta1, beta2, eps, decay = (
        case[key] for key in _keys(role, "lr", "beta1", "beta2", "eps", "weight_decay")
    )
    prefix = "optimizer.params."
    return Told(
        {
            "optimizer.type": "AdamW",
            f"{prefix}lr": lr,
            f"{prefix}betas": [beta1, beta2],
            f"{prefix}eps": eps,
            f"{prefix}weight_decay": decay,
        }
    )


def _clip(case: Case, role: str) -> Told:
    (key,) = _keys(role, "max_grad_norm")
    return Told({"gradient_clipping": case[key] or 0.0}, {} if case[key] else {key: "0 is off"})


def _schedule(case: Case, role: str) -> Told:
    """Iterations become optimiser steps; DeepSpeed counts a warm-up from 2 steps on."""
    keys = _keys(role, *SCHEDULE)
    kind, warmup, horizon, floor = (case[key] for key in keys)
    each = case["ppo.epochs"] * case["ppo.minibatches"]
    told = Told(notes={keys[1]: f"{warmup * each} optimiser steps, {each} an iteration"})
    name = {"constant": "WarmupLR", "linear": "WarmupDecayLR", "cosine": "WarmupCosineLR"}[kind]
    told.notes[keys[0]] = f"called {name}"
    if kind == "constant":
        told.dropped = drop(keys[2:], "has no effect with schedule constant")
        if not warmup:
            told.notes = {keys[0]: "no scheduler"}
            return told
    params: dict[str, Any] = {"warmup_num_steps": max(2, warmup * each)}
    if kind == "cosine":
        params |= {"warmup_min_ratio": 0.0, "cos_min_ratio": floor}
    else:
        lr = case[f"optim.{role}.lr"]
        params |= {"warmup_min_lr": 0.0, "warmup_max_lr": lr, "warmup_type": "linear"}
    if kind != "constant":
        params["total_num_steps"] = horizon * each
        told.notes[keys[2]] = f"{horizon * each} optimiser steps"
    if kind == "linear" and floor:
        told.dropped[keys[3]] = "a linear schedule ends at 0"
    told.theirs = {"scheduler.type": name}
    told.theirs |= {f"scheduler.params.{key}": value for key, value in params.items()}
    return told


def _sharding(case: Case) -> Told:
    half = case["model.dtype"] == "bfloat16"
    note = "bfloat16 is a section of its own" if half else "bf16 is off"
    used = case["optim.engine"] == "deepspeed"
    optim = case.config.optim if used else OptimConfig()
    told = Told(dict(_dotted(sharding(optim, half=half))), {"model.dtype": note})
    if not used:
        told.dropped["optim.engine"] = f"DeepSpeed trains, with stage {optim.zero_stage}"
    return told


def _dotted(sections: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in sections.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
