"""The space of a sweep: read from a file, a preset or Python; its corners; which points keep its rules."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rlhf_core.config.fields import spelled
from rlhf_core.config.overrides import flat
from rlhf_core.errors import ConfigError, nearest, shown
from rlhf_core.imports import import_named
from rlhf_core.paths import user_path
from search_spaces import Constant, Space, SpaceError, codec, presets
from sweeps.config import SearchConfig

# What a space in a sweep file may hold beside its parameters.
WORDS = ("extends", "model_size", "drop", "narrow", "freeze", "rules")
# Points that are drawn to see whether rules can be kept.
DRAWS = 2000
ModelSize = Callable[[], float | None]


def read_space(spaced: object, name: str, model_size: ModelSize) -> Space:
    """The space that a sweep names or holds.

    Args:
        spaced: A preset's name, ``module:NAME`` or ``FILE.py:NAME`` of a ``Space``, a stored space, or a
            mapping of keys to domains with any of ``WORDS``.
        name: Starts every line of the error.
        model_size: Parameters of the model that is trained, where the file does not say; None: not known.

    Raises:
        ConfigError: With all problems found.
    """
    try:
        if isinstance(spaced, str):
            return _named(spaced, model_size)
        if isinstance(spaced, Space):
            return spaced
        if isinstance(spaced, Mapping) and "schema_version" in spaced:
            return codec.from_dict(spaced)
        if isinstance(spaced, Mapping):
            return _written(spaced, model_size)
    except (SpaceError, ConfigError) as error:
        raise ConfigError([f"{name}: space: {line}" for line in error.problems]) from None
    raise ConfigError(
        f"{name}: space is a preset's name, 'module:NAME' or a mapping of keys, but is {shown(spaced)}"
    )


def _written(spaced: Mapping[str, Any], model_size: ModelSize, within: Sequence[str] = ()) -> Space:
    """What is extended, then the parameters and rules of its own, then what is dropped, narrowed and frozen."""
    own = {key: value for key, value in spaced.items() if key not in WORDS}
    slips = [
        SpaceError(f"no word {key!r}{nearest(str(key), WORDS)}")
        for key, entry in own.items()
        if nearest(str(key), WORDS)
        and not (isinstance(entry, Mapping) and codec.KINDS & set(entry))
    ]
    if slips:
        raise slips[0]
    if "model_size" in spaced:
        size = presets.model_size(spaced["model_size"])
        model_size = partial(presets.model_size, size)
    space = Space({})
    for other in _listed(spaced.get("extends", ()), "extends"):
        space = space.merge(_named(other, model_size, within))
    space = codec.parse(own, spaced.get("rules", ()), onto=space)
    space = space.without(*_listed(spaced.get("drop", ()), "drop"))
    for key, bounds in _mapped(spaced.get("narrow", {}), "narrow").items():
        if not isinstance(bounds, list | tuple) or len(bounds) != 2:
            raise SpaceError(f"narrow: {key} needs [low, high], got {shown(bounds)}; write both")
        space = space.narrow(key, *bounds)
    for key, value in _mapped(spaced.get("freeze", {}), "freeze").items():
        space = space.freeze(key, value)
    return space


def _listed(value: object, word: str) -> Sequence[str]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(v, str) for v in listed):
        raise SpaceError(f"{word} is a name or a list of names, but is {shown(value)}; write one")
    return listed


def _mapped(value: object, word: str) -> Mapping[str, Any]:
    """``{dotted key: value}``, also from nested keys, as an override on the command line makes them."""
    if not isinstance(value, Mapping):
        raise SpaceError(
            f"{word} maps keys of the space, but is {shown(value)}; write {{key: ...}}"
        )
    return flat(value)


def _named(name: str, model_size: ModelSize, within: Sequence[str] = ()) -> Space:
    """A preset, or a space from Python; ``within`` are those that extend it."""
    if name in within:
        raise SpaceError(f"extends: {name} extends itself; remove it there")
    if ":" not in name:
        size = model_size() if name in presets.names() and presets.depends_on_size(name) else None
        return presets.load(name, size)
    path, _, attribute = name.rpartition(":")
    found = (
        _from_file(path, attribute) if path.endswith(".py") else import_named(name, name, "SPACE")
    )
    if isinstance(found, Space):
        return found
    if isinstance(found, Mapping):
        return _written(found, model_size, (*within, name))
    raise ConfigError(
        f"{name!r} must be a Space or a mapping of keys to domains, but is a {type(found).__name__}"
    )


def _from_file(path: str, attribute: str) -> Any:
    """``attribute`` of a Python file, which is run."""
    file = user_path(path, "space").absolute()
    spec = importlib.util.spec_from_file_location(f"space_of_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ConfigError(f"no file {path!r}; name an existing one")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    # It is the user's code, and raises whatever it does.
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path!r} cannot be imported: {error!r}") from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{path!r} has no {attribute!r}{nearest(attribute, vars(module))}")
    return getattr(module, attribute)


def corner_points(space: Space, base: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The space's first and last value of every parameter alone and together: what a rule would trip over.

    No point breaks a rule of the space; a value that stands in no drawn point which keeps them is left out.

    Args:
        space: The space.
        base: ``{dotted key: value}`` of a trial without parameters, for rules over what is not searched.
    """
    first = {key: ends(parameter.domain)[0] for key, parameter in space.items()}
    last = {key: ends(parameter.domain)[1] for key, parameter in space.items()}
    anchors = [first, last, *_keeping(space, base)]
    singles = [
        _single(space, base, anchors, key, value)
        for key in space
        for value in ends(space[key].domain)
    ]
    points = [first, last, *filter(None, singles)]
    shown_points = [
        {k: v for k, v in point.items() if k in space.active(point)} for point in points
    ]
    return [point for point in shown_points if not space.broken(point, base)]


def _keeping(space: Space, base: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Drawn points, with a value for every key, that keep the rules; none where there are no rules."""
    source, kept = random.Random(0), []
    for _ in range(DRAWS if space.rules else 0):
        whole = {key: parameter.domain.at(source.random()) for key, parameter in space.items()}
        active = space.active(whole)
        if not space.broken({k: v for k, v in whole.items() if k in active}, base):
            kept.append(whole)
        if len(kept) == 50:
            break
    return kept


def _single(
    space: Space,
    base: Mapping[str, Any] | None,
    anchors: Sequence[dict[str, Any]],
    key: str,
    value: Any,
) -> dict[str, Any] | None:
    """The first of ``anchors`` that keeps the rules once ``key`` counts and has ``value``."""
    changed = {key: value}
    when = space[key].when
    while when is not None:
        changed[when.key] = when.values[0]
        when = space[when.key].when
    for anchor in anchors:
        point = {**anchor, **changed}
        active = space.active(point)
        if not space.broken({k: v for k, v in point.items() if k in active}, base):
            return point
    return None


def ends(domain: Any) -> tuple[Any, ...]:
    """Values to try of a domain: its bounds, or all of its choices, the first and the last at the ends."""
    if hasattr(domain, "low"):
        return (domain.low, domain.high)
    if hasattr(domain, "values"):
        values = tuple(domain.values)
        return (values[0], values[-1], *values[1:-1])
    return (domain.value, domain.value)


def draw(space: Space, source: random.Random) -> dict[str, Any]:
    """A point, whatever the rules say of it."""
    point: dict[str, Any] = {}
    for key, parameter in space.items():
        share = source.random()
        if parameter.when is None or key in space.active(point):
            point[key] = parameter.domain.at(share)
    return point


def kept_share(space: Space, base: Mapping[str, Any]) -> float:
    """Share of drawn points that keep all rules."""
    source = random.Random(0)
    kept = sum(not space.broken(draw(space, source), base) for _ in range(DRAWS))
    return kept / DRAWS


def _can_be_kept(space: Space, base: Mapping[str, Any]) -> bool:
    source = random.Random(0)
    return any(not space.broken(draw(space, source), base) for _ in range(DRAWS))


def rule_problems(space: Space, keys: Sequence[str], base: Mapping[str, Any] | None) -> list[str]:
    """Rules over keys that do not exist, or that no point keeps.

    Args:
        space: The space.
        keys: Dotted keys of the configuration; a part ``NAME`` stands for any name.
        base: ``{dotted key: value}`` of a trial without parameters; None: not known, and only keys are judged.
    """
    unknown = [
        f"space: rule {rule}: unknown key {key!r}{nearest(key, [*space, *spelled(keys, key)])}"
        for rule in space.rules
        for key in rule.keys
        if key not in space and key not in spelled(keys, key)
    ]
    if unknown or base is None or _can_be_kept(space, base):
        return unknown
    alone = [r for r in space.rules if not _can_be_kept(Space(dict(space), (r,)), base)]
    named = "; ".join(str(rule) for rule in alone or space.rules)
    rules = "rule" if len(alone or space.rules) == 1 else "rules"
    return [
        f"space: none of {DRAWS:,} points keeps the {rules} {named}; widen the domains or drop a rule"
    ]


def share_note(space: Space, base: Mapping[str, Any]) -> list[str]:
    """How much of the space its rules refuse, in a line, where it is most of it."""
    share = kept_share(space, base) if space.rules else 1.0
    if share >= 0.5:
        return []
    return [
        f"space: {share:.0%} of its points keep its rules; the others are passed over, which costs no trial, but "
        "teaches the sampler nothing: narrow the domains"
    ]


def centre_note(search: SearchConfig, space: Space) -> list[str]:
    """That the search begins at the centres, in a line, where it does."""
    if not search.begins_at_centres or not space.centres:
        return []
    varied = sum(not isinstance(parameter.domain, Constant) for parameter in space.values())
    return [
        f"search: begins at the centres of the space ({len(space.centres)} of {varied} parameters have one) and "
        f"draws {search.prior:.0%} of the startup trials around them; search.prior=0 leaves them out"
    ]


def rejection_note(rejected: int, trials: int) -> list[str]:
    """The share of proposed configurations that broke a rule, in a line, where there were any."""
    if not rejected:
        return []
    proposed = rejected + trials
    return [
        f"{rejected} of {proposed} proposed configurations ({rejected / proposed:.0%}) broke a rule and "
        "were passed over"
    ]
