"""Rules for adapters, layers that are computed again, and sharding, under each target's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis.export.rules import Case, Rule, Told, Values, number, truth, whole
from rlhf_core.config.engines import ALL_LINEAR

RANK, ALPHA, DROPOUT, TARGETS = (
    f"model.lora.{name}" for name in ("rank", "alpha", "dropout", "targets")
)


def adapter_rules(
    models: tuple[str, ...], rank: str, alpha: str, targets: str, dropout: str | None = None
) -> list[Rule]:
    """Rules for ``model.lora``.

    Args:
        models: What stands before the names, for each model with adapters; the first is read back.
        rank, alpha, targets, dropout: Their names; without the last every input is used there.
    """

    def all_of(name: str, value: Any) -> dict[str, Any]:
        return {f"{model}{name}": value for model in models}

    def rule(key: str, name: str, default: Any, out: Callable[[Case], Told], read: Any) -> Rule:
        first = f"{models[0]}{name}"
        return Rule((key,), all_of(name, default), out, lambda t: {key: read(t[first])})

    def alpha_out(case: Case) -> Told:
        written = max(1, round(case[ALPHA]))
        told = Told(all_of(alpha, written))
        if written != case[ALPHA]:
            told.dropped[ALPHA] = f"whole; {written} is written"
        return told

    def targets_out(case: Case) -> Told:
        names = list(case[TARGETS]) if case[RANK] else [ALL_LINEAR]
        # Their default; written down it would be a list, in which it is the name of a layer.
        return Told(all_of(targets, None if names == [ALL_LINEAR] else names))

    rules = [
        rule(RANK, rank, 0, lambda case: Told(all_of(rank, case[RANK])), whole),
        rule(ALPHA, alpha, 16, alpha_out, number),
        rule(TARGETS, targets, ALL_LINEAR, targets_out, _names),
    ]
    if dropout is not None:
        name = dropout
        rules.append(rule(DROPOUT, name, 0, lambda case: Told(all_of(name, case[DROPOUT])), number))
    return rules


def _names(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (str(value),)


def recompute_rule(names: tuple[str, ...], default: bool) -> Rule:
    """Layers that are computed again in the backward pass, of every model that is trained."""
    key = "optim.gradient_checkpointing"
    return Rule(
        (key,),
        dict.fromkeys(names, default),
        lambda case: Told(dict.fromkeys(names, case[key])),
        lambda theirs: {key: truth(theirs[names[0]])},
    )


def zero_rule(stage: str, offload: str) -> Rule:
    """What is sharded, where DeepSpeed always trains."""
    engine, our_stage, our_offload = "optim.engine", "optim.zero_stage", "optim.offload"

    def out(case: Case) -> Told:
        if case[engine] == "torch":
            return Told(dropped={engine: "DeepSpeed always trains, with stage 2"})
        told = Told({stage: case[our_stage], offload: case[our_offload] != "none"})
        told.dropped[engine] = "DeepSpeed always trains there"
        if case[our_stage] == 0:
            told.dropped[our_stage] = "nothing is sharded there either; plain torch is read back"
        if case[our_offload] == "all":
            told.dropped[our_offload] = "weights stay on the GPU; the optimiser does not"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        sharded, host = whole(theirs[stage]), truth(theirs[offload])
        if sharded in (0, 2) and not host:
            # Plain torch computes the same, and needs nothing installed.
            return {}
        return {
            engine: "deepspeed",
            our_stage: sharded,
            our_offload: "optimizer" if host else "none",
        }

    return Rule((engine, our_stage, our_offload), {stage: 2, offload: False}, out, back)
