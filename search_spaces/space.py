"""A search space: dotted configuration keys with domains and conditions, and rules between them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from search_spaces.conditions import When, parents_first
from search_spaces.domains import Constant, Domain, Int, Pow2, Range, Scalar
from search_spaces.errors import SpaceError, nearest
from search_spaces.rules import Rule

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing that may vary.

    Args:
        domain: The values it may take.
        when: Condition under which it is active; None means always.
        centre: A good first value, inside the domain; None means not given.

    Raises:
        SpaceError: The centre lies outside the domain.
    """

    domain: Domain
    when: When | None = None
    centre: Scalar = None

    def __post_init__(self) -> None:
        if not isinstance(self.domain, Domain):
            raise SpaceError(
                f"a parameter needs a Float, Int, Choice or Constant, got {self.domain!r}; "
                "wrap the values in one of these"
            )
        if self.centre is not None and not self.domain.contains(self.centre):
            raise SpaceError(
                f"centre must lie in the domain, got {self.centre!r} for {self.domain}; "
                "move the centre or widen the domain"
            )


@dataclass(frozen=True, eq=False, repr=False)
class Space(Mapping[str, Parameter]):
    """An immutable mapping of dotted keys to parameters; iteration yields parents before children.

    Otherwise iteration keeps the order of declaration. Equality ignores the order of parameters.

    Example:
        >>> space = Space({"ppo.epochs": Parameter(Int(1, 4))})
        >>> space.check({"ppo.epochs": 9})
        ['ppo.epochs: 9 is outside Int(low=1, high=4, log=False, step=1); choose a value inside']

    Args:
        parameters: Dotted key to parameter.
        rules: What its points keep, also between a parameter and an option that is not searched.

    Raises:
        SpaceError: A key is malformed, a condition names an unknown parent or values the parent
            cannot take, or conditions form a cycle. All problems are reported together.
    """

    parameters: Mapping[str, Parameter]
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        problems = structure_problems(self.parameters)
        if problems:
            raise SpaceError(problems)
        ordered = {key: self.parameters[key] for key in parents_first(_parents(self.parameters))}
        object.__setattr__(self, "parameters", MappingProxyType(ordered))
        object.__setattr__(self, "rules", tuple(dict.fromkeys(self.rules)))

    def __getitem__(self, key: str) -> Parameter:
        return self.parameters[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    def __eq__(self, other: object) -> bool:
        rules = other.rules if isinstance(other, Space) else ()
        return Mapping.__eq__(self, other) and set(self.rules) == set(rules)

    def __repr__(self) -> str:
        rules = f", rules={self.rules!r}" if self.rules else ""
        return f"Space({dict(self.parameters)!r}{rules})"

    def __reduce__(self) -> tuple[type[Space], tuple[dict[str, Parameter], tuple[Rule, ...]]]:
        # A mapping proxy cannot be pickled, and spaces cross process borders.
        return type(self), (dict(self.parameters), self.rules)

    @property
    def centres(self) -> dict[str, Scalar]:
        """``{key: centre}`` of the parameters that have one and can vary."""
        return {
            key: parameter.centre
            for key, parameter in self.parameters.items()
            if parameter.centre is not None and not isinstance(parameter.domain, Constant)
        }

    def active(self, params: Mapping[str, object]) -> set[str]:
        """Keys that count, given the values chosen so far.

        A child is active where its parent is active, has a value in ``params``, and that value
        meets the condition. Unknown keys in ``params`` are ignored.
        """
        found: set[str] = set()
        for key, parameter in self.parameters.items():
            when = parameter.when
            if when is None or (
                when.key in found and when.key in params and when.holds(params[when.key])
            ):
                found.add(key)
        return found

    def check(self, params: Mapping[str, object]) -> list[str]:
        """Every reason why ``params`` is not a point of this space; empty for a valid point."""
        active = self.active(params)
        problems = [
            f"{key}: not a parameter of this space{nearest(str(key), self) or '; remove it'}"
            for key in params
            if key not in self.parameters
        ]
        for key, parameter in self.parameters.items():
            if key in active and key not in params:
                problems.append(f"{key}: missing; give a value of {parameter.domain}")
            elif key in params and key not in active:
                assert parameter.when is not None
                problems.append(
                    f"{key}: inactive unless {parameter.when.key} is one of "
                    f"{list(parameter.when.values)}; remove it"
                )
            elif key in params and not parameter.domain.contains(params[key]):
                problems.append(
                    f"{key}: {params[key]!r} is outside {parameter.domain}; choose a value inside"
                )
        return problems

    def broken(
        self, params: Mapping[str, object], base: Mapping[str, object] | None = None
    ) -> list[str]:
        """The rules that a point breaks, a line each.

        Args:
            params: Values of the active parameters.
            base: ``{dotted key: value}`` of a trial without parameters, for options that are not searched.
                The base also tells what an inactive parameter is then.
        """
        values = {**(base or {}), **params}
        return [line for rule in self.rules if (line := rule.broken(values))]

    def merge(self, other: Space) -> Space:
        """Both spaces in one; where both have a key, the parameter of ``other`` replaces this one.

        Raises:
            SpaceError: The result breaks a rule of ``Space``.
        """
        return Space({**self.parameters, **other.parameters}, (*self.rules, *other.rules))

    def without(self, *keys: str) -> Space:
        """A space that leaves ``keys`` to the base of the trial; rules stay.

        Raises:
            SpaceError: A key is unknown, or another parameter's condition names it.
        """
        for key in keys:
            self._known(key)
        left = {key: p for key, p in self.parameters.items() if key not in keys}
        return Space(left, self.rules)

    def freeze(self, key: str, value: Scalar) -> Space:
        """A space in which ``key`` is the constant ``value``.

        Parameters that can no longer be active are dropped.

        Raises:
            SpaceError: The key is unknown, or the value lies outside its domain.
        """
        parameter = self._known(key)
        if not parameter.domain.contains(value):
            raise SpaceError(
                f"{key}: cannot freeze at {value!r}, which is outside {parameter.domain}; "
                "choose a value inside"
            )
        return self._replace(key, Constant(value))

    def narrow(self, key: str, low: float, high: float) -> Space:
        """A space in which ``key`` runs from ``low`` to ``high`` only, both included.

        A centre outside the new range is dropped, and so are parameters that can no longer be
        active.

        Raises:
            SpaceError: The key is unknown or not numeric, or a bound lies outside its domain.
        """
        domain = self._known(key).domain
        if not isinstance(domain, Range):
            raise SpaceError(
                f"{key}: only float and int domains can be narrowed, got {domain}; use freeze"
            )
        problems = [
            f"{key}: cannot narrow to {name}={bound!r}, which is outside {domain}; "
            "choose a bound inside"
            for name, bound in (("low", low), ("high", high))
            if not domain.contains(bound)
        ]
        if problems:
            raise SpaceError(problems)
        try:
            narrowed: Domain
            if isinstance(domain, Int | Pow2):
                narrowed = dataclasses.replace(domain, low=int(low), high=int(high))
            else:
                narrowed = dataclasses.replace(domain, low=low, high=high)
        except SpaceError as error:
            raise SpaceError(f"{key}: {problem}" for problem in error.problems) from None
        return self._replace(key, narrowed)

    def _known(self, key: str) -> Parameter:
        if key not in self.parameters:
            raise SpaceError(
                f"{key}: not a parameter of this space{nearest(key, self) or f': {list(self)}'}"
            )
        return self.parameters[key]

    def _replace(self, key: str, domain: Domain) -> Space:
        old = self.parameters[key]
        centre = old.centre if domain.contains(old.centre) else None
        parameter = Parameter(domain, old.when, centre)
        return Space(_without_dead({**self.parameters, key: parameter}), self.rules)


def structure_problems(
    parameters: Mapping[str, Parameter], elsewhere: Collection[str] = ()
) -> list[str]:
    """Rules between parameters that are broken.

    Args:
        parameters: Dotted key to parameter.
        elsewhere: Keys that exist but could not be read; conditions on them are not judged.
    """
    problems = [
        f"{key!r}: a key is dotted words such as 'ppo.kl.coef'; rename it"
        for key in parameters
        if not isinstance(key, str) or not _KEY.fullmatch(key)
    ]
    for key, parameter in parameters.items():
        when = parameter.when
        if when is None or when.key in elsewhere:
            continue
        if when.key not in parameters:
            remedy = nearest(when.key, [k for k in parameters if k != key])
            problems.append(
                f"{key}: its condition names {when.key!r}, which is not a parameter of this space"
                + (remedy or f"; add it, for example as {when.key}: {{constant: VALUE}}")
            )
            continue
        domain = parameters[when.key].domain
        problems += [
            f"{key}: its condition waits for {when.key} = {value!r}, which is outside {domain}; "
            "remove the value or widen that domain"
            for value in when.values
            if not domain.contains(value)
        ]
    try:
        parents_first(_parents(parameters))
    except SpaceError as error:
        problems += error.problems
    return problems


def _parents(parameters: Mapping[str, Parameter]) -> dict[str, str | None]:
    return {key: p.when.key if p.when else None for key, p in parameters.items()}


def _without_dead(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """``parameters`` (parents first) without those whose condition can no longer hold."""
    kept: dict[str, Parameter] = {}
    for key, parameter in parameters.items():
        when = parameter.when
        if when is None:
            kept[key] = parameter
            continue
        if when.key not in kept:
            continue
        domain = kept[when.key].domain
        values = tuple(v for v in when.values if domain.contains(v))
        if values:
            kept[key] = dataclasses.replace(parameter, when=When(when.key, values))
    return kept
