"""The base of every configuration group, and how problems of a file become lines a person can act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.config import JsonDict
from pydantic_core import ErrorDetails, PydanticCustomError

from rlhf_core.errors import ConfigError, nearest


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


def option(default: Any, description: str, *, unit: str | None = None, **bounds: Any) -> Any:
    """A field with its description, its unit and its bounds (``ge``, ``gt``, ``le``, ``lt``)."""
    extra: JsonDict | None = {"unit": unit} if unit else None
    return Field(default, description=description, json_schema_extra=extra, **bounds)


def group(kind: type[Group], description: str) -> Any:
    """A field that holds a group with all its defaults."""
    return Field(default_factory=kind, description=description)


M = TypeVar("M", bound=BaseModel)


def dotted_fields(kind: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields ``(dotted key, pydantic field)`` for every leaf below ``kind``."""
    for name, field in kind.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Group):
            yield from dotted_fields(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def dotted_groups(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yields the dotted key of every group below ``kind``."""
    for name, field in kind.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Group):
            yield f"{prefix}{name}"
            yield from dotted_groups(annotation, f"{prefix}{name}.")


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
        found = error.errors()
    raise ConfigError(
        [line for e in found for line in _lines(kind, e, source)]
        + _rules_beside(kind, values, found, source)
    )


def _lines(kind: type[BaseModel], error: ErrorDetails, source: str) -> list[str]:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = [key for key, _ in dotted_fields(kind)] + list(dotted_groups(kind))
        return [f"{source}: unknown key {where!r}{nearest(where, known)}"]
    if error["type"] == "value_error":
        broken = error.get("ctx", {}).get("error", error["msg"])
        rules = broken.problems if isinstance(broken, BrokenRulesError) else [str(broken)]
        return [f"{source}: {where}: {rule}" if where else f"{source}: {rule}" for rule in rules]
    rule = error["msg"].replace("Input should be", "must be")
    return [f"{source}: {where} {rule}, but is {error['input']!r}"]


def _rules_beside(
    kind: type[BaseModel], values: Mapping[str, Any], found: list[ErrorDetails], source: str
) -> list[str]:
    """Broken rules between the options that are right, which pydantic does not look at beside wrong ones."""
    rest: Any = values
    for error in found:
        if not error["loc"]:
            return []
        rest = _without(rest, error["loc"])
    try:
        kind.model_validate(rest)
    except ValidationError as error:
        lines = [line for e in error.errors() for line in _lines(kind, e, source)]
        wrong = {str(e["loc"][-1]) for e in found}
        return [line for line in lines if not any(name in line for name in wrong)]
    return []


def _without(values: Any, place: tuple[int | str, ...]) -> Any:
    if not isinstance(values, Mapping):
        return values
    if len(place) == 1:
        return {key: value for key, value in values.items() if key != place[0]}
    return {
        key: _without(value, place[1:]) if key == place[0] else value
        for key, value in values.items()
    }
