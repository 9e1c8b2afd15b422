"""A sweep.yaml, a preset's name or plain values -> ``Loaded``: everything checked, nothing started."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath
from typing import Any

from rlhf_core.config.fields import spelled, validate
from rlhf_core.config.io import parse_yaml, read_mapping
from rlhf_core.config.overrides import flat, merge, nest
from rlhf_core.errors import ConfigError, nearest
from rlhf_core.paths import user_path
from search_spaces import Space, SpaceError, codec, presets
from sweeps.config import Constraint, SweepConfig
from sweeps.decide.guards import GUARDED
from sweeps.programs.base import TrialProgram, load_program

# Endings by which ``base`` tells a file from a preset.
FILES = (".yaml", ".yml", ".json")
SEED = "seed"


@dataclass(frozen=True)
class Loaded:
    """A sweep that is ready to be planned.

    Attributes:
        config: The sweep; its ``base`` as the user wrote it.
        base: ``base`` as plain values, its paths absolute.
        space: What is searched.
        program: What a trial runs.
    """

    config: SweepConfig
    base: Mapping[str, Any]
    space: Space
    program: TrialProgram


def preset_names() -> tuple[str, ...]:
    """Names of the sweeps that come with the package."""
    folder = resources.files("sweeps") / "presets"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml")))


def read_sweep(source: str) -> dict[str, Any]:
    """Plain values of a sweep file, or of the preset with that name."""
    if source in preset_names():
        text = (resources.files("sweeps") / "presets" / f"{source}.yaml").read_text("utf-8")
        values: dict[str, Any] = parse_yaml(text, source)
        return values
    path = user_path(source)
    if not path.exists() and not path.suffix:
        raise ConfigError(
            f"no sweep {source!r}: it is neither a file nor one of the presets "
            f"{', '.join(preset_names())}{nearest(source, preset_names())}"
        )
    return read_mapping(path)


def load_sweep(
    source: str | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    program: TrialProgram | None = None,
) -> Loaded:
    """Reads and checks a sweep.

    Args:
        source: A file, a preset's name, or plain values.
        overrides: ``{dotted key of the sweep: value}``, e.g. ``base.budget.iterations``.
        program: What a trial runs, in the place of what the sweep names.

    Raises:
        ConfigError: With all problems found.
    """
    name = source if isinstance(source, str) else "sweep"
    values = read_sweep(source) if isinstance(source, str) else dict(source)
    values = _overridden(values, overrides or {}, name)
    spaced = values.get("space", {})
    space = _read_space(spaced, name)
    config = validate(SweepConfig, {**values, "base": {}, "space": codec.to_dict(space)}, name)
    program = program or load_program(config.program)
    base = nest(program.absolute(flat(values.get("base") or {}, frozenset(program.keys()))))
    base = _with_affinity(base, config, name)
    loaded = Loaded(config, base, space, program)
    found = [f"{name}: {line}" for line in _problems(loaded)]
    if found:
        raise ConfigError(found)
    return loaded


def _overridden(values: dict[str, Any], overrides: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values with the overrides in place; a whole section is replaced before keys in it are set."""
    values = _expand_base(values)
    for key in sorted(overrides, key=lambda key: key.count(".")):
        sections = key.split(".")
        for depth in range(1, len(sections)):
            above = ".".join(sections[:depth])
            if above in overrides and not isinstance(overrides[above], Mapping | str):
                raise ConfigError(f"{name}: {above} and {key} are both set; set one of them")
        values = _expand_base(merge(values, nest({key: overrides[key]})))
    base = values.get("base", {})
    if not isinstance(base, Mapping | None):
        raise ConfigError(
            f"{name}: base is a preset's name, a file or a mapping of options, but is {base!r}"
        )
    return values


def _with_affinity(base: dict[str, Any], config: SweepConfig, name: str) -> dict[str, Any]:
    """``cluster.affinity`` is the trials' own option, set for all of them."""
    affinity = config.cluster.affinity
    if affinity is None:
        return base
    own = base.get("resources", {}).get("affinity", affinity)
    if own != affinity:
        raise ConfigError(
            f"{name}: cluster.affinity is {affinity!r}, but base.resources.affinity {own!r}; remove one"
        )
    return merge(base, {"resources": {"affinity": affinity}})


def _expand_base(values: dict[str, Any]) -> dict[str, Any]:
    """``base: NAME`` is short for ``base: {extends: NAME}``; what a file holds is put in the place of its name."""
    base = values.get("base")
    base = {"extends": base} if isinstance(base, str) else base
    read: list[str] = []
    while isinstance(base, Mapping) and _names_file(base.get("extends")):
        file = str(base["extends"])
        if file in read:
            raise ConfigError(f"base.extends: {file} extends itself by way of {', '.join(read)}")
        read.append(file)
        own = {key: value for key, value in base.items() if key != "extends"}
        base = merge(read_mapping(user_path(file, "base.extends")), own)
    return {**values, "base": base} if "base" in values else values


def _names_file(extends: object) -> bool:
    return isinstance(extends, str) and PurePath(extends).suffix in FILES


def _read_space(spaced: object, name: str) -> Space:
    try:
        if isinstance(spaced, str):
            return presets.load(spaced)
        if isinstance(spaced, dict) and "schema_version" in spaced:
            return codec.from_dict(spaced)
        if isinstance(spaced, dict):
            extends = spaced.get("extends")
            own = codec.parse({k: v for k, v in spaced.items() if k != "extends"})
            return presets.load(str(extends)).merge(own) if extends else own
    except SpaceError as error:
        raise ConfigError([f"{name}: space: {line}" for line in error.problems]) from None
    raise ConfigError(f"{name}: space is a preset's name or a mapping of keys, but is {spaced!r}")


def _problems(loaded: Loaded) -> list[str]:
    config, program, space = loaded.config, loaded.program, loaded.space
    found = list(program.check(loaded.base, {}))
    keys = program.keys()
    unknown = [key for key in space if key not in spelled(keys, key)]
    found += [f"space: unknown key {key!r}{nearest(key, spelled(keys, key))}" for key in unknown]
    if not unknown and not found:
        found += _space_problems(loaded)
    sound = not found
    unknown_metrics = _metric_problems(config, program.metrics(loaded.base, tuple(space)))
    found += unknown_metrics
    if sound and not unknown_metrics:
        found += _unmeasured(loaded)
    found += _seed_problems(loaded)
    for number, point in enumerate(config.search.points):
        strange = [key for key in point if key not in space]
        found += [
            f"search.points[{number}]: {key!r} is not searched{nearest(key, space)}"
            for key in strange
        ]
        found += [
            f"search.points[{number}]: {key} = {value!r} lies outside {space[key].domain}"
            for key, value in point.items()
            if key in space and not space[key].domain.contains(value)
        ]
    return found


def _seed_problems(loaded: Loaded) -> list[str]:
    """Test seeds that no trial can have, or that trials of the search have as well."""
    asked = loaded.config.selection.test_seeds
    keys = loaded.program.keys()
    if SEED not in keys:
        named = "test_seeds" in loaded.config.selection.model_fields_set and asked
        return ["selection.test_seeds: trials of this program have no seed; set it to 0"] * bool(
            named
        )
    if isinstance(asked, int):
        return []
    tuned = loaded.space.get(SEED)
    try:
        base = loaded.program.resolve(loaded.base, {}).get(SEED)
    except ConfigError:
        # What is wrong with the base stands in lines of its own.
        return []
    used = [s for s in asked if (tuned.domain.contains(s) if tuned else s == base)]
    return [
        f"selection.test_seeds: {seed} is a seed of the search as well; name another one"
        for seed in used
    ]


def corner_points(space: Space) -> list[dict[str, Any]]:
    """The space's first and last value of every parameter alone and together: what a rule would trip over."""
    first = {key: ends(parameter.domain)[0] for key, parameter in space.items()}
    last = {key: ends(parameter.domain)[1] for key, parameter in space.items()}
    singles = [{**first, key: value} for key in space for value in ends(space[key].domain)]
    points = [first, last, *singles]
    return [{k: v for k, v in point.items() if k in space.active(point)} for point in points]


def ends(domain: Any) -> tuple[Any, ...]:
    """Values to try of a domain: its bounds, or all of its choices, the first and the last at the ends."""
    if hasattr(domain, "low"):
        return (domain.low, domain.high)
    if hasattr(domain, "values"):
        values = tuple(domain.values)
        return (values[0], values[-1], *values[1:-1])
    return (domain.value, domain.value)


def _space_problems(loaded: Loaded) -> list[str]:
    lines: dict[str, None] = {}
    for point in corner_points(loaded.space):
        for line in loaded.program.check(loaded.base, point):
            lines.setdefault(f"space: {line}")
    return list(lines)


def _metric_problems(config: SweepConfig, known: Collection[str] | None) -> list[str]:
    if known is None:
        return []
    return [
        f"{key}: no metric {metric!r}{nearest(metric, known)}"
        for key, metric in _named_metrics(config).items()
        if metric not in known
    ]


def _named_metrics(config: SweepConfig) -> dict[str, str]:
    """``{key of the sweep: metric it looks at}``."""
    named = {"search.objective": config.search.objective}
    if config.scheduler.metric:
        named["scheduler.metric"] = config.scheduler.metric
    for i, text in enumerate(config.search.constraints):
        named[f"search.constraints[{i}]"] = Constraint.parse(text).metric
    if config.guards.max_kl is not None:
        named["guards.max_kl"] = GUARDED
    return named


def _unmeasured(loaded: Loaded) -> list[str]:
    """Metrics that decide something, but that trials at some corner of the space never report."""
    named = _named_metrics(loaded.config)
    why: dict[str, str] = {}
    for point in corner_points(loaded.space) or [{}]:
        for name, tail in loaded.program.unmeasured(
            loaded.base, point, set(named.values())
        ).items():
            why.setdefault(name, tail)
    return [f"{key}: {name!r} {why[name]}" for key, name in named.items() if name in why]
