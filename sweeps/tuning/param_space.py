"""Spaces as Tune's ``param_space``, for a ``tune.Tuner`` of your own.

Tune draws key by key, so that a parameter with a condition, or one that closes a rule, waits for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import tune
from ray.tune.search import sample

from rlhf_core.errors import ConfigError
from search_spaces import Choice, Constant, Domain, Float, Int, Pow2, Rule, Space

MAX_REJECTIONS = 100
# Takes whatever Tune hands to a sampler as the state of its generator.
UNIT = tune.uniform(0.0, 1.0)


class ByShare(sample.Uniform):
    """Draws through ``domain.at``: what Tune's own samplers do not know."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def sample(
        self, domain: sample.Domain, config: Any = None, size: int = 1, random_state: Any = None
    ) -> Any:
        """One value, or a list of ``size``; ``config`` changes nothing."""
        shares = [UNIT.sample(random_state=random_state) for _ in range(size)]
        values = [self.domain.at(share) for share in shares]
        return values if size > 1 else values[0]

    def __str__(self) -> str:
        return str(self.domain)


def to_tune(domain: Domain) -> Any:
    """Tune's domain; a constant stays a value. Tune leaves upper bounds out, so integers get one more."""
    if isinstance(domain, Constant):
        return domain.value
    if isinstance(domain, Choice):
        return tune.choice(list(domain.values))
    if isinstance(domain, Pow2):
        return tune.choice(list(domain.values))
    if isinstance(domain, Int) and domain.step == 1:
        drawn = tune.lograndint if domain.log else tune.randint
        return drawn(domain.low, domain.high + 1)
    if isinstance(domain, Float) and domain.step is None:
        return (tune.loguniform if domain.log else tune.uniform)(domain.low, domain.high)
    kind = sample.Integer if isinstance(domain, Int) else sample.Float
    made = kind(domain.low, domain.high)
    made.set_sampler(ByShare(domain))
    return made


def from_tune(drawn: Any) -> Domain:
    """The domain behind a value of a ``param_space``.

    Raises:
        ConfigError: For what has no counterpart: a function, a normal distribution, a quantised range.
    """
    sampler = getattr(drawn, "sampler", None)
    if isinstance(sampler, ByShare):
        return sampler.domain
    if not isinstance(drawn, sample.Domain):
        return Constant(drawn)
    if isinstance(drawn, sample.Categorical):
        return Choice(tuple(drawn.categories))
    if isinstance(drawn, sample.Integer | sample.Float) and isinstance(
        sampler, sample.Uniform | sample.LogUniform | None
    ):
        log = isinstance(sampler, sample.LogUniform)
        if isinstance(drawn, sample.Integer):
            return Int(drawn.lower, drawn.upper - 1, log=log)
        return Float(drawn.lower, drawn.upper, log=log)
    raise ConfigError(
        f"param_space: {drawn.domain_str} of {type(drawn).__name__} has no counterpart; use uniform, loguniform, "
        "randint, lograndint or choice"
    )


class Dependent(sample.Domain):
    """A parameter that is drawn after those that its condition and its rules look at.

    Args:
        space: Where it stands.
        key: Its key.
        base: ``{dotted key: value}`` of a trial without parameters.
    """

    def __init__(self, space: Space, key: str, base: Mapping[str, Any]) -> None:
        self.space, self.key, self.base = space, key, base
        earlier = list(space)[: list(space).index(key)]
        # A rule is kept by the last of its parameters.
        self.rules = [r for r in space.rules if key in r.keys and not _after(space, key, r)]
        self.parents = _parents(space, key)
        self.needs = [
            k for k in earlier if k in self.parents or any(k in r.keys for r in self.rules)
        ]

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """A value, given those of ``needs`` in ``config``; where the condition does not hold, that of the base."""
        # Tune's config raises where one of them is not drawn yet, and asks again later.
        known = {key: getattr(config, key) for key in self.needs}
        if self.key not in self.space.active({k: known[k] for k in self.parents}):
            return self.base[self.key]
        sampler = ByShare(self.space[self.key].domain)
        for _ in range(MAX_REJECTIONS):
            value = sampler.sample(self, random_state=random_state)
            values = {**self.base, **known, self.key: value}
            if not any(rule.broken(values) for rule in self.rules):
                break
        return value

    def is_valid(self, value: Any) -> bool:
        """Whether it may have that value."""
        return value == self.base.get(self.key) or self.space[self.key].domain.contains(value)

    @property
    def domain_str(self) -> str:
        return f"{self.space[self.key]}"


def _parents(space: Space, key: str) -> list[str]:
    found, when = [], space[key].when
    while when is not None:
        found.append(when.key)
        when = space[when.key].when
    return found


def _after(space: Space, key: str, rule: Rule) -> bool:
    """Whether the rule looks at a parameter that is drawn later than ``key``."""
    order = list(space)
    return any(k in space and order.index(k) > order.index(key) for k in rule.keys)


def param_space(space: Space, base: Mapping[str, Any]) -> dict[str, Any]:
    """The ``param_space`` of a ``tune.Tuner`` whose trainable reads dotted keys, such as ``PPOTrainable``.

    A parameter whose condition does not hold has the value of ``base``, which is what leaving it out means. One
    that closes a rule is drawn again until the rule holds, at most a hundred times; ``fits_cluster`` is not asked.
    Tune's own random search takes every space, a search algorithm of Tune's those without conditions, rules,
    logits and grids.

    Example:
        >>> tune.Tuner(PPOTrainable, param_space={"base": "tiny", **param_space(space, loaded.values)})

    Args:
        space: The space.
        base: ``{dotted key: value}`` of a trial without parameters, such as ``load_sweep(...).values``.

    Raises:
        ConfigError: ``base`` has no value for a parameter with a condition.
    """
    missing = [key for key, p in space.items() if p.when is not None and key not in base]
    if missing:
        raise ConfigError(
            [f"param_space: base has no {key!r}, which has a condition; name it" for key in missing]
        )
    made = {key: Dependent(space, key, base) for key in space}
    return {
        key: made[key] if made[key].needs or made[key].rules else to_tune(p.domain)
        for key, p in space.items()
    }
