"""Good first values of a table's parameters: those that the presets of spaces know for its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.config import resolve_trial
from rlhf_core.errors import ConfigError
from rlhf_core.models.policy import policy_parameters
from search_spaces import Domain, Float, Int, Scalar, presets
from search_spaces.domains import is_number


def known_centres(base: Mapping[str, Any]) -> dict[str, Scalar]:
    """``{dotted key: centre}`` for the model of a trial's configuration; none where its size is not known."""
    try:
        size = policy_parameters(resolve_trial(dict(base), "base"))
    except ConfigError:
        # What a table was recorded with may be gone; its curves do not depend on it.
        return {}
    return {} if size is None else presets.centres(size)


def within(domain: Domain, centre: Scalar) -> Scalar:
    """The value of the domain nearest to a centre; None where it is of another kind."""
    if isinstance(domain, Float | Int) and is_number(centre):
        centre = min(max(centre, domain.low), domain.high)
    return centre if domain.contains(centre) else None
