"""The base of every configuration group, and how problems of a file become lines a person can act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from rlhf_core.errors import ConfigError, nearest


class Group(BaseModel):
    """A frozen group of options; an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )


def option(default: Any, description: str, *, unit: str | None = None, **bounds: Any) -> Any:
    """A field with its description, its unit and its bounds (``ge``, ``gt``, ``le``, ``lt``)."""
    extra = {"unit": unit} if unit else None
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
        raise ConfigError([_line(kind, e, source) for e in error.errors()]) from None


def _line(kind: type[BaseModel], error: ErrorDetails, source: str) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = [key for key, _ in dotted_fields(kind)] + list(dotted_groups(kind))
        return f"{source}: unknown key {where!r}{nearest(where, known)}"
    if error["type"] == "value_error":
        rule = str(error.get("ctx", {}).get("error", error["msg"]))
        return f"{source}: {where}: {rule}" if where else f"{source}: {rule}"
    rule = error["msg"].replace("Input should be", "must be")
    return f"{source}: {where} {rule}, but is {error['input']!r}"
