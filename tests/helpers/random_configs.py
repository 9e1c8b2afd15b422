"""Random valid configurations, drawn from the schema itself, so that a new option is drawn as well."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st

from rlhf_core.config import TrialConfig, apply
from rlhf_core.config.fields import NAME, dotted_fields
from rlhf_core.errors import ConfigError

FIELDS = dict(dotted_fields(TrialConfig))
TEXTS = {
    "data.task": ["builtin:reviews", "tasks/own"],
    "data.prompts": ["data/train.jsonl", "data/train.txt", "with space/it's.jsonl"],
    "checkpoint.metric": ["eval/heldout", "reward/proxy"],
    "model.policy": ["models/policy", "org/policy-1.5b", 'odd path/$5 "model"'],
    "reward.model": ["models/reward", "org/reward"],
}
FUNCTION = ["package.module:function"]
NAMES = ["brevity", "style"]
_PAIR = [{"roles": ["learner", "rollout"], "gpus": 2}]
_TRAINERS = ["learner", "critic", "reference", "reward"]
WHOLE: dict[str, list[Any]] = {
    "resources.colocate": [
        [],
        _PAIR,
        *([{"roles": [*_TRAINERS, "rollout"], "gpus": gpus}] for gpus in (1, 2, 4)),
        *([{"roles": _TRAINERS, "gpus": gpus}] for gpus in (1, 2)),
    ],
    "resources.labels": [{"zone": "a"}, {"zone": ["a", "b"]}, {"zone": "!a"}],
    "resources.roles.rollout.custom": [{"fast": 1.0}],
    "rollout.stop": [[], ["."]],
    "model.lora.targets": [["all-linear"], ["q_proj"], ["q_proj", "mlp.up_proj"]],
}
"""Options whose values are lists or mappings."""
_EACH = tuple(f"resources.roles.{role}.workers" for role in (*_TRAINERS, "rollout"))
BESIDE: dict[str, list[dict[str, Any]]] = {
    "resources.colocate": [
        {},
        *({"resources.layout": "colocated", **dict.fromkeys(_EACH, n)} for n in (1, 2, 4)),
    ],
    "reward.extra.NAME.weight": [{}, {"reward.extra.style.model": "org/style"}],
    "ppo.kl.horizon": [{}, {"ppo.kl.controller": "adaptive", "ppo.kl.target_per_token": 0.1}],
    "sync.max_staleness": [{}, {"sync.mode": "async", "resources.layout": "split"}],
    "model.lora.targets": [{}, {"model.lora.rank": 8}],
    "optim.zero_stage": [{}, {"optim.engine": "deepspeed"}],
    "optim.policy.min_lr_ratio": [{}, {"optim.policy.schedule": "cosine"}],
}
"""Options that alone break a rule, with some that let them in."""


def value_of(key: str) -> st.SearchStrategy[Any]:
    """Values that the option's type and bounds allow, small ones for counts."""
    if key in WHOLE:
        return st.sampled_from(WHOLE[key])
    field = FIELDS[key]
    bounds: dict[str, Any] = {}
    for item in field.metadata:
        for name in ("ge", "gt", "le", "lt"):
            bounds[name] = getattr(item, name, bounds.get(name))
    return _typed(key, field.annotation, bounds)


def _typed(key: str, annotation: Any, bounds: dict[str, Any]) -> st.SearchStrategy[Any]:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        inner = next(a for a in get_args(annotation) if a is not type(None))
        return st.none() | _typed(key, inner, bounds)
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if annotation is bool:
        return st.booleans()
    if annotation is str:
        return st.sampled_from(TEXTS.get(key, FUNCTION))
    if annotation is int:
        low, high = bounds.get("ge") or 0, min(bounds.get("le") or 64, 64)
        return st.integers(low, high) | st.sampled_from([1, 2, 4, 8])
    if annotation is float:
        return _real(bounds)
    return st.just(FIELDS[key].get_default(call_default_factory=True))


def _real(bounds: dict[str, Any]) -> st.SearchStrategy[float]:
    """Numbers in the bounds, round ones and the ends often."""
    low, above, high, below = (bounds.get(name) for name in ("ge", "gt", "le", "lt"))
    bottom = low if low is not None else above if above is not None else -1e6
    top = high if high is not None else below if below is not None else max(bottom, 0) + 10
    often = [v for v in (0.25, 0.5, 1.0, 2.0) if bottom < v < top]
    often += [float(end) for end in (low, high) if end is not None and abs(end) <= 1e6]
    numbers = st.floats(
        bottom,
        min(top, 1e6),
        allow_nan=False,
        exclude_min=low is None and above is not None,
        exclude_max=high is None and below is not None,
    )
    return numbers | st.sampled_from(often) if often else numbers


def configs(exportable: Callable[[TrialConfig], object]) -> st.SearchStrategy[TrialConfig]:
    """Configurations for which ``exportable`` raises no ConfigError: changes that break a rule are left out."""

    @st.composite
    def build(draw: st.DrawFn) -> TrialConfig:
        config = TrialConfig()
        groups = st.lists(st.sampled_from(sorted(FIELDS)), max_size=40, unique=True)
        for key in draw(groups):
            named = key.replace(NAME, draw(st.sampled_from(NAMES)))
            change = {named: draw(value_of(key)), **draw(st.sampled_from(BESIDE.get(key, [{}])))}
            try:
                changed = apply(config, change)
                exportable(changed)
            except ConfigError:
                continue
            config = changed
        return config

    return build()
