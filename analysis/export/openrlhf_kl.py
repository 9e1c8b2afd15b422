"""Export to and import from OpenRLHF: off-policy correction, and the KL to the reference."""

from __future__ import annotations

from typing import Any

from analysis.export.openrlhf_dialects import Dialect
from analysis.export.rules import (
    Case,
    Rule,
    Told,
    Unreadable,
    Values,
    lookup,
    number,
    pair,
    truth,
    whole,
)
from analysis.export.shared import per_token_target

CORRECTION = ("ppo.correction.kind", "ppo.correction.low", "ppo.correction.high")


def _correction_told(case: Case) -> tuple[Told, list[float]]:
    """What all dialects share: gspo, whose correction is another one, and the bounds."""
    kind, low, high = (case[key] for key in CORRECTION)
    told = Told()
    if kind != "none" and case["ppo.ratio"] == "sequence":
        told.refused.append(
            f"ppo.correction.kind must be none with ppo.ratio sequence for this target, but is {kind}: "
            "gspo there takes the sampler's log-probabilities as the old ones; set it to none"
        )
    return told, [0.0 if kind == "tis" else low, high]


def _bounds(kind: str, low: float, high: float) -> dict[str, Any]:
    if kind == "none":
        return {CORRECTION[0]: kind}
    if kind == "tis" and low > 0:
        raise Unreadable(f"tis has no lower bound here, but is bounded by {low:g} there")
    ends = {CORRECTION[1]: low} if kind != "tis" else {}
    return {CORRECTION[0]: kind, CORRECTION[2]: high, **ends}


def correction_split() -> Rule:
    """Level, mode and gating, of 0.11.2."""
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


def correction_typed() -> Rule:
    """One type, before 0.11.2."""
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


def kl_rule(spoken: Dialect) -> Rule:
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

    keys = ("coef", "mode", "estimator", "controller", "target_per_response", "target_per_token",
            "horizon", "measure")  # fmt: skip
    return Rule(
        tuple(prefix + key for key in keys), names, lambda case: _kl_out(case, spoken), _kl_back
    )


def _kl_back(theirs: Values) -> dict[str, Any]:
    prefix = "ppo.kl."
    coef, target = number(theirs["algo.kl.init_coef"]), theirs["algo.kl.target"]
    adaptive: dict[str, Any] = {"controller": "fixed"}
    if target is not None and coef > 0:
        adaptive = {"controller": "adaptive", "target_per_token": number(target)}
    found = {
        "coef": coef,
        "estimator": lookup({k: k for k in ("k1", "k2", "k3")}, "", theirs["algo.kl.estimator"]),
        "mode": "loss" if truth(theirs["algo.kl.use_loss"]) else "reward",
        "horizon": whole(theirs["algo.kl.horizon"]),
        "measure": coef > 0,
        **adaptive,
    }
    return {prefix + name: value for name, value in found.items()}


def _kl_out(case: Case, spoken: Dialect) -> Told:
    prefix = "ppo.kl."
    kl, loss = case.config.ppo.kl, case["ppo.kl.mode"] == "loss"
    adaptive = kl.controller == "adaptive"
    told = Told(
        {
            "algo.kl.init_coef": kl.coef,
            "algo.kl.estimator": kl.estimator,
            "algo.kl.use_loss": loss,
            "algo.kl.target": kl.target_per_token if adaptive else None,
            "algo.kl.horizon": kl.horizon if adaptive else None,
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
    if adaptive:
        told.notes[prefix + "controller"] = "adaptive where algo.kl.target is given"
        told.refused += per_token_target(case)
    return told
