"""Export to and import from OpenRLHF: optimisers, batches, length of the run, processes and GPUs."""

from __future__ import annotations

from functools import partial
from typing import Any

from analysis.export.openrlhf_places import QUEUE, asynchronous
from analysis.export.places import ranks
from analysis.export.rules import (
    Case,
    Rule,
    Told,
    Unreadable,
    Values,
    fixed,
    lookup,
    number,
    pair,
    same,
    truth,
    whole,
)
from analysis.export.shared import (
    BESIDE_TOKENS,
    every_iteration,
    micro_batch,
    minibatches,
    needs_critic,
    schedule_back,
    schedule_dropped,
    schedule_keys,
    steps,
)

ALL_PROMPTS = 1e8


def optimiser_rules(*, shared: bool) -> list[Rule]:
    """Rules of both optimisers; with ``shared`` the versions whose flags name both at once."""
    rules = [_lr("policy", "actor"), needs_critic(_lr("critic", "critic"))]
    for make in (_betas, _decay, _max_norm, partial(_schedule, floor=not shared)):
        mine = make("policy", "actor")
        rules.append(mine)
        other = make("critic", "actor" if shared else "critic")
        rules.append(needs_critic(_as_policy(other, mine) if shared else other))
    if shared:
        instead = "AdamW's epsilon is 1e-8"
        return [
            *rules,
            *(fixed(f"optim.{role}.eps", 1e-8, instead) for role in ("policy", "critic")),
        ]
    eps = [same(f"optim.{ours}.eps", f"{theirs}.adam.eps", 1e-8, number) for ours, theirs in
           (("policy", "actor"), ("critic", "critic"))]  # fmt: skip
    return [*rules, eps[0], needs_critic(eps[1])]


def _as_policy(rule: Rule, mine: Rule) -> Rule:
    """A rule of the critic where one flag serves both: what differs from the policy's is dropped."""

    def out(case: Case) -> Told:
        told = rule.out(case)
        told.theirs, lost = {}, mine.out(case).dropped
        for ours, of_policy in zip(rule.keys, mine.keys, strict=True):
            if case[ours] != case[of_policy]:
                told.dropped[ours] = f"one flag serves both optimisers; {of_policy} is used"
            elif of_policy in lost:
                told.dropped[ours] = lost[of_policy]
        return told

    return Rule(rule.keys, rule.theirs, out, rule.back)


def _lr(ours: str, theirs: str) -> Rule:
    default = 1e-6 if theirs == "actor" else 9e-6
    return same(f"optim.{ours}.lr", f"{theirs}.adam.lr", default, number)


def _betas(ours: str, theirs: str) -> Rule:
    keys, name = (f"optim.{ours}.beta1", f"optim.{ours}.beta2"), f"{theirs}.adam.betas"
    return Rule(
        keys,
        {name: [0.9, 0.95]},
        lambda case: Told({name: [case[key] for key in keys]}),
        lambda t: dict(zip(keys, pair(t[name]), strict=True)),
    )


def _decay(ours: str, theirs: str) -> Rule:
    return same(f"optim.{ours}.weight_decay", f"{theirs}.adam.weight_decay", 0.0, number)


def _max_norm(ours: str, theirs: str) -> Rule:
    key, name = f"optim.{ours}.max_grad_norm", f"{theirs}.max_norm"

    def out(case: Case) -> Told:
        return Told({name: case[key] or 0}, {} if case[key] else {key: "0 is off"})

    return Rule((key,), {name: 1.0}, out, lambda t: {key: number(t[name]) or None})


USUAL_FLOOR = 0.1
FLOORED = "cosine_with_min_lr"


def _schedule(ours: str, theirs: str, *, floor: bool) -> Rule:
    kind_name, warmup_name = f"{theirs}.lr_scheduler", f"{theirs}.lr_warmup_ratio"
    floor_name = f"{theirs}.min_lr_ratio"
    names = {kind_name: FLOORED, warmup_name: 0.03, **LENGTH}
    if floor:
        names[floor_name] = USUAL_FLOOR
    ours_of = {
        "constant": "constant",
        "constant_with_warmup": "constant",
        "linear": "linear",
        "cosine": "cosine",
        FLOORED: "cosine",
    }
    keys = schedule_keys(ours)

    def out(case: Case) -> Told:
        kind, warmup, _, lowest = (case[key] for key in keys)
        there = {"constant": "constant_with_warmup" if warmup else "constant", "linear": "linear"}
        told = Told({kind_name: there.get(kind, FLOORED)})
        told.theirs[warmup_name] = warmup / case["budget.iterations"]
        if kind == "cosine" and floor:
            told.theirs[floor_name] = lowest
        if told.theirs[kind_name] != kind:
            told.notes[keys[0]] = f"called {told.theirs[kind_name]}"
        if warmup:
            told.notes[keys[1]] = f"{warmup} of {case['budget.iterations']} iterations as a share"
        told.dropped = schedule_dropped(case, ours)
        if kind == "cosine" and not floor and lowest != USUAL_FLOOR:
            told.dropped[keys[3]] = f"{USUAL_FLOOR:g} is used"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        name = theirs[kind_name]
        kind = lookup(ours_of, "", name)
        length = run_length(theirs)
        ratio = number(theirs[warmup_name])
        if ratio and length is None:
            raise Unreadable(
                "a warm-up share needs the length of the run, which the file does not state"
            )
        warmup = 0 if name == "constant" else round(ratio * (length or 0))
        lowest = number(theirs.get(floor_name, USUAL_FLOOR)) if name == FLOORED else 0.0
        return schedule_back(ours, kind, warmup, length, lowest)

    return Rule(keys, names, out, back)


LENGTH = {"data.max_samples": int(ALL_PROMPTS), "train.num_episodes": 1, "rollout.batch_size": 1024}


def run_length(theirs: Values) -> int | None:
    """Iterations of a run, or None where only its data tells."""
    samples, passes, batch = (number(theirs[name]) for name in LENGTH)
    return None if samples >= ALL_PROMPTS else int(samples // batch * passes)


def run_rules(micro: tuple[int, int]) -> list[Rule]:
    """Length, epochs, batches, checkpoints, seed, delivery of weights; ``micro`` are their default sizes."""

    return [
        Rule(("budget.iterations",), LENGTH, _budget_out, _budget_back),
        same("ppo.epochs", "train.max_epochs", 1, whole),
        _batches(*micro),
        Rule(
            ("checkpoint.every_iterations", "checkpoint.keep"),
            {"ckpt.save_steps": -1, "ckpt.max_num": 3},
            _save_out,
            _save_back,
        ),
        same("seed", "train.seed", 42, whole),
        every_iteration(),
        _mode(),
    ]


def _save_back(theirs: Values) -> dict[str, Any]:
    return {
        "checkpoint.every_iterations": steps(theirs["ckpt.save_steps"]),
        "checkpoint.keep": whole(theirs["ckpt.max_num"]),
    }


def _save_out(case: Case) -> Told:
    every, keep = case["checkpoint.every_iterations"], case["checkpoint.keep"]
    told = Told({"ckpt.save_steps": every or -1, "ckpt.max_num": max(keep, 1)})
    if every is None:
        told.notes["checkpoint.every_iterations"] = "-1 is only at the end"
    if keep == 0:
        told.dropped["checkpoint.keep"] = "1 is written; at least one is kept"
    return told


def _budget_back(theirs: Values) -> dict[str, Any]:
    length = run_length(theirs)
    if not length:
        raise Unreadable("the length of the run follows from the data; set budget.iterations")
    return {"budget.iterations": length}


def _budget_out(case: Case) -> Told:
    prompts = case["budget.iterations"] * case["rollout.prompts_per_iteration"]
    note = f"{prompts} prompts in one pass, which the file must hold"
    return Told({"data.max_samples": prompts, "train.num_episodes": 1}, {"budget.iterations": note})


def _batches(train: int, rollout: int) -> Rule:
    names = {
        "train.batch_size": 128,
        "train.micro_batch_size": train,
        "rollout.micro_batch_size": rollout,
        "train.dynamic_batch_enable": False,
        "train.max_tokens_per_gpu": 16192,
        "ds.packing_samples": False,
    }
    keys = ("ppo.minibatches", "optim.micro_batch_size", "optim.micro_batch_tokens")

    def out(case: Case) -> Told:
        size, told = micro_batch(case, ranks(case, "learner"), BESIDE_TOKENS)
        tokens = case[keys[2]]
        told.theirs = {
            "train.batch_size": case.responses,
            "train.micro_batch_size": size,
            "rollout.micro_batch_size": size,
        }
        told.notes[keys[0]] = f"{case.responses} responses in each optimiser step"
        if tokens:
            told.theirs |= {
                "train.dynamic_batch_enable": True,
                "train.max_tokens_per_gpu": tokens,
                "ds.packing_samples": True,
            }
            told.notes[keys[2]] = "dynamic batches, which need packed samples and flash attention"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        batch = whole(theirs["rollout.batch_size"]) * whole(theirs["rollout.n_samples_per_prompt"])
        dynamic = truth(theirs["train.dynamic_batch_enable"])
        return {
            **minibatches(whole(theirs["train.batch_size"]), batch),
            keys[1]: whole(theirs["train.micro_batch_size"]),
            keys[2]: whole(theirs["train.max_tokens_per_gpu"]) if dynamic else None,
        }

    return Rule(
        keys,
        {**names, "rollout.batch_size": 1024, "rollout.n_samples_per_prompt": 1},
        out,
        back,
    )


def _mode() -> Rule:
    """Sampling ahead: their queue holds the batches that are made while the actor trains."""
    mode, bound = "sync.mode", "sync.max_staleness"

    def out(case: Case) -> Told:
        if case[mode] == "sync":
            return Told({"train.async_enable": False})
        if not asynchronous(case):
            lost = "engines that share GPUs with the actor sample in turns with it"
            return Told({"train.async_enable": False}, dropped={mode: lost, bound: lost})
        ahead = case.config.batches_ahead
        told = Told({"train.async_enable": True, "train.async_queue_size": ahead})
        told.notes[bound] = f"a queue of {ahead} {'batch' if ahead == 1 else 'batches'}"
        if case.config.sync_interval != 1:
            told.dropped[bound] = f"{ahead} as weights are delivered in every iteration"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        if not truth(theirs["train.async_enable"]):
            return {mode: "sync", bound: None}
        ahead = whole(theirs["train.async_queue_size"])
        return {mode: "async", bound: None if ahead == 1 else ahead}

    return Rule((mode, bound), QUEUE, out, back)
