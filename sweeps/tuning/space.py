"""Spaces as Optuna distributions. The one place where domains become a back end's objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces import Choice, Constant, Float, Int, Space


def to_distribution(domain: Any) -> BaseDistribution:
    """The Optuna distribution of a domain; bounds are inclusive on both sides."""
    if isinstance(domain, Float):
        return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
    if isinstance(domain, Int):
        return IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.values)
    if isinstance(domain, Constant):
        return CategoricalDistribution((domain.value,))
    raise TypeError(f"no Optuna distribution for {type(domain).__name__}")


def to_study(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters under the names and in the coordinates that the study has for them."""
    return dict(params)


def suggest(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """Values of the active parameters, parents first."""
    params: dict[str, Any] = {}
    for key, parameter in space.items():
        if key not in space.active(params):
            continue
        domain = parameter.domain
        if isinstance(domain, Float):
            params[key] = trial.suggest_float(
                key, domain.low, domain.high, log=domain.log, step=domain.step
            )
        elif isinstance(domain, Int):
            params[key] = trial.suggest_int(
                key, domain.low, domain.high, log=domain.log, step=domain.step
            )
        elif isinstance(domain, Constant):
            params[key] = domain.value
        else:
            params[key] = trial.suggest_categorical(key, domain.values)
    return params
