"""Spaces as Optuna distributions and back. The one place where domains become Optuna's objects.

Optuna has no logit, no powers of two, and moves the upper bound of a grid that is not exact in decimals. Such a
parameter stands in the study by a coordinate, under a name that says so: ``ppo.gamma [logit]``. Whatever reads
parameters of a study, or adds points to it, goes through ``from_study`` and ``to_study``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces import Choice, Constant, Domain, Float, Int, Logit, Pow2, Space
from search_spaces.domains import log_odds

LOGIT, POW2, GRID = "logit", "log2", "step"


def coordinate(domain: Domain) -> str | None:
    """What Optuna sees of a domain: ``logit``, ``log2``, ``step`` (an index), or None: its values."""
    if isinstance(domain, Logit):
        return LOGIT
    if isinstance(domain, Pow2):
        return POW2
    if isinstance(domain, Float) and not _exact(domain):
        return GRID
    return None


def study_name(key: str, domain: Domain) -> str:
    """The parameter's name in the study."""
    kind = coordinate(domain)
    return key if kind is None else f"{key} [{kind}]"


def to_distribution(domain: Domain) -> BaseDistribution:
    """The Optuna distribution of a domain's coordinate; bounds are inclusive on both sides."""
    if isinstance(domain, Float):
        if not _exact(domain):
            return IntDistribution(0, domain.steps or 0)
        return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
    if isinstance(domain, Logit):
        return FloatDistribution(log_odds(domain.low), log_odds(domain.high))
    if isinstance(domain, Int):
        return IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
    if isinstance(domain, Pow2):
        return IntDistribution(*domain.exponents)
    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.values)
    if isinstance(domain, Constant):
        return CategoricalDistribution((domain.value,))
    raise TypeError(f"no Optuna distribution for {type(domain).__name__}")


def to_domain(distribution: BaseDistribution, kind: str | None = None) -> Domain:
    """The domain of an Optuna distribution.

    Args:
        distribution: Of a study.
        kind: The coordinate that its name tells; a grid's index needs the space to be read.
    """
    if isinstance(distribution, CategoricalDistribution):
        values = tuple(distribution.choices)
        return Choice(values) if len(values) > 1 else Constant(values[0])
    if not isinstance(distribution, FloatDistribution | IntDistribution) or kind == GRID:
        raise TypeError(f"no domain for {type(distribution).__name__} {kind or ''}")
    low, high, log = distribution.low, distribution.high, distribution.log
    if low == high:
        return Constant(low)
    if kind == LOGIT:
        return Logit(_expit(low), _expit(high))
    if kind == POW2:
        return Pow2(2 ** int(low), 2 ** int(high))
    if isinstance(distribution, IntDistribution):
        return Int(int(low), int(high), log=log, step=distribution.step)
    return Float(low, high, log=log, step=distribution.step)


def suggest(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """Values of the active parameters, parents first."""
    params: dict[str, Any] = {}
    for key, parameter in space.items():
        if key not in space.active(params):
            continue
        domain = parameter.domain
        if isinstance(domain, Constant):
            params[key] = domain.value
            continue
        params[key] = _value(domain, _asked(trial, study_name(key, domain), domain))
    return params


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """``{name in the study: distribution}`` of all that is searched."""
    return {
        study_name(key, p.domain): to_distribution(p.domain)
        for key, p in space.items()
        if not isinstance(p.domain, Constant)
    }


def to_study(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as the study holds them: names and coordinates of Optuna; constants are left out.

    Args:
        space: The space.
        params: Values of all or some of its parameters; a key that is not in the space is kept as it is.
    """
    stored: dict[str, Any] = {}
    for key, value in params.items():
        domain = space[key].domain if key in space else None
        if domain is None:
            stored[key] = value
        elif not isinstance(domain, Constant):
            stored[study_name(key, domain)] = _coordinate_of(domain, value)
    return stored


def from_study(space: Space, stored: Mapping[str, Any]) -> dict[str, Any]:
    """What ``suggest`` gave for a trial that holds ``stored``, its constants included."""
    params: dict[str, Any] = {}
    for key, parameter in space.items():
        domain, name = parameter.domain, study_name(key, parameter.domain)
        if key not in space.active(params):
            continue
        if isinstance(domain, Constant):
            params[key] = domain.value
        elif name in stored:
            params[key] = _value(domain, stored[name])
    return params


def _asked(trial: optuna.Trial, name: str, domain: Domain) -> Any:
    distribution = to_distribution(domain)
    if isinstance(distribution, FloatDistribution):
        low, high, step = distribution.low, distribution.high, distribution.step
        return trial.suggest_float(name, low, high, log=distribution.log, step=step)
    if isinstance(distribution, IntDistribution):
        low, high, step = distribution.low, distribution.high, distribution.step
        return trial.suggest_int(name, low, high, log=distribution.log, step=step)
    assert isinstance(distribution, CategoricalDistribution)
    return trial.suggest_categorical(name, distribution.choices)


def _value(domain: Domain, stored: Any) -> Any:
    """The value at a coordinate."""
    if isinstance(domain, Logit):
        return domain.from_log_odds(stored)
    if isinstance(domain, Pow2):
        return 2 ** int(stored)
    if isinstance(domain, Float) and not _exact(domain):
        assert domain.step is not None
        return domain.high if stored == domain.steps else domain.low + stored * domain.step
    return stored


def _coordinate_of(domain: Domain, value: Any) -> Any:
    """The coordinate of a value that lies in the domain; of another one, the value itself."""
    if not domain.contains(value):
        return value
    if isinstance(domain, Logit):
        # Rounding must not carry a bound out of the distribution.
        return min(max(log_odds(value), log_odds(domain.low)), log_odds(domain.high))
    if isinstance(domain, Pow2):
        return int(value).bit_length() - 1
    if isinstance(domain, Float) and not _exact(domain):
        assert domain.step is not None
        return round((value - domain.low) / domain.step)
    return value


def _exact(domain: Float) -> bool:
    """Whether Optuna keeps the upper bound: it counts steps in decimals."""
    if domain.step is None:
        return True
    low, high, step = (Decimal(str(v)) for v in (domain.low, domain.high, domain.step))
    return (high - low) % step == 0


def _expit(value: float) -> float:
    return 1 / (1 + math.exp(-value))
