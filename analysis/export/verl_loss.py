"""Export to and import from verl: losses, off-policy correction, KL to the reference."""

from __future__ import annotations

from typing import Any

from analysis.export.rules import (
    NEVER,
    Case,
    Rule,
    Told,
    Unreadable,
    Values,
    bound,
    lookup,
    number,
    optional,
    same,
    truth,
    whole,
)
from analysis.export.shared import needs_critic, per_token_target

ACTOR = "actor_rollout_ref.actor."
CORRECTION = ("ppo.correction.kind", "ppo.correction.low", "ppo.correction.high")


def loss_rules() -> list[Rule]:
    """Policy loss, value loss, correction and KL."""
    ends = {
        f"{ACTOR}clip_ratio": 0.2,
        f"{ACTOR}clip_ratio_low": 0.2,
        f"{ACTOR}clip_ratio_high": 0.2,
    }

    def clip(case: Case) -> Told:
        low, high = case["ppo.clip_range_low"], case["ppo.clip_range_high"]
        return Told(dict(zip(ends, (low, low, high), strict=True)))

    def clip_back(theirs: Values) -> dict[str, Any]:
        one, low, high = (theirs[name] for name in ends)
        # A bound of their own wins over the common one unless it is null.
        return {
            "ppo.clip_range_low": number(one if low is None else low),
            "ppo.clip_range_high": number(one if high is None else high),
        }

    return [
        Rule(("ppo.clip_range_low", "ppo.clip_range_high"), ends, clip, clip_back),
        _ratio(),
        _aggregation(),
        needs_critic(bound("ppo.value_clip_range", "critic.cliprange_value", 0.5)),
        same("ppo.critic_warmup_iterations", "trainer.critic_warmup", 0, whole),
        same("ppo.entropy_coef", f"{ACTOR}entropy_coeff", 0, number),
        _correction(),
        _kl(),
    ]


def _ratio() -> Rule:
    mode, dual = f"{ACTOR}policy_loss.loss_mode", f"{ACTOR}clip_ratio_c"
    keys = ("ppo.ratio", "ppo.dual_clip", "ppo.log_ratio_clamp")

    def out(case: Case) -> Told:
        sequence = case[keys[0]] == "sequence"
        kind = "gspo" if sequence else "vanilla"
        told = Told({mode: kind}, {keys[0]: f"called {kind}"})
        if sequence:
            told.notes[keys[0]] += "; each token gets the gradient of its own loss"
            told.dropped[keys[2]] = "the log ratio is bounded by 10 from above"
            if case[keys[1]] is not None:
                told.dropped[keys[1]] = "gspo has no dual clip"
            return told
        told.theirs[dual] = case[keys[1]] or NEVER
        if case[keys[1]] is None:
            told.notes[keys[1]] = "off: a bound that no ratio reaches"
        if case[keys[2]] != 20:
            told.dropped[keys[2]] = "log ratios are clamped at 20"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        if lookup({"vanilla": False, "gspo": True}, "", theirs[mode]):
            return {keys[0]: "sequence", keys[1]: None}
        ratio = number(theirs[dual])
        return {keys[0]: "token", keys[1]: None if ratio >= NEVER else ratio, keys[2]: 20.0}

    return Rule(keys, {mode: "vanilla", dual: 3.0}, out, back)


def _aggregation() -> Rule:
    mode, factor = f"{ACTOR}loss_agg_mode", f"{ACTOR}loss_scale_factor"
    keys = ("ppo.aggregation", "ppo.constant_length")
    called = {
        "token_mean": "token-mean",
        "sequence_mean_token_mean": "seq-mean-token-mean",
        "sequence_sum": "seq-mean-token-sum-norm",
    }

    def out(case: Case) -> Told:
        ours, length = case[keys[0]], case[keys[1]]
        told = Told({mode: called[ours]}, {keys[0]: f"called {called[ours]}"})
        if ours == "sequence_sum":
            told.theirs[factor] = length or case["rollout.max_new_tokens"]
            if length is None:
                told.notes[keys[1]] = "data.max_response_length"
        return told

    def back(theirs: Values) -> dict[str, Any]:
        if theirs[mode] == "seq-mean-token-sum":
            return {keys[0]: "sequence_sum", keys[1]: 1}
        ours = lookup({there: here for here, there in called.items()}, "", theirs[mode])
        length = optional(whole)(theirs[factor]) if ours == "sequence_sum" else None
        longest = whole(theirs["data.max_response_length"])
        return {keys[0]: ours, keys[1]: None if length == longest else length}

    return Rule(
        keys, {mode: "token-mean", factor: None, "data.max_response_length": 512}, out, back
    )


def _correction() -> Rule:
    prefix = "algorithm.rollout_correction."
    names = [prefix + name for name in
             ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")]  # fmt: skip
    weigh, weigh_to, reject, reject_to = names

    def out(case: Case) -> Told:
        kind, low, high = (case[key] for key in CORRECTION)
        told = Told()
        if kind == "none":
            return told
        told.theirs[weigh] = "token"
        if kind == "tis":
            told.theirs[weigh_to] = high
            told.notes[CORRECTION[0]] = "weights of tokens with one bound"
            return told
        if kind == "icepop":
            told.theirs[weigh_to] = f"{float(low)!r}_{float(high)!r}"
            told.notes[CORRECTION[0]] = "weights of tokens with two bounds"
            return told
        told.theirs |= {weigh_to: NEVER, reject: "seq_mean_k1"}
        told.theirs[reject_to] = f"{1 / high!r}_{1 / low!r}"
        told.notes[CORRECTION[0]] = "unbounded weights, and bounds on sampler over learner; rejected " \
            "responses leave the mean"  # fmt: skip
        return told

    def back(theirs: Values) -> dict[str, Any]:
        level, to, rejection, ends = (theirs[name] for name in names)
        if level is None and rejection is None:
            return {CORRECTION[0]: "none"}
        if level != "token":
            raise Unreadable(f"weights of level {level} are not offered here")
        if rejection is not None:
            if rejection != "seq_mean_k1" or number(to) < NEVER:
                raise Unreadable(
                    f"rejection by {rejection} beside bounded weights is not offered here"
                )
            low, high = _band(ends)
            return dict(zip(CORRECTION, ("sequence_mask", 1 / high, 1 / low), strict=True))
        if "_" not in str(to):
            return {CORRECTION[0]: "tis", CORRECTION[2]: number(to)}
        return dict(zip(CORRECTION, ("icepop", *_band(to)), strict=True))

    defaults = dict(zip(names, (None, 2.0, None, None), strict=True))
    return Rule(CORRECTION, defaults, out, back)


def _band(text: Any) -> tuple[float, float]:
    low, _, high = str(text).partition("_")
    return number(low), number(high)


PREFIX, CONTROL = "ppo.kl.", "algorithm.kl_ctrl."
ESTIMATORS = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
OURS = {**{there: here for here, there in ESTIMATORS.items()}, **{k: k for k in ESTIMATORS}}


def _kl() -> Rule:
    names: dict[str, Any] = {
        "algorithm.use_kl_in_reward": False,
        "algorithm.kl_penalty": "kl",
        f"{CONTROL}type": "fixed",
        f"{CONTROL}kl_coef": 0.001,
        f"{CONTROL}horizon": 10000,
        f"{CONTROL}target_kl": 0.1,
        f"{ACTOR}use_kl_loss": False,
        f"{ACTOR}kl_loss_coef": 0.001,
        f"{ACTOR}kl_loss_type": "low_var_kl",
    }

    keys = ("coef", "mode", "estimator", "controller", "target_per_response", "target_per_token",
            "horizon", "measure")  # fmt: skip
    return Rule(tuple(PREFIX + key for key in keys), names, _kl_out, _kl_back)


def _kl_back(theirs: Values) -> dict[str, Any]:
    in_reward, in_loss = (
        truth(theirs["algorithm.use_kl_in_reward"]),
        truth(theirs[f"{ACTOR}use_kl_loss"]),
    )
    if in_reward and in_loss:
        raise Unreadable("the KL is a penalty or a loss here, not both")
    kind = theirs[f"{ACTOR}kl_loss_type"] if in_loss else theirs["algorithm.kl_penalty"]
    coef = theirs[f"{ACTOR}kl_loss_coef"] if in_loss else theirs[f"{CONTROL}kl_coef"]
    # An adaptive controller multiplies: a coefficient of 0 stays.
    moves = number(theirs[f"{CONTROL}kl_coef"]) > 0
    found = {
        "measure": in_reward or in_loss,
        "mode": "loss" if in_loss else "reward",
        "estimator": lookup(OURS, "", str(kind).removesuffix("+")),
        "coef": number(coef) if in_reward or in_loss else 0.0,
        "horizon": whole(theirs[f"{CONTROL}horizon"]),
        "controller": theirs[f"{CONTROL}type"] if in_reward and moves else "fixed",
    }
    if found["controller"] == "adaptive":
        found["target_per_token"] = number(theirs[f"{CONTROL}target_kl"])
    return {PREFIX + name: value for name, value in found.items()}


def _kl_out(case: Case) -> Told:
    kl, adaptive = case.config.ppo.kl, case["ppo.kl.controller"] == "adaptive"
    loss = kl.mode == "loss"
    told = Told({"algorithm.use_kl_in_reward": kl.measure and not loss})
    told.theirs[f"{ACTOR}use_kl_loss"] = kl.measure and loss
    there = ESTIMATORS[kl.estimator]
    told.notes[PREFIX + "estimator"] = f"called {there}"
    if loss and kl.measure:
        told.theirs[f"{ACTOR}kl_loss_coef"] = kl.coef
        told.theirs[f"{ACTOR}kl_loss_type"] = there + ("" if kl.estimator == "k2" else "+")
        told.notes[PREFIX + "mode"] = "with the gradient of k2 for every estimator"
        if adaptive:
            told.refused.append(
                "ppo.kl.controller must be fixed with ppo.kl.mode loss for this target, but is adaptive; "
                "set it to fixed, or the mode to reward"
            )
    else:
        told.theirs["algorithm.kl_penalty"] = there
        told.theirs[f"{CONTROL}kl_coef"] = kl.coef
        told.notes[PREFIX + "mode"] = "a switch of its own"
        if loss:
            told.dropped[PREFIX + "mode"] = "no KL is measured"
    if kl.measure and not loss and case.config.ppo.needs_groups:
        told.notes[PREFIX + "mode"] += "; the KL goes into the score before the baseline"
    adaptive = kl.controller == "adaptive"
    told.theirs |= {f"{CONTROL}type": kl.controller}
    told.theirs |= {f"{CONTROL}horizon": kl.horizon} if adaptive else {}
    if adaptive:
        told.theirs[f"{CONTROL}target_kl"] = kl.target_per_token
        told.refused += per_token_target(case)
    return told
