"""Export to and import from TRL: optimiser, batches, length of the run, processes."""

from __future__ import annotations

from typing import Any

from analysis.export.places import KEYS, one_place, one_place_back, ranks, together
from analysis.export.rules import (
    Case,
    Rule,
    Told,
    Unreadable,
    Values,
    divisor,
    drop,
    fixed,
    lookup,
    number,
    same,
    whole,
)
from analysis.export.shared import (
    every_iteration,
    in_turns,
    minibatches,
    rank_responses,
    schedule_back,
    schedule_dropped,
    schedule_keys,
)


def run_rules() -> list[Rule]:
    """Everything but models, sampling and the algorithm."""
    return [
        *_optimiser_rules(),
        _batches(),
        Rule(("budget.iterations",), {"total_episodes": None, **BATCH}, _budget, _budget_back),
        every_iteration(),
        in_turns("the policy that learns samples"),
        same("seed", "seed", 42, whole),
        _checkpoints(),
        _resources(),
        _constants(),
    ]


def _optimiser_rules() -> list[Rule]:
    plain = {
        "lr": ("learning_rate", 3e-6),
        "beta1": ("adam_beta1", 0.9),
        "beta2": ("adam_beta2", 0.999),
        "eps": ("adam_epsilon", 1e-8),
        "weight_decay": ("weight_decay", 0.0),
    }
    rules = [same(f"optim.policy.{ours}", *there, number) for ours, there in plain.items()]
    rules += [
        _as_policy(f"optim.critic.{ours}", f"optim.policy.{ours}", *there)
        for ours, there in plain.items()
    ]
    never = "gradients are not clipped, whatever max_grad_norm says"
    rules += [fixed(f"optim.{role}.max_grad_norm", None, never) for role in ("policy", "critic")]
    return [*rules, _schedule(), *_critic_schedule()]


def _as_policy(key: str, of_policy: str, name: str, default: Any) -> Rule:
    def out(case: Case) -> Told:
        if case[key] == case[of_policy]:
            return Told()
        return Told(dropped={key: f"one optimiser serves both; {of_policy} is used"})

    return Rule((key,), {name: default}, out, lambda t: {key: number(t[name])})


SCHEDULE = {"lr_scheduler_type": "linear", "warmup_steps": 0, "lr_scheduler_kwargs": None}
BATCH = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "PROCESSES": 1}


def _schedule() -> Rule:
    keys = schedule_keys("policy")
    kind_name, warmup_name, extra_name = SCHEDULE

    def out(case: Case) -> Told:
        kind, warmup, _, floor = (case[key] for key in keys)
        names = {"constant": "constant_with_warmup" if warmup else "constant", "linear": "linear"}
        told = Told({kind_name: names.get(kind, "cosine"), warmup_name: warmup})
        if kind == "cosine" and floor:
            told.theirs |= {kind_name: "cosine_with_min_lr", extra_name: {"min_lr_rate": floor}}
            told.notes[keys[3]] = "an argument of the schedule"
        if told.theirs[kind_name] != kind:
            told.notes[keys[0]] = f"called {told.theirs[kind_name]}"
        told.dropped = schedule_dropped(case, "policy")
        return told

    def back(theirs: Values) -> dict[str, Any]:
        return _schedule_back("policy", theirs)

    return Rule(keys, {**SCHEDULE, "total_episodes": None, **BATCH}, out, back)


def _schedule_back(role: str, theirs: Values) -> dict[str, Any]:
    name = theirs["lr_scheduler_type"]
    names = {
        "constant": "constant",
        "constant_with_warmup": "constant",
        "linear": "linear",
        "cosine": "cosine",
        "cosine_with_min_lr": "cosine",
    }
    kind = lookup(names, "", name)
    extra = theirs["lr_scheduler_kwargs"] or {}
    floor = number(extra.get("min_lr_rate", 0.0)) if name == "cosine_with_min_lr" else 0.0
    warmup = 0 if name == "constant" else whole(theirs["warmup_steps"])
    return schedule_back(role, kind, warmup, _length(theirs), floor)


def _critic_schedule() -> list[Rule]:
    keys = schedule_keys("critic")

    def out(case: Case) -> Told:
        told = Told(dropped=schedule_dropped(case, "policy"))
        mine = schedule_keys("policy")
        lost = {
            key: told.dropped[of] for key, of in zip(keys, mine, strict=True) if of in told.dropped
        }
        for key, of in zip(keys, mine, strict=True):
            if case[key] != case[of]:
                lost[key] = f"one optimiser serves both; {of} is used"
        return Told(dropped=lost)

    names = {**SCHEDULE, "total_episodes": None, **BATCH}
    return [Rule(keys, names, out, lambda t: _schedule_back("critic", t))]


def _length(theirs: Values) -> int | None:
    if theirs["total_episodes"] is None:
        return None
    return whole(theirs["total_episodes"]) // _episodes(theirs)


def _episodes(theirs: Values) -> int:
    per_device, accumulate, processes = (whole(theirs[name]) for name in BATCH)
    return per_device * accumulate * processes


def _budget(case: Case) -> Told:
    episodes = case["budget.iterations"] * case.config.episodes_per_iteration
    return Told({"total_episodes": episodes}, {"budget.iterations": f"{episodes} responses in all"})


def _budget_back(theirs: Values) -> dict[str, Any]:
    length = _length(theirs)
    if not length:
        raise Unreadable("total_episodes does not give a whole iteration; set budget.iterations")
    return {"budget.iterations": length}


def _batches() -> Rule:
    names = {**BATCH, "num_mini_batches": 1, "local_rollout_forward_batch_size": 64}
    keys = (
        "rollout.prompts_per_iteration",
        "ppo.minibatches",
        "optim.micro_batch_size",
        "optim.micro_batch_tokens",
    )

    def out(case: Case) -> Told:
        processes, count, asked = ranks(case, "learner"), case[keys[1]], case[keys[2]]
        mine, refused = rank_responses(case, processes)
        # Gradients are accumulated over passes whatever the minibatch, so that several minibatches need
        # passes as large as a minibatch to be steps of their own.
        size = mine if count > 1 else divisor(mine, asked)
        local = (mine * count, 1) if count > 1 else (size, mine // size)
        told = Told(dict(zip(BATCH, (*local, processes), strict=True)), refused=refused)
        told.theirs |= {"num_mini_batches": count, "local_rollout_forward_batch_size": size}
        told.notes[keys[0]] = "prompts of a process and pass x passes x processes"
        if size != asked:
            why = (
                "divides"
                if count == 1
                else "is the minibatch; smaller passes would merge minibatches"
            )
            told.dropped[keys[2]] = f"{size} is written, which {why}" + (
                f" {mine}" if count == 1 else ""
            )
        if case[keys[3]] is not None:
            told.notes[keys[2]] = "counts, since passes are counted in responses"
            told.written.add(keys[2])
            told.dropped[keys[3]] = "passes are counted in responses"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        batch, count = _episodes(theirs), whole(theirs["num_mini_batches"])
        local = batch // whole(theirs["PROCESSES"])
        if count < 1 or local % count:
            raise Unreadable(f"{count} minibatches do not divide the {local} prompts of a process")
        passes = min(whole(theirs["per_device_train_batch_size"]), local // count)
        return {
            keys[0]: batch,
            **minibatches(batch // count, batch),
            keys[2]: passes,
            keys[3]: None,
        }

    return Rule(keys, names, out, back)


def _checkpoints() -> Rule:
    keys = ("checkpoint.every_iterations", "checkpoint.keep")
    names = {"save_strategy": "steps", "save_steps": 500, "save_total_limit": None}

    def out(case: Case) -> Told:
        every, keep = case[keys[0]], case[keys[1]]
        told = Told({"save_strategy": "steps" if every else "no", "save_steps": every})
        told.theirs["save_total_limit"] = max(keep, 1)
        if every is None:
            told.notes[keys[0]] = "no checkpoints; the script saves the model at the end"
        if keep == 0:
            told.dropped[keys[1]] = "1 is written; at least one is kept"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        kind, keep = theirs["save_strategy"], theirs["save_total_limit"]
        every = lookup({"no": None, "steps": theirs["save_steps"]}, "", kind)
        kept = {} if keep is None else {keys[1]: whole(keep)}
        return {keys[0]: None if every is None else whole(every), **kept}

    return Rule(keys, names, out, back)


def _resources() -> Rule:
    note = "every process holds all models"

    def out(case: Case) -> Told:
        gpus = together(case)
        return Told(dropped=drop(KEYS, note)) if gpus is None else one_place(case, gpus, gpus, note)

    return Rule(KEYS, {"PROCESSES": 1}, out, lambda t: one_place_back(whole(t["PROCESSES"])))


def _constants() -> Rule:
    """What the script needs beside our options."""
    written = {
        "output_dir": "ppo",
        "stop_token": "eos",
        # The critic's loss counts in full, as with an optimiser of its own.
        "vf_coef": 1.0,
        "report_to": "none",
        "logging_steps": 1,
        "num_sample_generations": 0,
    }
    return Rule((), dict.fromkeys(written), lambda _: Told(dict(written)), lambda _: {})
