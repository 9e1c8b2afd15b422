"""The base of every configuration group, and how problems of a file become lines a person can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.config import JsonDict
from pydantic_core import ErrorDetails, PydanticCustomError

from rlhf_core.errors import ConfigError, nearest, shown


class Group(BaseModel):
    """A frozen group of options; an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic reads true as 1; here it is a mistake in the file."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            kinds = {annotation, *get_args(annotation)}
            if bool not in kinds and kinds & {int, float}:
                raise PydanticCustomError("number", "Input should be a number")
        return value


class BrokenRulesError(ValueError):
    """Rules between options that a configuration breaks; raised by a validator of a group.

    Args:
        problems: One line for each; it names the options it is about.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def in_vain(config: Group, names: Sequence[str], prefix: str, off: str) -> list[str]:
    """A line for each option that differs from its default although what reads it is off.

    Args:
        config: The group of the options.
        names: Options that only something else makes count.
        prefix: What stands before them in a dotted key.
        off: What they belong to and what it is instead.
    """
    values = {name: getattr(config, name) for name in names}
    return [
        f"{prefix}{name} {value!r} has no effect: it belongs to {off}; remove it or change that"
        for name, value in values.items()
        if value not in (None, type(config).model_fields[name].default)
    ]


# Where an amount has no bound of its own: whole in a float, and its products fit 64 bits.
MOST = 10**9


def option(default: Any, description: str, *, unit: str | None = None, **bounds: Any) -> Any:
    """A field with its description, its unit and its bounds (``ge``, ``gt``, ``le``, ``lt``).

    A number that has a lower bound only ends at ``MOST``.
    """
    if {"ge", "gt"} & bounds.keys() and not {"le", "lt"} & bounds.keys():
        bounds["le"] = MOST
    extra: JsonDict | None = {"unit": unit} if unit else None
    return Field(default, description=description, json_schema_extra=extra, **bounds)


def group(kind: type[Group], description: str) -> Any:
    """A field that holds a group with all its defaults."""
    return Field(default_factory=kind, description=description)


# Stands in a dotted key where the configuration has a name of the user's own.
NAME = "NAME"
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]


def family(description: str) -> Any:
    """A field that holds groups under names of the user's own: ``dict[Name, SomeGroup]``."""
    closed: JsonDict = {"additionalProperties": False}
    return Field(default_factory=dict, description=description, json_schema_extra=closed)


M = TypeVar("M", bound=BaseModel)


def dotted_fields(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields ``(dotted key, pydantic field)`` for every leaf below ``kind``; ``NAME`` stands for names."""
    for name, field in kind.model_fields.items():
        below, middle = _below(field.annotation)
        if below is not None:
            yield from dotted_fields(below, f"{prefix}{name}.{middle}")
        else:
            yield f"{prefix}{name}", field


def dotted_groups(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yields the dotted key of every group below ``kind``."""
    for name, field in kind.model_fields.items():
        below, middle = _below(field.annotation)
        if below is not None:
            yield f"{prefix}{name}"
            yield from dotted_groups(below, f"{prefix}{name}.{middle}")


def _below(annotation: Any) -> tuple[type[Group] | None, str]:
    """The group that a field holds, and what stands in a key between the field and the group's own fields."""
    middle = ""
    if get_origin(annotation) is dict:
        annotation, middle = get_args(annotation)[1], f"{NAME}."
    found = isinstance(annotation, type) and issubclass(annotation, Group)
    return (annotation if found else None), middle


def spelled(keys: Iterable[str], key: str) -> list[str]:
    """``keys`` with the names of ``key`` in them.

    Example:
        >>> spelled(["seed", "reward.extra.NAME.weight"], "reward.extra.brevity.wieght")
        ['seed', 'reward.extra.brevity.weight']
    """
    parts = key.split(".")
    return [_spelled(pattern.split("."), parts) for pattern in keys]


def _spelled(pattern: list[str], parts: list[str]) -> str:
    depth = pattern.index(NAME) if NAME in pattern else len(parts)
    if depth < len(parts) and pattern[:depth] == parts[:depth]:
        pattern = [*parts[: depth + 1], *pattern[depth + 1 :]]
    return ".".join(pattern)


def validate(kind: type[M], values: Mapping[str, Any], source: str) -> M:
    """Builds ``kind`` from plain values.

    Args:
        kind: The pydantic model.
        values: Nested plain values, as read from YAML or JSON.
        source: What the values came from; starts every line of the error.

    Raises:
        ConfigError: With one line for each problem.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        found = _placed(error.errors(), values)
    raise ConfigError(
        [line for e in found for line in _lines(kind, e, source)]
        + _rules_beside(kind, values, found, source)
    )


# What pydantic adds to the place of a key that is wrong itself.
_KEY = "[key]"


# Rules in the words of a file instead of Python's.
_RULES = {
    "string_type": "must be text",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
}


def _placed(found: list[ErrorDetails], values: Any) -> list[ErrorDetails]:
    """The errors at their places in ``values``, and one where no form fits of several that a value may have.

    pydantic names each form within the place, where no file has it.
    """
    plain: list[ErrorDetails] = []
    forms: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for error in found:
        place = _place(error, values)
        if place == error["loc"]:
            plain.append(error)
        else:
            forms.setdefault(place, []).append({**error, "loc": place})
    # A fault inside the value says more than that it has not another form.
    inner = [p for p in forms if not any(q != p and q[: len(p)] == p for q in forms)]
    return plain + [_joined(forms[place]) for place in inner]


def _place(error: ErrorDetails, values: Any) -> tuple[int | str, ...]:
    """The parts of an error's place that ``values`` holds, or of which it says that they lack."""
    place: list[int | str] = []
    for depth, part in enumerate(error["loc"], 1):
        listed = isinstance(values, list | tuple) and isinstance(part, int)
        if listed or (isinstance(values, Mapping) and part in values):
            values = values[part]
        elif part != _KEY and not (error["type"] == "missing" and depth == len(error["loc"])):
            continue
        place.append(part)
    return tuple(place)


def _joined(errors: list[ErrorDetails]) -> ErrorDetails:
    first, *rest = dict.fromkeys(_rule(error) for error in errors)
    rule = " or ".join([first, *(other.removeprefix("must be ") for other in rest)])
    return {**errors[0], "type": "forms", "msg": rule} if rest else errors[0]


def _rule(error: ErrorDetails) -> str:
    usual = error["msg"].replace("Input should be", "must be")
    return _RULES.get(error["type"], usual)


def _lines(kind: type[BaseModel], error: ErrorDetails, source: str) -> list[str]:
    where = ".".join(str(part) for part in error["loc"])
    if error["loc"][-1:] == (_KEY,):
        above = ".".join(str(part) for part in error["loc"][:-2])
        return [
            f"{source}: {above}: a name is lower-case letters, digits and underscores, a letter first, "
            f"but is {shown(error['input'])}"
        ]
    if error["type"] == "extra_forbidden":
        known = [key for key, _ in dotted_fields(kind)] + list(dotted_groups(kind))
        return [f"{source}: unknown key {where!r}{nearest(where, spelled(known, where))}"]
    if error["type"] == "value_error":
        broken = error.get("ctx", {}).get("error", error["msg"])
        rules = broken.problems if isinstance(broken, BrokenRulesError) else [str(broken)]
        return [f"{source}: {where}: {rule}" if where else f"{source}: {rule}" for rule in rules]
    if error["type"] == "missing":
        return [f"{source}: {where} is missing; name it"]
    return [f"{source}: {where} {_rule(error)}, but is {shown(error['input'])}"]


def _rules_beside(
    kind: type[BaseModel], values: Mapping[str, Any], found: list[ErrorDetails], source: str
) -> list[str]:
    """Broken rules between the options that are right, which pydantic does not look at beside wrong ones."""
    rest: Any = values
    wrong: set[str] = set()
    for error in found:
        if not error["loc"]:
            return []
        entry = _entry(kind, error["loc"])
        rest = _without(rest, entry or error["loc"])
        if entry is None:
            wrong.add(str(error["loc"][-1]))
    try:
        kind.model_validate(rest)
    except ValidationError as error:
        beside = _placed(error.errors(), rest)
        lines = [line for e in beside for line in _lines(kind, e, source)]
        return [line for line in lines if not wrong & set(re.findall(r"\w+", line))]
    return []


def _entry(kind: type[BaseModel], place: tuple[int | str, ...]) -> tuple[int | str, ...] | None:
    """The place of the named group that ``place`` lies in, or None."""
    for key, _ in dotted_fields(kind):
        above, named, _ = key.partition(f".{NAME}.")
        depth = above.count(".") + 1
        if named and list(place[:depth]) == above.split("."):
            return place[: depth + 1]
    return None


def _without(values: Any, place: tuple[int | str, ...]) -> Any:
    if not isinstance(values, Mapping):
        return values
    if len(place) == 1:
        return {key: value for key, value in values.items() if key != place[0]}
    return {
        key: _without(value, place[1:]) if key == place[0] else value
        for key, value in values.items()
    }
