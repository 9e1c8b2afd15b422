"""Named spaces that come with the toolkit; each is a file ``presets/NAME.yaml`` in this package."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from search_spaces.codec import parse
from search_spaces.errors import SpaceError, nearest
from search_spaces.space import Space

_SUFFIX = ".yaml"


def names() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    files = (f.name for f in _folder().iterdir())
    return tuple(sorted(f.removesuffix(_SUFFIX) for f in files if f.endswith(_SUFFIX)))


def load(name: str) -> Space:
    """The preset ``name``.

    Raises:
        SpaceError: There is no such preset; the message names near misses.
    """
    return parse(_read(name)["parameters"])


def describe(name: str) -> str:
    """What the preset ``name`` is for, in a sentence or two.

    Raises:
        SpaceError: There is no such preset; the message names near misses.
    """
    return " ".join(str(_read(name)["description"]).split())


def _folder() -> Traversable:
    return resources.files("search_spaces").joinpath("presets")


def _read(name: str) -> dict[str, Any]:
    known = names()
    if name not in known:
        hint = nearest(name, known) or f"; use one of {list(known)}"
        raise SpaceError(f"there is no preset {name!r}{hint}")
    text = _folder().joinpath(name + _SUFFIX).read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content
