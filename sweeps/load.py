"""A sweep.yaml, a preset's name or plain values -> ``Loaded``: everything checked, nothing started."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import PurePath
from typing import Any

from rlhf_core.config.fields import in_vain, spelled, validate
from rlhf_core.config.io import parse_yaml, read_mapping
from rlhf_core.config.overrides import flat, merge, nest
from rlhf_core.errors import ConfigError, nearest
from rlhf_core.paths import user_path
from search_spaces import Space, codec
from search_spaces.rules import FITS_CLUSTER
from sweeps.config import Constraint, SelectionConfig, SweepConfig
from sweeps.points import resolve_points
from sweeps.programs.base import TrialProgram, load_program
from sweeps.schedulers import named_metrics, problems
from sweeps.spaces import corner_points, read_space, rule_problems

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
        notes: What was assumed on the way, or cannot be used as it is written, one line each.
    """

    config: SweepConfig
    base: Mapping[str, Any]
    space: Space
    program: TrialProgram
    notes: tuple[str, ...] = ()

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """``{dotted key: value}`` of a trial without parameters."""
        resolved = self.program.resolve(self.base, {})
        return flat(resolved, frozenset(self.program.keys()))

    @cached_property
    def corners(self) -> list[dict[str, Any]]:
        """Points at the bounds of the space that keep its rules; the base alone where nothing varies."""
        return corner_points(self.space, self.values) or [{}]

    @property
    def must_fit(self) -> bool:
        """Whether points that the cluster cannot hold are drawn again, instead of refused or recorded."""
        return any(rule.kind == FITS_CLUSTER for rule in self.space.rules)

    def broken(self, params: Mapping[str, Any]) -> list[str]:
        """Rules of the space that a configuration breaks, else what is wrong with it for the program."""
        return self.space.broken(params, self.values) or self.program.check(self.base, params)

    def checker(
        self, unfit: Callable[[Mapping[str, Any]], str | None]
    ) -> Callable[[Mapping[str, Any]], list[str]]:
        """What a proposed configuration breaks: as ``broken``, or that the cluster cannot hold it.

        Args:
            unfit: Why the cluster holds no trial with these parameters, or None; asked where the space has the
                rule ``fits_cluster``.
        """

        def check(params: Mapping[str, Any]) -> list[str]:
            found = self.broken(params)
            lack = unfit(params) if self.must_fit and not found else None
            return [lack] if lack else found

        return check


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
    config = validate(SweepConfig, {**values, "base": {}, "space": {}}, name)
    program = program or load_program(config.program)
    base = nest(program.absolute(flat(values.get("base") or {}, frozenset(program.keys()))))
    base = _with_affinity(base, config, name)
    notes: dict[str, None] = {}
    space = read_space(values.get("space", {}), name, lambda: _model_size(program, base, notes))
    config = config.model_copy(update={"space": codec.to_dict(space)})
    loaded = Loaded(config, base, space, program)
    found = _problems(loaded)
    try:
        points, told = resolve_points(config.search, space)
    except ConfigError as error:
        found += error.problems
    if not found:
        found += _broken_points(loaded, points)
    if found:
        raise ConfigError([f"{name}: {line}" for line in found])
    # What is run and recorded has the points in full: the files they came from may change.
    search = config.search.model_copy(update={"points": points})
    return replace(
        loaded, config=config.model_copy(update={"search": search}), notes=(*notes, *told)
    )


def _broken_points(loaded: Loaded, points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Points that break a rule between parameters all of which they name, in a line each."""
    space, found = loaded.space, []
    for number, point in enumerate(points):
        given = [
            rule
            for rule in space.rules
            if all(key in point or key not in space for key in rule.keys)
        ]
        broken = Space(dict(space), tuple(given)).broken(point, loaded.values)
        found += [f"search.points[{number}]: {line}" for line in broken]
    return found


def _model_size(
    program: TrialProgram, base: Mapping[str, Any], notes: dict[str, None]
) -> int | None:
    """Parameters of the trained model; where they are not known, a note says what is assumed."""
    try:
        size = program.model_parameters(base)
    except ConfigError:
        # The base is judged as a whole, later.
        return None
    if size is None:
        notes["space: the size of the model is not known here, so its bounds suit 7 to 8 B parameters; "
              "name space.model_size, such as 135M"] = None  # fmt: skip
    return size


def _overridden(values: dict[str, Any], overrides: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values with the overrides in place; a whole section is replaced before keys in it are set."""
    values = _expand_base(values)
    if isinstance(values.get("space"), str) and any(key.startswith("space.") for key in overrides):
        values = {**values, "space": {"extends": values["space"]}}
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


def _problems(loaded: Loaded) -> list[str]:
    config, program, space = loaded.config, loaded.program, loaded.space
    found = list(program.check(loaded.base, {}))
    keys = program.keys()
    unknown = [key for key in space if key not in spelled(keys, key)]
    found += [f"space: unknown key {key!r}{nearest(key, spelled(keys, key))}" for key in unknown]
    found += rule_problems(space, keys, None if found else loaded.values)
    if not unknown and not found:
        found += _space_problems(loaded)
    sound = not found
    unknown_metrics = _metric_problems(config, program.metrics(loaded.base, tuple(space)))
    found += unknown_metrics
    if sound and not unknown_metrics:
        found += [*_unmeasured(loaded), *problems(loaded)]
    found += _seed_problems(loaded)
    found += _sampler_problems(loaded)
    return found


def _seed_problems(loaded: Loaded) -> list[str]:
    """Test seeds that no trial can have, or that trials of the search have as well."""
    asked = loaded.config.selection.test_seeds
    keys = loaded.program.keys()
    if SEED not in keys:
        # A recorded configuration names every option.
        named = asked and asked != SelectionConfig.model_fields["test_seeds"].default
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


def _sampler_problems(loaded: Loaded) -> list[str]:
    search = loaded.config.search
    if search.begins_at_centres and not loaded.space.centres:
        off = "a space with centres, but no parameter of this one has one"
        if found := in_vain(search, ("prior",), "search.", off):
            return found
    if search.sampler in ("tpe", "random", "qmc") and not search.options:
        # They search any space; commands that only read need no Optuna for them.
        return []
    from sweeps.tuning.samplers import sampler_problems

    return sampler_problems(search, loaded.space)


def _space_problems(loaded: Loaded) -> list[str]:
    lines: dict[str, None] = {}
    for point in loaded.corners:
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
    if config.search.objectives:
        named = {f"search.objectives.{metric}": metric for metric in config.search.objectives}
    named |= named_metrics(config)
    for i, text in enumerate(config.search.constraints):
        named[f"search.constraints[{i}]"] = Constraint.parse(text).metric
    return named


def _unmeasured(loaded: Loaded) -> list[str]:
    """Metrics that decide something, but that trials at some corner of the space never report."""
    named = _named_metrics(loaded.config)
    why: dict[str, str] = {}
    for point in loaded.corners:
        for name, tail in loaded.program.unmeasured(
            loaded.base, point, set(named.values())
        ).items():
            why.setdefault(name, tail)
    return [f"{key}: {name!r} {why[name]}" for key, name in named.items() if name in why]
