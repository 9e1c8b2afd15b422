"""Export to and import from OpenRLHF: advantages and losses."""

from __future__ import annotations

from typing import Any

from analysis.export.openrlhf_dialects import Dialect
from analysis.export.rules import (
    Case,
    Rule,
    Told,
    Values,
    bound,
    choice,
    fixed,
    lookup,
    number,
    optional,
    pair,
    same,
    whole,
)
from analysis.export.shared import clip_ends, needs_critic, whitening

ESTIMATORS = ("gae", "reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo")
AGGREGATIONS = {"token_mean": "token-mean", "sequence_mean_token_mean": "seq-mean-token-mean"}


def loss_rules(spoken: Dialect) -> list[Rule]:
    """Advantages, policy loss and value loss."""
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
        _clip(),
        same("ppo.dual_clip", "actor.dual_clip", None, optional(number)),
        _ratio(spoken),
        fixed("ppo.constant_length", None, "no aggregation there divides by a constant length"),
        needs_critic(bound("ppo.value_clip_range", "critic.value_clip", 0.5)),
        _warmup(),
        same("ppo.entropy_coef", "actor.entropy_coef", None, lambda value: number(value or 0)),
        fixed(
            "ppo.filter_groups",
            False,
            "no group is left out; the dynamic filtering there bounds the mean score of a group",
        ),
    ]


def _clip() -> Rule:
    names = {"actor.eps_clip": 0.2, "actor.eps_clip_low_high": None}

    def out(case: Case) -> Told:
        ends = [case["ppo.clip_range_low"], case["ppo.clip_range_high"]]
        return Told({"actor.eps_clip_low_high": ends})

    def back(theirs: Values) -> dict[str, Any]:
        one, both = theirs["actor.eps_clip"], theirs["actor.eps_clip_low_high"]
        return clip_ends(one, one) if both is None else clip_ends(*pair(both))

    return Rule(("ppo.clip_range_low", "ppo.clip_range_high"), names, out, back)


def _warmup() -> Rule:
    def out(case: Case) -> Told:
        count = case["ppo.critic_warmup_iterations"]
        notes = {"ppo.critic_warmup_iterations": f"{count - 1} freezes {count} iterations"}
        return Told({"critic.freezing_steps": count - 1 if count else -1}, notes if count else {})

    def back(theirs: Values) -> dict[str, Any]:
        return {"ppo.critic_warmup_iterations": whole(theirs["critic.freezing_steps"]) + 1}

    return Rule(("ppo.critic_warmup_iterations",), {"critic.freezing_steps": -1}, out, back)


def _ratio(spoken: Dialect) -> Rule:
    """Ratio, aggregation and clamp together: gspo decides over all of them."""
    modes = {"actor.loss_agg_mode": "token-mean"} if spoken.loss_agg_mode else {}
    keys = ("ppo.ratio", "ppo.aggregation", "ppo.log_ratio_clamp")

    def out(case: Case) -> Told:
        return _gspo(case) if case[keys[0]] == "sequence" else _token_ratio(case, spoken)

    def back(theirs: Values) -> dict[str, Any]:
        if lookup({"ppo": False, "gspo": True}, "", theirs["actor.policy_loss_type"]):
            return dict(zip(keys, ("sequence", "sequence_mean_token_mean", None), strict=True))
        names = {there: ours for ours, there in AGGREGATIONS.items()}
        mode = lookup(names, "", theirs.get("actor.loss_agg_mode", "token-mean"))
        return dict(zip(keys, ("token", mode, 20.0), strict=True))

    return Rule(keys, {"actor.policy_loss_type": "ppo", **modes}, out, back)


def _gspo(case: Case) -> Told:
    told = Told({"actor.policy_loss_type": "gspo"}, {"ppo.ratio": "called gspo"})
    if case["ppo.aggregation"] != "sequence_mean_token_mean":
        told.dropped["ppo.aggregation"] = "gspo always takes sequence_mean_token_mean"
    if case["ppo.log_ratio_clamp"] is not None:
        told.dropped["ppo.log_ratio_clamp"] = "log ratios of gspo are not clamped"
    return told


def _token_ratio(case: Case, spoken: Dialect) -> Told:
    told = Told({"actor.policy_loss_type": "ppo"}, {"ppo.ratio": "called ppo"})
    mode = case["ppo.aggregation"]
    known = list(AGGREGATIONS) if spoken.loss_agg_mode else ["token_mean"]
    if mode not in known:
        remedy = "change it" if mode not in AGGREGATIONS else "change it or export to 0.11.2"
        rule = f"ppo.aggregation must be {' or '.join(known)} for this target"
        told.refused.append(f"{rule}, but is {mode}; {remedy}")
    elif spoken.loss_agg_mode:
        told.theirs["actor.loss_agg_mode"] = AGGREGATIONS[mode]
        told.notes["ppo.aggregation"] = f"called {AGGREGATIONS[mode]}"
    elif not spoken.step_mean:
        told.notes["ppo.aggregation"] = "a mean over each pass, not over the step, before 0.10.4"
    if case["ppo.log_ratio_clamp"] != 20:
        told.dropped["ppo.log_ratio_clamp"] = "log ratios are clamped at 20"
    return told
