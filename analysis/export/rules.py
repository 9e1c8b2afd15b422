"""Rules of an export table: our keys, their settings, and the way between them in both directions.

A table is a tuple of rules. A key that no rule names is dropped, and said to be; a rule that cannot express a
value says so itself. Nothing here imports torch or ray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.export.effect import without_effect
from rlhf_core.config import TrialConfig, flatten, known_keys
from rlhf_core.config.fields import NAME, spelled

Values = Mapping[str, Any]
NEVER = 1e9
"""A bound that no value reaches, for a target that cannot be told to leave out a bound."""


class Unreadable(ValueError):  # noqa: N818 - a message, no failure
    """A foreign value that has no counterpart here; the importer lists it and keeps the default."""


@dataclass(frozen=True)
class Var:
    """A shell or environment variable in place of a value that the configuration does not name."""

    name: str
    what: str


@dataclass(frozen=True)
class Case:
    """One configuration with its options by dotted key."""

    config: TrialConfig
    flat: Values

    @classmethod
    def of(cls, config: TrialConfig) -> Case:
        return cls(config, flatten(config))

    def __getitem__(self, key: str) -> Any:
        return self.flat[key]

    @property
    def responses(self) -> int:
        """Responses in one optimiser step."""
        minibatches: int = self["ppo.minibatches"]
        return self.config.episodes_per_iteration // minibatches


@dataclass
class Told:
    """What a rule makes of one configuration.

    Attributes:
        theirs: Their settings; None leaves one out.
        notes: Our key -> how its value was converted.
        dropped: Our key -> what happens there instead.
        written: Keys, each with a note, that are written though they have no effect here.
        refused: One line for each value that would make another algorithm, or a run that does not start.
    """

    theirs: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rule:
    """Some of our keys and the settings of the target that express them.

    Attributes:
        keys: Our dotted keys.
        theirs: Their settings with the defaults that hold there where one is left out.
        out: Configuration -> ``Told``.
        back: Their settings, defaults filled in -> our values. Raises ``Unreadable``.
    """

    keys: tuple[str, ...]
    theirs: Values
    out: Callable[[Case], Told]
    back: Callable[[Values], dict[str, Any]]


Table = tuple[Rule, ...]


def same(key: str, name: str, default: Any, read: Callable[[Any], Any]) -> Rule:
    """Carried over as it is."""
    return Rule(
        (key,),
        {name: default},
        lambda case: Told({name: case[key]}),
        lambda theirs: {key: read(theirs[name])},
    )


def bound(key: str, name: str, default: Any) -> Rule:
    """A bound that is null here where it is off, and out of reach there."""

    def out(case: Case) -> Told:
        if case[key] is not None:
            return Told({name: case[key]})
        return Told({name: NEVER}, {key: "off: a bound that no value reaches"})

    def back(theirs: Values) -> dict[str, Any]:
        value = optional(number)(theirs[name])
        return {key: None if value is None or value >= NEVER else value}

    return Rule((key,), {name: default}, out, back)


def choice(key: str, name: str, default: Any, names: Values, remedy: str) -> Rule:
    """One of several; a value they do not have is refused, since the run would be another one."""

    def out(case: Case) -> Told:
        ours = case[key]
        if ours not in names:
            have = ", ".join(map(str, names))
            return Told(
                refused=[f"{key} must be one of {have} for this target, but is {ours}; {remedy}"]
            )
        there = names[ours]
        notes = {} if there == ours else {key: f"{ours} is called {there}"}
        return Told({name: there}, notes)

    ours_of = {there: ours for ours, there in names.items()}
    return Rule((key,), {name: default}, out, lambda t: {key: lookup(ours_of, name, t[name])})


def fixed(key: str, value: Any, instead: str, *, refuse: str = "") -> Rule:
    """An option they do not have: they always work as ours does at ``value``.

    Args:
        key: Our dotted key.
        value: The value that is expressed by saying nothing.
        instead: What happens there at any other value.
        refuse: The remedy, where any other value would make another algorithm.
    """

    def out(case: Case) -> Told:
        if case[key] == value:
            return Told()
        if refuse:
            rule = f"{key} must be {shown(value)} for this target"
            return Told(refused=[f"{rule}, but is {shown(case[key])}: {instead}; {refuse}"])
        return Told(dropped={key: instead})

    return Rule((key,), {}, out, lambda theirs: {key: value})


@dataclass(frozen=True)
class Applied:
    """A table applied to a configuration. Every key of the configuration is in one of the three."""

    settings: tuple[tuple[dict[str, Any], dict[str, str]], ...]
    exported: tuple[str, ...]
    converted: dict[str, str]
    dropped: dict[str, str]
    refused: tuple[str, ...]

    @property
    def theirs(self) -> dict[str, Any]:
        """All settings that are written."""
        return {name: value for part, _ in self.settings for name, value in part.items()}


def apply_table(table: Table, config: TrialConfig, reason: Callable[[str], str]) -> Applied:
    """Their settings, and what became of every option.

    Args:
        table: The rules of the target.
        config: What is exported.
        reason: Why an option that no rule names is dropped.
    """
    case = Case.of(config)
    settings, exported, refused = [], [], []
    converted: dict[str, str] = {}
    dropped: dict[str, str] = {}
    named: set[str] = set()
    vain = without_effect(case.flat, shown)
    for rule in table:
        told, keys = rule.out(case), own_keys(rule.keys, case.flat)
        named.update(keys)
        told.dropped |= {key: vain[key] for key in keys if key in vain and key not in told.written}
        # Nothing is said of what has no effect.
        idle = bool(keys) and all(key in vain and key in told.dropped for key in keys)
        said = {} if idle else told.theirs
        left = {name: value for name, value in said.items() if value is not None}
        settings.append((left, {k: n for k, n in told.notes.items() if k not in told.dropped}))
        refused += told.refused
        dropped.update(told.dropped)
        for key in keys:
            if key in told.dropped:
                continue
            if key in told.notes:
                converted[key] = told.notes[key]
            else:
                exported.append(key)
    dropped.update({key: reason(key) for key in case.flat if key not in named})
    order = {key: place for place, key in enumerate(case.flat)}
    return Applied(
        tuple(settings),
        tuple(sorted(exported, key=order.__getitem__)),
        dict(sorted(converted.items(), key=lambda pair: order[pair[0]])),
        dict(sorted(dropped.items(), key=lambda pair: order[pair[0]])),
        tuple(refused),
    )


def own_keys(keys: Iterable[str], flat: Values) -> list[str]:
    """The keys of a configuration that keys of the schema stand for: several, or none, where they hold a name."""
    schema = frozenset(known_keys())
    named = [key for key in keys if NAME in key.split(".")]
    own = [key for key in flat if named and key not in schema and key in spelled(named, key)]
    return [key for key in keys if key not in named] + own


def defaults(table: Table) -> dict[str, Any]:
    """Their settings that a table reads, with the defaults that hold there."""
    return {name: value for rule in table for name, value in rule.theirs.items()}


def read_back(table: Table, given: Values) -> tuple[dict[str, Any], dict[str, str]]:
    """Our values for their settings, and by our keys why others could not be read."""
    full = {**defaults(table), **given}
    ours: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for rule in table:
        try:
            ours.update(rule.back(full))
        except (ValueError, TypeError) as error:
            unread[", ".join(rule.keys)] = str(error)
    return ours, unread


def number(value: Any) -> float:
    """A number, also from text."""
    try:
        found = float("" if isinstance(value, bool) else value)
    except (ValueError, TypeError):
        raise Unreadable(f"{value!r} is no number") from None
    if not math.isfinite(found):
        raise Unreadable(f"{value!r} is not finite")
    return found


def whole(value: Any) -> int:
    """A whole number, also from text."""
    found = number(value)
    if found != int(found):
        raise Unreadable(f"{value!r} is no whole number")
    return int(found)


def truth(value: Any) -> bool:
    """A truth value, also from text."""
    if isinstance(value, bool):
        return value
    found: bool = lookup({"true": True, "false": False}, "", str(value).lower())
    return found


def text(value: Any) -> str:
    return str(value)


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``read``, with null where nothing is said."""
    return lambda value: None if value in (None, "null", "None", "") else read(value)


def pair(value: Any) -> tuple[float, float]:
    """Two numbers."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise Unreadable(f"{value!r} is no pair of numbers")
    return number(value[0]), number(value[1])


def lookup(names: Mapping[Any, Any], name: str, value: Any) -> Any:
    """``names[value]``; what is not in it has no counterpart here."""
    if isinstance(value, list) or value not in names:
        where = f"{name} " if name else ""
        raise Unreadable(
            f"{where}{value} has no counterpart here; there are {', '.join(map(str, names))}"
        )
    return names[value]


def whole_gpus(share: float) -> int:
    """A share of GPUs as a count, for those who take whole ones."""
    return max(1, math.ceil(share))


def gpu_count(gpus: int) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{gpus} GPU" + ("" if gpus == 1 else "s")


def nodes(gpus: int, per_node: int = 8) -> tuple[int, int]:
    """Fewest nodes of at most ``per_node`` GPUs that share ``gpus`` evenly, and the GPUs of each."""
    count = next(n for n in range(math.ceil(gpus / per_node), gpus + 1) if gpus % n == 0)
    return count, gpus // count


def divisor(total: int, limit: int) -> int:
    """The largest divisor of ``total`` up to ``limit``."""
    return next(size for size in range(min(total, limit), 0, -1) if total % size == 0)


def shown(value: Any) -> str:
    """A value as YAML spells it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(shown, value)) + "]"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def names_of(table: Table) -> set[str]:
    """The settings a table knows."""
    return {name for rule in table for name in rule.theirs}


def drop(keys: Iterable[str], reason: str) -> dict[str, str]:
    """One reason for several keys."""
    return dict.fromkeys(keys, reason)
