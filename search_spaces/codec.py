"""Spaces in and out of files: a stable JSON form for programs, a short YAML form for people.

The JSON form is a list: the order of parameters is part of a space, and JSON objects have none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from search_spaces.conditions import When
from search_spaces.domains import Choice, Constant, Domain, Float, Int, Logit, Pow2, Scalar
from search_spaces.errors import SpaceError, nearest
from search_spaces.rules import Rule, parse_rules
from search_spaces.space import Parameter, Space, structure_problems

SCHEMA_VERSION = 2
# Version 1 has neither rules nor the types logit and pow2; else it reads the same.
_READABLE = (1, 2)
_SINCE_2 = ("logit", "pow2")

_FIELDS: dict[str, tuple[str, ...]] = {
    "float": ("low", "high", "log", "step"),
    "logit": ("low", "high"),
    "int": ("low", "high", "log", "step"),
    "pow2": ("low", "high"),
    "choice": ("values",),
    "constant": ("value",),
}
_BUILDERS: dict[str, Callable[..., Domain]] = {
    "float": Float,
    "logit": Logit,
    "int": Int,
    "pow2": Pow2,
    "choice": Choice,
    "constant": Constant,
}
_SHORT_OPTIONS: dict[str, tuple[str, ...]] = {
    "float": ("log", "logit", "step", "when", "centre"),
    "int": ("log", "pow2", "step", "when", "centre"),
    "choice": ("when", "centre"),
    "constant": ("when",),
}
# What a parameter in the short form names, once.
KINDS = frozenset(_SHORT_OPTIONS)
_EXAMPLE = "{float: [0.1, 0.3]}, {int: [1, 4]}, {choice: [1, 2]} or {constant: 1}"
# YAML 1.1, which PyYAML reads, takes a number with an exponent but without a point for a string.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def to_dict(space: Space) -> dict[str, Any]:
    """The space as JSON-able data; ``from_dict`` gives an equal space in the same order."""
    return {
        "schema_version": SCHEMA_VERSION,
        "parameters": [_entry(key, parameter) for key, parameter in space.items()],
        "rules": [
            {"kind": rule.kind, "terms": list(rule.terms), "times": rule.times}
            for rule in space.rules
        ],
    }


def from_dict(data: Mapping[str, Any]) -> Space:
    """The space that ``to_dict`` wrote, in this version or an earlier one.

    Raises:
        SpaceError: Another schema version, a field is missing, unknown or invalid. All problems are
            reported together.
    """
    if not isinstance(data, Mapping):
        raise SpaceError(f"a stored space is a mapping, got {data!r}; pass the result of to_dict")
    version = data.get("schema_version")
    if version not in _READABLE or isinstance(version, bool):
        raise SpaceError(
            f"schema_version must be {' or '.join(map(str, _READABLE))}, got {version!r}; "
            "read the file with the release that wrote it"
        )
    entries = data.get("parameters")
    if not isinstance(entries, list):
        raise SpaceError(f"parameters must be a list, got {entries!r}; write one entry a parameter")
    known = ("schema_version", "parameters", *(("rules",) if version > 1 else ()))
    _refuse_unknown(data, known, "a stored space")
    keyed: list[tuple[str, Any]] = []
    for index, entry in enumerate(entries):
        key = entry.get("key") if isinstance(entry, Mapping) else None
        if not isinstance(key, str):
            raise SpaceError(f"parameters[{index}]: needs a string `key`, got {entry!r}; add it")
        if version == 1 and entry.get("type") in _SINCE_2:
            raise SpaceError(
                f"{key}: a space of schema_version 1 has no type {entry['type']!r}; write version 2"
            )
        keyed.append((key, entry))
    read_rules = functools.partial(_stored_rules, data.get("rules", []))
    return _build(keyed, _stored_parameter, read_rules, Space({}))


def parse(mapping: Mapping[str, Any], rules: object = (), onto: Space | None = None) -> Space:
    """The space that a user wrote in the short form.

    Example:
        >>> parse({"optim.policy.lr": {"float": ["1e-5", 1e-3], "log": True}})
        Space({'optim.policy.lr': Parameter(domain=Float(low=1e-05, high=0.001, log=True, ...

    Args:
        mapping: Dotted key to ``{float: [low, high]}``, ``{int: [low, high]}``, ``{choice: [...]}``
            or ``{constant: value}``, with the options ``log``, ``logit`` (float), ``pow2`` (int),
            ``step``, ``centre`` and ``when: {other.key: value or [values]}``. Strings like
            ``"1e-5"`` are numbers.
        rules: As for ``rules.parse_rules``.
        onto: A space that this one adds to; where both have a key, the mapping counts.

    Raises:
        SpaceError: All problems of the mapping, each with its key.
    """
    if not isinstance(mapping, Mapping):
        raise SpaceError(
            f"a space maps dotted keys to domains, got {mapping!r}; "
            "write for example ppo.epochs: {int: [1, 4]}"
        )
    read_rules = functools.partial(_short_rules, rules)
    return _build(list(mapping.items()), _short_parameter, read_rules, onto or Space({}))


def _build(
    entries: list[tuple[str, Any]],
    read: Callable[[Any], Parameter],
    read_rules: Callable[[], tuple[Rule, ...]],
    onto: Space,
) -> Space:
    parameters: dict[str, Parameter] = {}
    problems: list[str] = []
    seen: set[str] = set()
    for key, entry in entries:
        if key in seen:
            problems.append(f"{key}: a key may appear once, got it twice; remove one")
        seen.add(key)
        try:
            parameters[key] = read(entry)
        except SpaceError as error:
            problems += [f"{key}: {problem}" for problem in error.problems]
    parameters = {**onto, **parameters}
    problems += structure_problems(parameters, elsewhere=seen - parameters.keys())
    rules: tuple[Rule, ...] = ()
    try:
        rules = read_rules()
    except SpaceError as error:
        problems += error.problems
    if problems:
        raise SpaceError(problems)
    return Space(parameters, (*onto.rules, *rules))


def _stored_rules(entries: Any) -> tuple[Rule, ...]:
    fields = {"kind", "terms", "times"}
    if not isinstance(entries, list):
        raise SpaceError(f"rules must be a list, got {entries!r}; write one entry a rule")
    for number, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or set(entry) != fields:
            raise SpaceError(
                f"rules[{number}] must hold {sorted(fields)}, got {entry!r}; write all of them"
            )
    return tuple(Rule(e["kind"], tuple(e["terms"]), e["times"]) for e in entries)


def _short_rules(entries: Any) -> tuple[Rule, ...]:
    """Rules with strings such as ``"1e-5"`` read as numbers."""

    def read(value: Any) -> Any:
        return [_number(v) for v in value] if isinstance(value, list | tuple) else _number(value)

    if isinstance(entries, list | tuple):
        entries = [
            {key: read(value) for key, value in entry.items()}
            if isinstance(entry, Mapping)
            else entry
            for entry in entries
        ]
    return parse_rules(entries)


def _entry(key: str, parameter: Parameter) -> dict[str, Any]:
    name = next(n for n, kind in _BUILDERS.items() if type(parameter.domain) is kind)
    entry: dict[str, Any] = {"key": key, "type": name}
    for field in _FIELDS[name]:
        value = getattr(parameter.domain, field)
        entry[field] = list(value) if isinstance(value, tuple) else value
    when = parameter.when
    entry["when"] = {"key": when.key, "values": list(when.values)} if when else None
    entry["centre"] = parameter.centre
    return entry


def _stored_parameter(entry: Mapping[str, Any]) -> Parameter:
    name = entry.get("type")
    if name not in _FIELDS:
        raise SpaceError(f"type must be one of {list(_FIELDS)}, got {name!r}; correct it")
    fields = _FIELDS[name]
    expected = ("key", "type", *fields, "when", "centre")
    _refuse_unknown(entry, expected, f"a stored {name}")
    missing = [f for f in expected if f not in entry]
    if missing:
        raise SpaceError(f"a stored {name} needs {', '.join(missing)}; add what is missing")
    stored = entry["when"]
    when = None
    if stored is not None:
        if not isinstance(stored, Mapping) or set(stored) != {"key", "values"}:
            raise SpaceError(f"when must hold key and values, got {stored!r}; write both or null")
        when = When(stored["key"], stored["values"])
    return Parameter(_BUILDERS[name](**{f: entry[f] for f in fields}), when, entry["centre"])


def _short_parameter(entry: Any) -> Parameter:
    kinds = [k for k in _SHORT_OPTIONS if k in entry] if isinstance(entry, Mapping) else []
    if len(kinds) != 1:
        raise SpaceError(f"needs exactly one kind of domain, got {entry!r}; write {_EXAMPLE}")
    name = kinds[0]
    problems: list[str] = []

    def collect(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except SpaceError as error:
            problems.extend(error.problems)
            return None

    collect(lambda: _refuse_unknown(entry, (name, *_SHORT_OPTIONS[name]), f"a {name}"))
    domain = collect(lambda: _short_domain(name, entry))
    when = collect(lambda: _short_when(entry["when"])) if "when" in entry else None
    if problems:
        raise SpaceError(problems)
    return Parameter(domain, when, _typed(name, entry.get("centre")))


def _short_domain(name: str, entry: Mapping[str, Any]) -> Domain:
    spec = entry[name]
    if name == "constant":
        return Constant(_number(spec))
    if not isinstance(spec, list | tuple):
        raise SpaceError(f"{name} needs a list, got {spec!r}; write {_EXAMPLE}")
    if name == "choice":
        return Choice(tuple(_number(v) for v in spec))
    if len(spec) != 2:
        raise SpaceError(
            f"{name} needs [low, high], got {spec!r}; write two numbers, or use choice"
        )
    bounds = (_typed(name, spec[0]), _typed(name, spec[1]))
    scale = next((o for o in ("logit", "pow2") if o in _SHORT_OPTIONS[name] and o in entry), None)
    if scale is not None and not isinstance(entry[scale], bool):
        raise SpaceError(f"{scale} must be true or false, got {entry[scale]!r}; write one of these")
    options = {o: _typed(name, entry[o]) for o in ("log", "step") if o in entry}
    if scale is None or not entry[scale]:
        return _BUILDERS[name](*bounds, **options)
    if options:
        raise SpaceError(f"{scale} stands alone, got it with {', '.join(options)}; drop one")
    return _BUILDERS[scale](*bounds)


def _short_when(condition: Any) -> When:
    if not isinstance(condition, Mapping) or len(condition) != 1:
        raise SpaceError(
            f"when needs one key, got {condition!r}; write when: {{other.key: value}} or "
            "when: {other.key: [value, value]}"
        )
    ((key, values),) = condition.items()
    listed = values if isinstance(values, list | tuple) else [values]
    return When(key, tuple(_number(v) for v in listed))


def _number(value: Any) -> Scalar:
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    return value  # type: ignore[no-any-return]  # Judged by the domain it goes into.


def _typed(name: str, value: Any) -> Any:
    value = _number(value)
    if name == "int" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _refuse_unknown(entry: Mapping[str, Any], known: tuple[str, ...], owner: str) -> None:
    problems = [
        f"{owner} has no field {field!r}{nearest(str(field), known) or f': use {list(known)}'}"
        for field in entry
        if field not in known
    ]
    if problems:
        raise SpaceError(problems)
