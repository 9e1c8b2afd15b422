"""``TrialConfig`` + ``{dotted key: value}`` -> a new ``TrialConfig``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from typing import Any

from rlhf_core.config.fields import dotted_fields, spelled, validate
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import ConfigError, nearest


@cache
def known_keys() -> tuple[str, ...]:
    """Every dotted key of a ``TrialConfig``, in schema order; ``NAME`` stands for a name of the user's own."""
    return tuple(key for key, _ in dotted_fields(TrialConfig))


@lru_cache(maxsize=1024)
def _known_beside(key: str) -> tuple[str, ...]:
    """``known_keys`` with the names of ``key`` in them; a sweep asks for the same few keys all the time."""
    return tuple(spelled(known_keys(), key))


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


def flat(tree: Mapping[str, Any], whole: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` -> ``{"a.b": 1}``; empty mappings, and those of keys in ``whole``, stay values."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and dotted not in whole:
            leaves |= flat(value, whole, f"{dotted}.")
        else:
            leaves[dotted] = value
    return leaves


def flatten(config: TrialConfig) -> dict[str, Any]:
    """``{dotted key: value}`` of every option."""
    known = frozenset(known_keys())
    values = flat(config.model_dump(), known)
    return {k: v for k, v in values.items() if k in known or not isinstance(v, Mapping)}


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


def _with_whole(tree: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """``tree`` with options that are mappings themselves replaced, not merged."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            *groups, leaf = key.split(".")
            node = tree
            for name in groups:
                node = node[name]
            node[leaf] = dict(value)
    return tree


def apply(config: TrialConfig, values: Mapping[str, Any], source: str = "overrides") -> TrialConfig:
    """A new configuration with ``values`` in place.

    Args:
        config: Where every other option comes from.
        values: Dotted keys and their values.
        source: Starts every line of the error.

    Raises:
        ConfigError: For an unknown key (with near misses) or a value that breaks a rule.
    """
    known = {key: _known_beside(key) for key in values}
    problems = [
        f"{source}: unknown key {key!r}{nearest(key, known[key])}"
        for key in values
        if key not in known[key]
    ]
    right = {key: value for key, value in values.items() if key in known[key]}
    try:
        changed = validate(
            TrialConfig, _with_whole(merge(config.model_dump(), nest(right)), right), source
        )
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return changed
