"""Export to and import from TRL 1.12's ``PPOConfig``, the last TRL with PPO.

Names in capitals are constants of the exported script; the others are arguments of ``PPOConfig``.
"""

from __future__ import annotations

from typing import Any

from analysis.export.rules import (
    Case,
    Rule,
    Table,
    Told,
    Unreadable,
    Values,
    bound,
    choice,
    divisor,
    drop,
    fixed,
    lookup,
    number,
    optional,
    same,
    truth,
    whole,
    whole_gpus,
)
from analysis.export.shared import (
    every_iteration,
    idle,
    learner_gpus,
    minibatches,
    path,
    policy,
    rank_responses,
    reference,
    schedule_back,
    schedule_dropped,
    schedule_keys,
    variable,
    whitening,
)

VERSIONS = ("1.12.0",)
NOWHERE = "TRL's PPO has no such option"
REASONS = {
    "data.task": "its models and prompts are read from the environment",
    "rollout.chunk_size": "responses are sampled in batches of local_rollout_forward_batch_size",
    "eval.": "its evaluation only prints samples",
}


def table(version: str) -> Table:
    """The rules for a version of ``VERSIONS``."""
    return (
        *_model_rules(),
        *_sampling_rules(),
        *_algorithm_rules(),
        *_optimiser_rules(),
        _batches(),
        Rule(("budget.iterations",), {"total_episodes": None, **BATCH}, _budget, _budget_back),
        every_iteration(),
        same("seed", "seed", 42, whole),
        _checkpoints(),
        _resources(),
        _constants(),
    )


def _model_rules() -> list[Rule]:
    def reward(case: Case) -> Told:
        model = case["reward.model"] or variable(case, "REWARD_MODEL", "the reward model")
        told = Told({"reward_model_path": model})
        if case["reward.function"]:
            lost = "the reward is a sequence classifier; give one in REWARD_MODEL"
            told.dropped["reward.function"] = lost
        return told

    def reward_back(theirs: Values) -> dict[str, Any]:
        return {"reward.model": path(theirs["reward_model_path"]), "reward.function": None}

    def prompts(case: Case) -> Told:
        given = case["data.prompts"]
        what = "training prompts, a .jsonl with a prompt on each line"
        told = Told({"PROMPTS": given or variable(case, "PROMPTS", what)})
        if given is not None and not given.endswith(".jsonl"):
            told.theirs["PROMPTS"] = variable(case, "PROMPTS", what)
            told.dropped["data.prompts"] = "the script reads .jsonl; convert the file"
        return told

    def device(case: Case) -> Told:
        kind = case["model.device"]
        told = Told({"use_cpu": kind == "cpu"})
        if kind == "cuda":
            told.dropped["model.device"] = "a GPU is taken where there is one"
        return told

    return [
        policy("sft_model_path", None),
        reference("the reference is the policy at its start"),
        choice(
            "model.critic_init",
            "CRITIC",
            "reward",
            {"reward": "reward", "policy": "policy"},
            "choose one of them",
        ),
        Rule(
            ("model.dtype",),
            {"bf16": True},
            lambda case: Told(
                {"bf16": case["model.dtype"] == "bfloat16"},
                {"model.dtype": "mixed precision, or none"},
            ),
            lambda t: {"model.dtype": "bfloat16" if truth(t["bf16"]) else "float32"},
        ),
        Rule(
            ("model.device",),
            {"use_cpu": False},
            device,
            lambda t: {"model.device": "cpu" if truth(t["use_cpu"]) else "auto"},
        ),
        Rule(("reward.model", "reward.function"), {"reward_model_path": None}, reward, reward_back),
        Rule(
            ("data.prompts",),
            {"PROMPTS": None},
            prompts,
            lambda t: {"data.prompts": path(t["PROMPTS"])},
        ),
        same("data.max_prompt_tokens", "MAX_PROMPT_TOKENS", 64, whole),
        choice(
            "data.chat_template",
            "CHAT_TEMPLATE",
            "auto",
            {"auto": "auto", "off": "off"},
            "choose one of them",
        ),
    ]


def _sampling_rules() -> list[Rule]:
    key = "reward.missing_eos_penalty"
    rest = {
        "offset": 0.0,
        "clip": None,
        "normalise": "off",
        "truncation_penalty": None,
        "overlong_buffer": None,
        "extra_function": None,
    }
    return [
        Rule(
            (key,),
            {"missing_eos_penalty": None},
            lambda case: Told({"missing_eos_penalty": case[key] or None}),
            lambda t: {key: optional(number)(t["missing_eos_penalty"]) or 0.0},
        ),
        *(
            fixed(f"reward.{name}", value, "scores are taken as they are")
            for name, value in rest.items()
        ),
        same("rollout.max_new_tokens", "response_length", 53, whole),
        same("rollout.temperature", "temperature", 0.7, number),
        fixed("rollout.top_p", 1.0, "all tokens are sampled from"),
        fixed("rollout.top_k", 0, "all tokens are sampled from"),
        fixed("rollout.stop", (), "only the end of sequence ends a response"),
        fixed(
            "rollout.samples_per_prompt",
            1,
            "there is one response to a prompt",
            refuse="set it to 1",
        ),
    ]


def _algorithm_rules() -> list[Rule]:
    def clip(case: Case) -> Told:
        low, high = case["ppo.clip_range_low"], case["ppo.clip_range_high"]
        if low != high:
            rule = "ppo.clip_range_low and ppo.clip_range_high must be equal for this target"
            return Told(refused=[f"{rule}, but are {low:g} and {high:g}; change either"])
        return Told({"cliprange": low})

    def clip_back(theirs: Values) -> dict[str, Any]:
        both = number(theirs["cliprange"])
        return {"ppo.clip_range_low": both, "ppo.clip_range_high": both}

    other = "choose another target"
    return [
        fixed("ppo.advantage", "gae", "advantages are always gae", refuse=other),
        same("ppo.gamma", "gamma", 1.0, number),
        same("ppo.lam", "lam", 0.95, number),
        whitening(),
        Rule(("ppo.clip_range_low", "ppo.clip_range_high"), {"cliprange": 0.2}, clip, clip_back),
        bound("ppo.value_clip_range", "cliprange_value", 0.2),
        fixed("ppo.dual_clip", None, "there is no dual clip"),
        fixed("ppo.ratio", "token", "there is one ratio a token", refuse=other),
        fixed("ppo.log_ratio_clamp", None, "log ratios are not clamped"),
        fixed("ppo.aggregation", "token_mean", "losses are means over tokens", refuse=other),
        fixed("ppo.constant_length", None, "losses are means over tokens"),
        fixed("ppo.critic_warmup_iterations", 0, "policy and critic learn from the start"),
        fixed("ppo.entropy_coef", 0.0, "there is no entropy bonus"),
        fixed("ppo.filter_groups", False, "there are no groups"),
        _correction(),
        *_kl_rules(),
        same("ppo.epochs", "num_ppo_epochs", 4, whole),
    ]


def _correction() -> Rule:
    keys = ("ppo.correction.kind", "ppo.correction.low", "ppo.correction.high")

    def out(case: Case) -> Told:
        if case[keys[0]] == "none":
            return idle(Told(), keys[1:], "has no effect with ppo.correction.kind none")
        rule = f"{keys[0]} must be none for this target, but is {case[keys[0]]}: there is no other sampler"
        return Told(refused=[f"{rule}; set it to none"])

    return Rule(keys, {}, out, lambda _: {keys[0]: "none"})


def _kl_rules() -> list[Rule]:
    prefix = "ppo.kl."
    idle_keys = tuple(
        prefix + name for name in ("target_per_response", "target_per_token", "horizon")
    )

    def controller(case: Case) -> Told:
        kind = case[prefix + "controller"]
        if kind == "fixed":
            return idle(Told(), idle_keys, "has no effect with ppo.kl.controller fixed")
        rule = f"{prefix}controller must be fixed for this target, but is {kind}"
        return Told(refused=[f"{rule}: the coefficient stays; set it to fixed"])

    return [
        same(prefix + "coef", "kl_coef", 0.05, number),
        choice(
            prefix + "estimator",
            "kl_estimator",
            "k1",
            {"k1": "k1", "k3": "k3"},
            "choose one of them",
        ),
        fixed(
            prefix + "mode",
            "reward",
            "the KL is a penalty on the reward",
            refuse="set it to reward",
        ),
        fixed(prefix + "measure", True, "a reference is always kept"),
        Rule(
            (prefix + "controller", *idle_keys),
            {},
            controller,
            lambda _: {prefix + "controller": "fixed"},
        ),
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
        processes, count, asked = learner_gpus(case), case[keys[1]], case[keys[2]]
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
    roles = "resources.roles."
    own = ("rollout", "learner", "critic", "reference", "reward", "fused")
    keys = tuple(f"{roles}{role}.{name}" for role in own for name in ("workers", "gpus"))

    def out(case: Case) -> Told:
        together = "every process holds all models"
        told = Told(notes={"resources.layout": together})
        if case["resources.layout"] == "split":
            told.dropped = drop(["resources.layout", *keys], together)
            return told
        told.dropped = drop(keys[:-2], "not used by layout fused")
        gpus = case[keys[-1]]
        if gpus != whole_gpus(gpus):
            told.dropped[keys[-1]] = f"a process takes a whole GPU; {whole_gpus(gpus)} is written"
        else:
            told.notes[keys[-1]] = "processes of `accelerate launch`"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        gpus = float(whole(theirs["PROCESSES"]))
        return {"resources.layout": "fused", keys[-2]: 1, keys[-1]: gpus}

    return Rule(("resources.layout", *keys), {"PROCESSES": 1}, out, back)


def _constants() -> Rule:
    """What the script needs beside our options."""
    written = {
        "output_dir": "ppo",
        "stop_token": "eos",
        # The critic's loss counts in full, as with an optimiser of its own.
        "vf_coef": 1.0,
        "gradient_checkpointing": False,
        "report_to": "none",
        "logging_steps": 1,
        "num_sample_generations": 0,
    }
    return Rule((), dict.fromkeys(written), lambda _: Told(dict(written)), lambda _: {})
