"""Named spaces that come with the toolkit; each is a file ``presets/NAME.yaml`` in this package.

A preset holds ``description``, ``parameters`` and ``rules`` in the short form, the presets it ``extends``, and
under ``by_size`` what bounds move with the size of the model: for a key a list of sizes with ``low``, ``high`` and
``centre``. Between two sizes they are interpolated, log against log; beyond the first and the last they stay.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from search_spaces.codec import parse
from search_spaces.domains import Float, Pow2, Scalar, is_number
from search_spaces.errors import SpaceError, nearest
from search_spaces.space import Parameter, Space

_SUFFIX = ".yaml"
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)([KMBT]?)", re.IGNORECASE)


def names() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    files = (f.name for f in _folder().iterdir())
    return tuple(sorted(f.removesuffix(_SUFFIX) for f in files if f.endswith(_SUFFIX)))


def load(name: str, parameters: float | None = None) -> Space:
    """The preset ``name``.

    Args:
        name: One of ``names()``.
        parameters: Parameters of the model that is trained, on which some bounds depend; None takes those that
            the file writes.

    Raises:
        SpaceError: There is no such preset; the message names near misses.
    """
    content = _read(name)
    space = Space({})
    for other in content.get("extends", ()):
        space = space.merge(load(other, parameters))
    space = parse(content.get("parameters", {}), content.get("rules", ()), onto=space)
    if parameters is None:
        return space
    scaled = {
        key: _scaled(space[key], anchors, parameters)
        for key, anchors in content.get("by_size", {}).items()
    }
    return space.merge(Space(scaled))


def centres(parameters: float) -> dict[str, Scalar]:
    """``{key: centre}`` of all parameters that some preset knows, for a model of that size."""
    found: dict[str, Scalar] = {}
    for name in names():
        found |= load(name, parameters).centres
    return found


def depends_on_size(name: str) -> bool:
    """Whether bounds of the preset depend on the size of the model."""
    content = _read(name)
    return bool(content.get("by_size")) or any(map(depends_on_size, content.get("extends", ())))


def describe(name: str) -> str:
    """What the preset ``name`` is for, in a sentence or two.

    Raises:
        SpaceError: There is no such preset; the message names near misses.
    """
    return " ".join(str(_read(name)["description"]).split())


def model_size(text: object) -> float:
    """Parameters of a model, from a number or from text such as ``135M`` or ``1.3B``.

    Raises:
        SpaceError: It is neither, or not above 0.
    """
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    value = float(match[1]) * _UNITS[match[2].upper()] if match else text
    if not is_number(value) or value <= 0:
        raise SpaceError(
            f"model_size is a number of parameters above 0, got {text!r}; write for example 135M or 1.3B"
        )
    return float(value)


def _scaled(
    parameter: Parameter, anchors: Sequence[Mapping[str, float]], parameters: float
) -> Parameter:
    """The parameter with bounds and centre for a model of that size."""
    place = min(max(parameters, anchors[0]["parameters"]), anchors[-1]["parameters"])
    below, above = next(
        (one, two) for one, two in itertools.pairwise(anchors) if place <= two["parameters"]
    )
    span = math.log(above["parameters"] / below["parameters"])
    share = math.log(place / below["parameters"]) / span

    def between(field: str) -> float:
        return float(below[field] ** (1 - share) * above[field] ** share)

    domain = parameter.domain
    if isinstance(domain, Pow2):
        low, high, centre = (2 ** round(math.log2(between(f))) for f in ("low", "high", "centre"))
        return dataclasses.replace(parameter, domain=Pow2(low, high), centre=centre)
    assert isinstance(domain, Float)
    # Two digits: what is written down should be readable.
    low, high, centre = (float(f"{between(f):.1e}") for f in ("low", "high", "centre"))
    moved = dataclasses.replace(domain, low=low, high=high)
    return dataclasses.replace(parameter, domain=moved, centre=centre)


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
