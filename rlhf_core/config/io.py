"""Configuration files: YAML (or JSON) in, YAML and JSON out.

Precedence: defaults < the file (and what it names in ``extends``) < overrides on the command line.
"""

from __future__ import annotations

import copy
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config.fields import validate
from rlhf_core.config.overrides import merge
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import ConfigError, nearest

_BOOL, _FLOAT, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("bool", "float", "merge"))


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads ``1e-5`` as a number and ``off`` as text, and refuses a key written twice."""

    # YAML 1.1 also takes on, off, yes and no for truth values; `off` is the value of an option here.
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which ``_Loader`` would read as a number."""


_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), "tTfF")
# YAML 1.1 wants a dot in a float; people write learning rates without one.
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        _FLOAT,
        re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?([eE][-+]?\d+)$|^[-+]?\.\d+([eE][-+]?\d+)?$"),
        "-+0123456789.",
    )


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"a key is text, but {key!r} is not", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is written twice", key_node.start_mark
            )
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


# No configuration holds as many values; a few anchors within anchors make billions.
MOST_VALUES = 100_000


def parse_yaml(text: str, source: str) -> Any:
    """Plain values of a YAML text; a syntax error becomes one line with its place."""
    try:
        values = yaml.load(text, _Loader)
        count = _count(values, {})
    except ValueError as error:
        # Something that looks like a date but is none, for example.
        raise ConfigError(f"{source}: is no valid YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: is nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1} column {mark.column + 1}" if mark else ""
        what = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigError(f"{source}:{place} is no valid YAML: {what}") from None
    if count > MOST_VALUES:
        raise ConfigError(
            f"{source}: holds more than {MOST_VALUES:,} values once its anchors (&, *) are written out; "
            "write them out, or leave them away"
        )
    return values


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values there are with every anchor written out."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        items = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(item, known) for item in items)
    return known[id(value)]


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping a YAML or JSON file holds.

    Raises:
        ConfigError: If the file is missing, unreadable, no YAML, or holds anything but a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        kind = "is empty" if values is None else f"is a {type(values).__name__}"
        raise ConfigError(
            f"{path}: a configuration is a mapping of keys to values, but this {kind}"
        )
    return values


def preset_names() -> tuple[str, ...]:
    """Names of the trial presets that come with the package."""
    folder = resources.files("rlhf_core.config") / "presets"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml")))


def load_preset(name: str) -> dict[str, Any]:
    """Plain values of the trial preset ``name``."""
    if name not in preset_names():
        raise ConfigError(
            f"no trial preset {name!r}; there are {', '.join(preset_names())}"
            + nearest(name, preset_names())
        )
    return copy.deepcopy(_preset(name))


@cache
def _preset(name: str) -> dict[str, Any]:
    """Read once: a sweep resolves its base many times."""
    text = (resources.files("rlhf_core.config") / "presets" / f"{name}.yaml").read_text("utf-8")
    values: dict[str, Any] = parse_yaml(text, name)
    return values


def resolve_trial(values: dict[str, Any] | str, source: str) -> TrialConfig:
    """A ``TrialConfig`` from a preset's name, or from values that may name one in ``extends``."""
    if isinstance(values, str):
        values = {"extends": values}
    values = dict(values)
    base = values.pop("extends", None)
    if base is not None:
        if not isinstance(base, str):
            raise ConfigError(f"{source}: extends is the name of a trial preset, but is {base!r}")
        values = merge(load_preset(base), values)
    return validate(TrialConfig, values, source)


def load_trial(path: Path) -> TrialConfig:
    """The ``TrialConfig`` of a YAML or JSON file."""
    return resolve_trial(read_mapping(path), str(path))


def dump_yaml(config: TrialConfig, header: str = "") -> str:
    """``config`` as YAML, every option written, ``header`` as comment lines above."""
    comment = "".join(f"# {line}\n" if line else "#\n" for line in header.splitlines())
    values = config.model_dump()
    return comment + yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
