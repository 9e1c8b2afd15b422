"""``TrialConfig`` + ``{dotted key: value}`` -> a new ``TrialConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from rlhf_core.config.fields import dotted_fields, validate
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import ConfigError, nearest


@cache
def known_keys() -> tuple[str, ...]:
    """Every dotted key of a ``TrialConfig``, in schema order."""
    return tuple(key for key, _ in dotted_fields(TrialConfig))


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` -> ``{"a": {"b": 1}}``."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *groups, leaf = key.split(".")
        node = tree
        for name in groups:
            node = node.setdefault(name, {})
        node[leaf] = value
    return tree


def flatten(config: TrialConfig) -> dict[str, Any]:
    """``{dotted key: value}`` of every option."""
    flat: dict[str, Any] = {}
    for key in known_keys():
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name)
        flat[key] = value
    return flat


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings merged key by key; ``top`` wins."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def apply(config: TrialConfig, values: Mapping[str, Any], source: str = "overrides") -> TrialConfig:
    """A new configuration with ``values`` in place.

    Args:
        config: Where every other option comes from.
        values: Dotted keys and their values.
        source: Starts every line of the error.

    Raises:
        ConfigError: For an unknown key (with near misses) or a value that breaks a rule.
    """
    known = known_keys()
    problems = [
        f"{source}: unknown key {key!r}{nearest(key, known)}" for key in values if key not in known
    ]
    right = {key: value for key, value in values.items() if key in known}
    try:
        changed = validate(TrialConfig, merge(config.model_dump(), nest(right)), source)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return changed
