"""Export to and import from verl: optimisers, batches, length of the run, evaluation and GPUs."""

from __future__ import annotations

import math
from typing import Any

from analysis.export.places import (
    KEYS,
    PLACES,
    engines,
    engines_on,
    one_place,
    one_place_back,
    pool,
    together,
)
from analysis.export.rules import (
    Case,
    Rule,
    Told,
    Unreadable,
    Values,
    Var,
    drop,
    fixed,
    gpu_count,
    lookup,
    nodes,
    number,
    optional,
    pair,
    same,
    truth,
    whole,
    whole_gpus,
)
from analysis.export.shared import (
    BESIDE_TOKENS,
    every_iteration,
    in_turns,
    micro_batch,
    minibatches,
    needs_critic,
    role_rules,
    schedule_back,
    schedule_dropped,
    schedule_keys,
    steps,
)

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
OPTIM = {"policy": f"{ACTOR}optim.", "critic": "critic.optim."}
LENGTH = "trainer.total_training_steps"
MESSAGES = "a .parquet file of chat messages with a data source, as verl reads them"


def run_rules() -> list[Rule]:
    """Everything but the algorithm."""
    return [
        *role_rules(_optimiser),
        Rule(("budget.iterations",), {LENGTH: None}, _budget, _budget_back),
        same("ppo.epochs", f"{ACTOR}ppo_epochs", 1, whole),
        _batches(),
        every_iteration(),
        in_turns(UNFINISHED, MODE),
        _bucket(),
        _seed(),
        _checkpoints(),
        _evaluation(),
        _resources(),
        fixed("resources.strategy", "PACK", "each node has one placement group"),
        _constants(),
    ]


def _budget(case: Case) -> Told:
    return Told({LENGTH: case["budget.iterations"]})


def _budget_back(theirs: Values) -> dict[str, Any]:
    if theirs[LENGTH] is None:
        raise Unreadable("the length of the run follows from the data; set budget.iterations")
    return {"budget.iterations": whole(theirs[LENGTH])}


def _optimiser(role: str) -> list[Rule]:
    ours, theirs = f"optim.{role}.", OPTIM[role]
    betas = (f"{ours}beta1", f"{ours}beta2")

    def beta(case: Case) -> Told:
        return Told({f"{theirs}betas": [case[key] for key in betas]})

    def beta_back(values: Values) -> dict[str, Any]:
        return dict(zip(betas, pair(values[f"{theirs}betas"]), strict=True))

    def clip(case: Case) -> Told:
        key = f"{ours}max_grad_norm"
        value = case[key]
        # FSDP clips at whatever it is given; only a norm out of reach leaves gradients alone.
        notes = {} if value else {key: "off: a norm that no gradient reaches"}
        return Told({f"{theirs}clip_grad": value or 1e9}, notes)

    def clip_back(values: Values) -> dict[str, Any]:
        norm = number(values[f"{theirs}clip_grad"])
        return {f"{ours}max_grad_norm": None if norm >= 1e9 else norm}

    rules = [
        same(f"{ours}lr", f"{theirs}lr", 1e-6 if role == "policy" else 1e-5, number),
        Rule(betas, {f"{theirs}betas": [0.9, 0.999]}, beta, beta_back),
        fixed(f"{ours}eps", 1e-8, "AdamW's epsilon is 1e-8"),
        same(f"{ours}weight_decay", f"{theirs}weight_decay", 0.01, number),
        Rule((f"{ours}max_grad_norm",), {f"{theirs}clip_grad": 1.0}, clip, clip_back),
        _schedule(role),
    ]
    return rules if role == "policy" else [needs_critic(rule) for rule in rules]


def _schedule(role: str) -> Rule:
    keys, prefix = schedule_keys(role), OPTIM[role]
    names = {
        f"{prefix}lr_scheduler_type": "constant",
        f"{prefix}lr_warmup_steps": -1,
        f"{prefix}lr_warmup_steps_ratio": 0.0,
        f"{prefix}min_lr_ratio": 0.0,
        LENGTH: None,
    }

    def out(case: Case) -> Told:
        kind, warmup, _, floor = (case[key] for key in keys)
        if kind == "linear":
            return Told(
                refused=[
                    f"{keys[0]} must be constant or cosine for this target, but is linear; change it"
                ]
            )
        told = Told({f"{prefix}lr_scheduler_type": kind, f"{prefix}lr_warmup_steps": warmup})
        if kind == "cosine":
            told.theirs[f"{prefix}min_lr_ratio"] = floor
        told.dropped = schedule_dropped(case, role)
        return told

    def back(theirs: Values) -> dict[str, Any]:
        kind_there, warmup, ratio, floor, length = (theirs[name] for name in names)
        kind = lookup({"constant": "constant", "cosine": "cosine"}, "", kind_there)
        length = optional(whole)(length)
        count = whole(warmup)
        if count < 0:
            if number(ratio) and length is None:
                raise Unreadable("a warm-up share needs trainer.total_training_steps")
            count = int(number(ratio) * (length or 0))
        return schedule_back(role, kind, count, length, number(floor or 0))

    return Rule(keys, names, out, back)


def _pool(case: Case) -> int:
    """GPUs of the one pool that actor, rollout, reference and critic share."""
    return pool(case, [role for role in case.config.roles if role != "reward"])


def _batches() -> Rule:
    names = {
        f"{ACTOR}ppo_mini_batch_size": 256,
        f"{ACTOR}ppo_micro_batch_size_per_gpu": None,
        "critic.ppo_micro_batch_size_per_gpu": None,
        f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": None,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": None,
        f"{ACTOR}use_dynamic_bsz": False,
        f"{ACTOR}ppo_max_token_len_per_gpu": 16384,
        "critic.ppo_max_token_len_per_gpu": 32768,
        "data.train_batch_size": 1024,
    }
    step, mine, *others, dynamic, longest, critic_longest, batch = names
    keys = ("ppo.minibatches", "optim.micro_batch_size", "optim.micro_batch_tokens")

    def out(case: Case) -> Told:
        prompts, count = case["rollout.prompts_per_iteration"], case[keys[0]]
        size, told = micro_batch(case, _pool(case), BESIDE_TOKENS)
        if prompts % count:
            told.refused.append(
                f"ppo.minibatches must divide rollout.prompts_per_iteration for this target, but {prompts} / "
                f"{count} leaves {prompts % count}; change either"
            )
        told.theirs = {step: prompts // count, **dict.fromkeys([mine, *others], size)}
        told.notes[keys[0]] = f"{prompts // count} prompts in each optimiser step"
        tokens = case[keys[2]]
        if tokens:
            told.theirs |= {dynamic: True, longest: tokens, critic_longest: tokens}
            told.notes[keys[2]] = "dynamic batches"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        size = theirs[mine]
        return {
            **minibatches(whole(theirs[step]), whole(theirs[batch])),
            **({keys[1]: whole(size)} if size is not None else {}),
            keys[2]: whole(theirs[longest]) if truth(theirs[dynamic]) else None,
        }

    return Rule(keys, names, out, back)


def _seed() -> Rule:
    names = ("data.seed", f"{ACTOR}data_loader_seed", "critic.data_loader_seed",
             f"{ACTOR}fsdp_config.seed", f"{ROLLOUT}seed")  # fmt: skip

    def out(case: Case) -> Told:
        return Told(
            dict.fromkeys(names, case["seed"]),
            {"seed": "of prompts, minibatches, weights, sampling"},
        )

    def back(theirs: Values) -> dict[str, Any]:
        return {} if theirs["data.seed"] is None else {"seed": whole(theirs["data.seed"])}

    return Rule(("seed",), {names[0]: None, **dict.fromkeys(names[1:], 42)}, out, back)


def _checkpoints() -> Rule:
    names = {
        "trainer.save_freq": -1,
        "trainer.max_actor_ckpt_to_keep": None,
        "trainer.max_critic_ckpt_to_keep": None,
        "trainer.resume_mode": "auto",
    }
    keys = ("checkpoint.every_iterations", "checkpoint.keep")

    def out(case: Case) -> Told:
        every, keep = case[keys[0]], case[keys[1]]
        told = Told(
            dict(zip(names, (every or -1, max(keep, 1), max(keep, 1), "disable"), strict=True))
        )
        if every is None:
            told.notes[keys[0]] = "-1 is never, the end of the run included"
        if keep == 0:
            told.dropped[keys[1]] = "1 is written; at least one is kept"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        keep = theirs["trainer.max_actor_ckpt_to_keep"]
        kept = {} if keep is None else {keys[1]: whole(keep)}
        return {keys[0]: steps(theirs["trainer.save_freq"]), **kept}

    return Rule(keys, names, out, back)


def _evaluation() -> Rule:
    values = f"{ROLLOUT}val_kwargs."
    names: dict[str, Any] = {
        "trainer.test_freq": -1,
        "data.val_max_samples": -1,
        "data.train_files": None,
        "data.val_files": None,
        f"{values}do_sample": False,
        f"{values}temperature": 0,
        f"{values}top_p": 1.0,
        f"{values}top_k": -1,
    }
    keys = ("eval.every_iterations", "eval.prompts")

    def out(case: Case) -> Told:
        files = Var("TRAIN_FILES", MESSAGES), Var("VAL_FILES", MESSAGES)
        sampling = (
            True,
            case["rollout.temperature"],
            case["rollout.top_p"],
            case["rollout.top_k"] or -1,
        )
        return Told(
            dict(zip(names, (case[keys[0]], case[keys[1]], *files, *sampling), strict=True))
        )

    def back(theirs: Values) -> dict[str, Any]:
        every, prompts = steps(theirs["trainer.test_freq"]), steps(theirs["data.val_max_samples"])
        found = {keys[0]: every, keys[1]: prompts}
        return {key: value for key, value in found.items() if value is not None}

    return Rule(keys, names, out, back)


def _resources() -> Rule:
    tensor = f"{ROLLOUT}tensor_model_parallel_size"
    names: dict[str, Any] = {"trainer.nnodes": 1, "trainer.n_gpus_per_node": 8, tensor: 2}

    def out(case: Case) -> Told:
        gpus = _pool(case)
        shared = f"actor, rollout, reference and critic share one pool, of {gpu_count(gpus)}"
        if together(case) is None:
            told = Told(
                {tensor: whole_gpus(case[f"{PLACES}rollout.gpus"])}, dropped=drop(KEYS, shared)
            )
        else:
            count = engines(case, gpus)
            told = one_place(case, gpus, count, shared)
            told.theirs = {tensor: gpus // count}
        told.theirs = dict(zip(names, (*nodes(gpus), told.theirs[tensor]), strict=True))
        return told

    def back(theirs: Values) -> dict[str, Any]:
        gpus = whole(theirs["trainer.nnodes"]) * whole(theirs["trainer.n_gpus_per_node"])
        return one_place_back(gpus, engines_on(gpus, whole(theirs[tensor])) if gpus > 1 else 1)

    return Rule(KEYS, names, out, back)


MODE = {"trainer.v1.trainer_mode": "sync"}
UNFINISHED = "sampling ahead there goes on with unfinished responses under newer weights"
BUCKET = f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes"


def _bucket() -> Rule:
    key = "sync.bucket_mb"

    def out(case: Case) -> Told:
        size = math.ceil(case[key])
        lost = {} if size == case[key] else {key: f"whole megabytes; {size} is written"}
        return Told({BUCKET: size}, dropped=lost)

    def back(theirs: Values) -> dict[str, Any]:
        size = number(theirs[BUCKET])
        if size > 1024:
            raise Unreadable(f"buckets have at most 1024 MB here, not {size:g}")
        return {key: size}

    return Rule((key,), {BUCKET: 2048}, out, back)


def _constants() -> Rule:
    """What a run needs beside our options."""
    written = {
        f"{ROLLOUT}name": "vllm",
        f"{ACTOR}shuffle": True,
        "trainer.logger": ["console"],
    }
    return Rule((), dict.fromkeys(written), lambda _: Told(dict(written)), lambda _: {})
