"""Export to and import from OpenRLHF's PPO on Ray: its algorithm options, in three dialects.

The dialects: flat flags up to 0.10.1, dotted flags from 0.10.2, and the off-policy correction taken apart in
0.11.2. Rules are written in the dotted names of 0.11.2; ``openrlhf_flat`` renames them for the oldest dialect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analysis.export.openrlhf_flat import rename
from analysis.export.openrlhf_run import optimiser_rules, resource_rules, run_rules
from analysis.export.rules import (
    NEVER,
    Case,
    Rule,
    Table,
    Told,
    Unreadable,
    Values,
    Var,
    bound,
    choice,
    fixed,
    lookup,
    number,
    optional,
    pair,
    same,
    truth,
    whole,
)
from analysis.export.shared import (
    clip_ends,
    idle,
    needs_critic,
    path,
    per_token_target,
    policy,
    reference,
    variable,
    whitening,
)

VERSIONS = (
    "0.11.2",
    "0.11.1",
    "0.11.0",
    "0.10.4",
    "0.10.3",
    "0.10.2",
    "0.10.1.post2",
    "0.10.1.post1",
    "0.10.1",
    "0.10.0",
    "0.9.10",
)
NOWHERE = "OpenRLHF has no such option"
SERVER = "evaluation there needs a reward server or a reward function"
REASONS = {
    "data.task": "its models and prompts are given in variables",
    "data.eval_prompts": SERVER,
    "eval.": SERVER,
    "rollout.chunk_size": "vLLM makes its own batches",
    "resources.roles.": "each process has one CPU for each GPU, and no memory is asked for",
    "checkpoint.metric": "the best checkpoint is chosen by an evaluation, which there needs a reward server",
}
ESTIMATORS = ("gae", "reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo")


@dataclass(frozen=True)
class Dialect:
    """What differs between versions; ``micro`` are the default sizes of passes in training and scoring."""

    flat: bool
    unbiased_gradient: bool
    split_correction: bool
    loss_agg_mode: bool
    micro: tuple[int, int]


def dialect(version: str) -> Dialect:
    """The dialect of a version of ``VERSIONS``."""
    age = VERSIONS.index(version)
    newest = age == 0
    return Dialect(
        flat=age >= VERSIONS.index("0.10.1.post2"),
        unbiased_gradient=age <= VERSIONS.index("0.11.1"),
        split_correction=newest,
        loss_agg_mode=newest,
        micro=(4, 8) if version == "0.9.10" else (1, 1),
    )


def table(version: str) -> Table:
    """The rules for a version of ``VERSIONS``."""
    spoken = dialect(version)
    rules = (
        *_model_rules(),
        *_reward_rules(),
        *_sampling_rules(),
        *_loss_rules(spoken),
        _correction_split() if spoken.split_correction else _correction_typed(),
        _kl(spoken),
        *optimiser_rules(shared=spoken.flat),
        *run_rules(spoken.micro),
        *resource_rules(),
    )
    return rename(rules) if spoken.flat else rules


def _model_rules() -> list[Rule]:
    def critic(case: Case) -> Told:
        if not case.config.ppo.needs_critic:
            reason = f"ppo.advantage {case['ppo.advantage']} has no critic"
            return Told(dropped={"model.critic_init": reason})
        if case["model.critic_init"] == "reward":
            return Told()
        start = case["model.policy"] or variable(case, "POLICY", "the policy")
        return Told(
            {"critic.model_name_or_path": start}, {"model.critic_init": "the policy's path"}
        )

    def critic_back(theirs: Values) -> dict[str, Any]:
        start = theirs["critic.model_name_or_path"]
        if start is None or start == theirs["reward.model_name_or_path"]:
            return {"model.critic_init": "reward"}
        if start != theirs["actor.model_name_or_path"]:
            raise Unreadable("the critic starts from the policy or from the reward model here")
        return {"model.critic_init": "policy"}

    def dtype(case: Case) -> Told:
        half = {"ds.param_dtype": "bf16"}
        if case["model.dtype"] == "bfloat16":
            return Told(half, {"model.dtype": "bfloat16 is called bf16"})
        return Told(half, dropped={"model.dtype": "bf16 over float32 master weights is used"})

    names = {"bf16": "bfloat16"}
    return [
        policy("actor.model_name_or_path", None),
        reference("the reference is the policy at its start"),
        Rule(
            ("model.critic_init",),
            {
                "critic.model_name_or_path": None,
                "reward.model_name_or_path": None,
                "actor.model_name_or_path": None,
            },
            critic,
            critic_back,
        ),
        Rule(
            ("model.dtype",),
            {"ds.param_dtype": "bf16"},
            dtype,
            lambda t: {"model.dtype": lookup(names, "", t["ds.param_dtype"])},
        ),
        fixed("model.device", "auto", "it always runs on GPUs"),
        _prompts(),
        _chat_template(),
    ]


def _prompts() -> Rule:
    key, names = "data.prompts", {"data.prompt_dataset": None, "data.input_key": "input"}

    def out(case: Case) -> Told:
        given = case[key]
        told = Told({"data.prompt_dataset": given, "data.input_key": "prompt"})
        if given is None or not given.endswith(".jsonl"):
            what = "training prompts, a .jsonl with a prompt on each line"
            told.theirs["data.prompt_dataset"] = variable(case, "PROMPTS", what)
        if given is not None and not given.endswith(".jsonl"):
            told.dropped[key] = "prompts are read from .jsonl there; convert the file"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        given = path(theirs["data.prompt_dataset"])
        if given is not None and not given.endswith(".jsonl"):
            raise Unreadable(f"prompts come from .txt or .jsonl files here, not from {given}")
        if given is not None and theirs["data.input_key"] != "prompt":
            raise Unreadable(f"the column is 'prompt' here, not {theirs['data.input_key']!r}")
        return {key: given}

    return Rule((key,), names, out, back)


def _chat_template() -> Rule:
    key, name = "data.chat_template", "data.apply_chat_template"

    def out(case: Case) -> Told:
        if case[key] == "off":
            return Told({name: False})
        return Told({name: True}, {key: "a flag; leave it out if the tokenizer has no template"})

    return Rule((key,), {name: False}, out, lambda t: {key: "auto" if truth(t[name]) else "off"})


def _reward_rules() -> list[Rule]:
    def reward(case: Case) -> Told:
        if case["reward.function"]:
            server = Var("REWARD_FUNCTION", "a .py file with reward_func(queries, prompts, labels)")
            lost = "a reward function has another signature there; wrap it in a file"
            return Told({"reward.remote_url": server}, dropped={"reward.function": lost})
        model = case["reward.model"] or variable(case, "REWARD_MODEL", "the reward model")
        return Told({"reward.model_name_or_path": model})

    def reward_back(theirs: Values) -> dict[str, Any]:
        if theirs["reward.remote_url"] is not None:
            raise Unreadable("a reward server or function; name one in reward.function")
        return {"reward.model": path(theirs["reward.model_name_or_path"]), "reward.function": None}

    def clip(case: Case) -> Told:
        reach = case["reward.clip"]
        told = Told({"reward.clip_range": [-(reach or NEVER), reach or NEVER]})
        told.notes["reward.clip"] = (
            "off: a range that no score leaves"
            if reach is None
            else "both ends; after the baseline"
        )
        return told

    def clip_back(theirs: Values) -> dict[str, Any]:
        low, high = pair(theirs["reward.clip_range"])
        if low != -high:
            raise Unreadable("scores are clipped symmetrically here")
        return {"reward.clip": None if high >= NEVER else high}

    def normalise(case: Case) -> Told:
        kind, keys = case["reward.normalise"], ("reward.mean", "reward.std")
        told = Told({"reward.normalize_enable": kind == "static"})
        if kind == "running":
            told.dropped["reward.normalise"] = (
                "only static normalisation is offered; off is written"
            )
        if kind == "static":
            told.notes["reward.normalise"] = "static is a flag"
            return idle(told, keys, "read from the reward model's config.json")
        return idle(told, keys, f"has no effect with reward.normalise {kind}")

    def normalise_back(theirs: Values) -> dict[str, Any]:
        on = truth(theirs["reward.normalize_enable"])
        return {"reward.normalise": "static" if on else "off"}

    names = {"reward.model_name_or_path": None, "reward.remote_url": None}
    return [
        Rule(("reward.model", "reward.function"), names, reward, reward_back),
        Rule(("reward.clip",), {"reward.clip_range": [-10, 10]}, clip, clip_back),
        Rule(
            ("reward.normalise", "reward.mean", "reward.std"),
            {"reward.normalize_enable": False},
            normalise,
            normalise_back,
        ),
        same(
            "reward.truncation_penalty",
            "reward.stop_properly_penalty_coef",
            None,
            optional(number),
        ),
        same("reward.overlong_buffer", "reward.overlong_buffer_len", None, optional(whole)),
        same("reward.overlong_penalty", "reward.overlong_penalty_factor", 1, number),
        fixed("reward.offset", 0.0, "scores are taken as they are"),
        fixed("reward.missing_eos_penalty", 0.0, "nothing is subtracted"),
        fixed("reward.extra_function", None, "there is one reward"),
        fixed("reward.extra_weight", 1.0, "there is one reward"),
    ]


def _sampling_rules() -> list[Rule]:
    def length(case: Case) -> Told:
        response = case["rollout.max_new_tokens"]
        longest = case["data.max_prompt_tokens"] + response
        return Told(
            {"rollout.max_new_tokens": response, "data.max_len": longest},
            {"data.max_prompt_tokens": "data.max_len is prompt and response together"},
        )

    def length_back(theirs: Values) -> dict[str, Any]:
        if theirs["rollout.max_new_tokens"] is None:
            raise Unreadable(
                "without rollout.max_new_tokens prompt and response share data.max_len"
            )
        response = whole(theirs["rollout.max_new_tokens"])
        prompt = whole(theirs["data.max_len"]) - response
        if prompt < 1:
            raise Unreadable(f"data.max_len leaves {prompt} tokens to the prompt")
        return {"rollout.max_new_tokens": response, "data.max_prompt_tokens": prompt}

    return [
        Rule(
            ("rollout.max_new_tokens", "data.max_prompt_tokens"),
            {"rollout.max_new_tokens": None, "data.max_len": 2048},
            length,
            length_back,
        ),
        same("rollout.prompts_per_iteration", "rollout.batch_size", 1024, whole),
        same("rollout.samples_per_prompt", "rollout.n_samples_per_prompt", 1, whole),
        same("rollout.temperature", "rollout.temperature", 1.0, number),
        same("rollout.top_p", "rollout.top_p", 1.0, number),
        fixed("rollout.top_k", 0, "all tokens are sampled from"),
        fixed("rollout.stop", (), "only the end of sequence ends a response"),
    ]


def _loss_rules(spoken: Dialect) -> list[Rule]:
    def ratio(case: Case) -> Told:
        sequence = case["ppo.ratio"] == "sequence"
        kind = "gspo" if sequence else "ppo"
        told = Told({"actor.policy_loss_type": kind}, {"ppo.ratio": f"called {kind}"})
        used = "sequence_mean_token_mean" if sequence else "token_mean"
        mode, known = case["ppo.aggregation"], spoken.loss_agg_mode
        if sequence and mode != used:
            told.dropped["ppo.aggregation"] = f"gspo always takes {used}"
        elif mode == "sequence_sum" or (mode != used and not known):
            have = f"{used} or sequence_mean_token_mean" if known else used
            remedy = "change it" if known else "change it or export to 0.11.2"
            told.refused.append(f"ppo.aggregation must be {have} here, but is {mode}; {remedy}")
        elif known and not sequence:
            there = {"token_mean": "token-mean", "sequence_mean_token_mean": "seq-mean-token-mean"}
            told.theirs["actor.loss_agg_mode"] = there[mode]
            told.notes["ppo.aggregation"] = f"called {there[mode]}"
        clamp = None if sequence else 20.0
        if case["ppo.log_ratio_clamp"] != clamp:
            told.dropped["ppo.log_ratio_clamp"] = (
                "log ratios are not clamped" if sequence else "log ratios are clamped at 20"
            )
        return told

    def ratio_back(theirs: Values) -> dict[str, Any]:
        sequence = lookup({"ppo": False, "gspo": True}, "", theirs["actor.policy_loss_type"])
        names = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean_token_mean"}
        mode = lookup(names, "", theirs.get("actor.loss_agg_mode", "token-mean"))
        return {
            "ppo.ratio": "sequence" if sequence else "token",
            "ppo.aggregation": "sequence_mean_token_mean" if sequence else mode,
            "ppo.log_ratio_clamp": None if sequence else 20.0,
        }

    def clip(case: Case) -> Told:
        ends = [case["ppo.clip_range_low"], case["ppo.clip_range_high"]]
        return Told({"actor.eps_clip_low_high": ends})

    def clip_back(theirs: Values) -> dict[str, Any]:
        one, both = theirs["actor.eps_clip"], theirs["actor.eps_clip_low_high"]
        return clip_ends(one, one) if both is None else clip_ends(*pair(both))

    def warmup(case: Case) -> Told:
        count = case["ppo.critic_warmup_iterations"]
        notes = {"ppo.critic_warmup_iterations": f"{count - 1} freezes {count} iterations"}
        return Told({"critic.freezing_steps": count - 1 if count else -1}, notes if count else {})

    def warmup_back(theirs: Values) -> dict[str, Any]:
        return {"ppo.critic_warmup_iterations": whole(theirs["critic.freezing_steps"]) + 1}

    modes = {"actor.loss_agg_mode": "token-mean"} if spoken.loss_agg_mode else {}
    return [
        choice(
            "ppo.advantage",
            "algo.advantage.estimator",
            "gae",
            {name: name for name in ESTIMATORS},
            "choose one of them",
        ),
        same("ppo.gamma", "algo.advantage.gamma", 1, number),
        same("ppo.lam", "algo.advantage.lambd", 1, number),
        whitening("algo.advantage.no_std_norm"),
        Rule(
            ("ppo.clip_range_low", "ppo.clip_range_high"),
            {"actor.eps_clip": 0.2, "actor.eps_clip_low_high": None},
            clip,
            clip_back,
        ),
        same("ppo.dual_clip", "actor.dual_clip", None, optional(number)),
        Rule(
            ("ppo.ratio", "ppo.aggregation", "ppo.log_ratio_clamp"),
            {"actor.policy_loss_type": "ppo", **modes},
            ratio,
            ratio_back,
        ),
        fixed("ppo.constant_length", None, "no aggregation there divides by a constant length"),
        needs_critic(bound("ppo.value_clip_range", "critic.value_clip", 0.5)),
        Rule(
            ("ppo.critic_warmup_iterations",),
            {"critic.freezing_steps": -1},
            warmup,
            warmup_back,
        ),
        same("ppo.entropy_coef", "actor.entropy_coef", None, lambda v: number(v or 0)),
        fixed(
            "ppo.filter_groups",
            False,
            "no group is left out; the dynamic filtering there bounds the mean score of a group",
        ),
    ]


CORRECTION = ("ppo.correction.kind", "ppo.correction.low", "ppo.correction.high")


def _correction_told(case: Case) -> tuple[Told, list[float]]:
    """What all dialects share: idle thresholds, and gspo, whose correction is another one."""
    kind, low, high = (case[key] for key in CORRECTION)
    told = Told()
    if kind != "none" and case["ppo.ratio"] == "sequence":
        told.refused.append(
            f"ppo.correction.kind must be none with ppo.ratio sequence for this target, but is {kind}: "
            "gspo there takes the sampler's log-probabilities as the old ones; set it to none"
        )
    if kind == "none":
        idle(told, CORRECTION[1:], "has no effect with ppo.correction.kind none")
    if kind == "tis":
        idle(told, CORRECTION[1:2], "has no effect with ppo.correction.kind tis")
    return told, [0.0 if kind == "tis" else low, high]


def _bounds(kind: str, low: float, high: float) -> dict[str, Any]:
    if kind == "none":
        return {CORRECTION[0]: kind}
    if kind == "tis" and low > 0:
        raise Unreadable(f"tis has no lower bound here, but is bounded by {low:g} there")
    ends = {CORRECTION[1]: low} if kind != "tis" else {}
    return {CORRECTION[0]: kind, CORRECTION[2]: high, **ends}


def _correction_split() -> Rule:
    prefix = "algo.advantage.is_correction_"
    names = {
        f"{prefix}level": "off",
        f"{prefix}mode": "mask",
        f"{prefix}gating": "ratio",
        f"{prefix}threshold": [0.5, 5.0],
    }
    forms = {
        "tis": ("token", "clip"),
        "icepop": ("token", "mask"),
        "sequence_mask": ("seq", "mask"),
    }

    def out(case: Case) -> Told:
        told, ends = _correction_told(case)
        kind = case[CORRECTION[0]]
        if kind == "none":
            told.theirs = {f"{prefix}level": "off"}
        else:
            values = (*forms[kind], "ratio", ends)
            told.theirs = dict(zip(names, values, strict=True))
        told.notes = {CORRECTION[0]: "level, mode and gating" if kind != "none" else "called off"}
        return told

    def back(theirs: Values) -> dict[str, Any]:
        level, mode, gating, threshold = (theirs[name] for name in names)
        if level == "off":
            return _bounds("none", 0.0, 0.0)
        if gating != "ratio":
            raise Unreadable(f"gating by {gating} is not offered here")
        kind = lookup({form: kind for kind, form in forms.items()}, "", (level, mode))
        ends = threshold if isinstance(threshold, list) else [threshold]
        low, high = pair([0.0, *ends] if len(ends) == 1 else ends)
        return _bounds(kind, low, high)

    return Rule(CORRECTION, names, out, back)


def _correction_typed() -> Rule:
    prefix = "algo.advantage.is_correction_"
    names = {f"{prefix}enable": False, f"{prefix}type": "tis", f"{prefix}threshold": [0.5, 5.0]}
    types = {"tis": "tis", "icepop": "icepop", "sequence_mask": "seq-mask-tis"}

    def out(case: Case) -> Told:
        told, ends = _correction_told(case)
        kind = case[CORRECTION[0]]
        values = (True, types.get(kind), ends)
        told.theirs = {} if kind == "none" else dict(zip(names, values, strict=True))
        told.notes = {} if kind in ("none", "tis") else {CORRECTION[0]: f"called {types[kind]}"}
        return told

    def back(theirs: Values) -> dict[str, Any]:
        enable, kind, threshold = (theirs[name] for name in names)
        if not truth(enable):
            return _bounds("none", 0.0, 0.0)
        return _bounds(lookup({v: k for k, v in types.items()}, "", kind), *pair(threshold))

    return Rule(CORRECTION, names, out, back)


def _kl(spoken: Dialect) -> Rule:
    prefix = "ppo.kl."
    names: dict[str, Any] = {
        "algo.kl.init_coef": 0.01,
        "algo.kl.estimator": "k1",
        "algo.kl.use_loss": False,
        "algo.kl.target": None,
        "algo.kl.horizon": 10000,
    }
    if spoken.unbiased_gradient:
        names["algo.kl.unbiased_gradient"] = False

    def out(case: Case) -> Told:
        kl, loss = case.config.ppo.kl, case["ppo.kl.mode"] == "loss"
        adaptive = kl.controller == "adaptive"
        told = Told(
            {
                "algo.kl.init_coef": kl.coef,
                "algo.kl.estimator": kl.estimator,
                "algo.kl.use_loss": loss,
                "algo.kl.target": kl.target_per_token if adaptive else None,
                "algo.kl.horizon": kl.horizon,
            }
        )
        if loss and spoken.unbiased_gradient:
            told.theirs["algo.kl.unbiased_gradient"] = True
            told.notes[prefix + "mode"] = "with the gradient of the divergence itself"
        elif loss:
            told.notes[prefix + "mode"] = (
                "the gradient is that of the estimator; that of the divergence came with 0.11.1"
            )
        if kl.measure != (kl.coef > 0):
            told.dropped[prefix + "measure"] = "no reference is kept where the coefficient is 0"
        targets = (prefix + "target_per_response", prefix + "target_per_token")
        if not adaptive:
            return idle(told, targets, "has no effect with ppo.kl.controller fixed")
        told.notes[prefix + "controller"] = "adaptive where algo.kl.target is given"
        told.refused += per_token_target(case)
        return idle(told, targets[:1], "ppo.kl.target_per_token is used instead")

    def back(theirs: Values) -> dict[str, Any]:
        coef, target = number(theirs["algo.kl.init_coef"]), theirs["algo.kl.target"]
        adaptive = {"controller": "fixed"}
        if target is not None:
            adaptive = {"controller": "adaptive", "target_per_token": number(target)}
        found = {
            "coef": coef,
            "estimator": lookup(
                {k: k for k in ("k1", "k2", "k3")}, "", theirs["algo.kl.estimator"]
            ),
            "mode": "loss" if truth(theirs["algo.kl.use_loss"]) else "reward",
            "horizon": whole(theirs["algo.kl.horizon"]),
            "measure": coef > 0 or target is not None,
            **adaptive,
        }
        return {prefix + name: value for name, value in found.items()}

    keys = ("coef", "mode", "estimator", "controller", "target_per_response", "target_per_token",
            "horizon", "measure")  # fmt: skip
    return Rule(tuple(prefix + key for key in keys), names, out, back)
