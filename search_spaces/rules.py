"""Rules between parameters: named, plain data, and in words where a point breaks one.

A rule may name options that are not searched; their values then come from the trial's base. A rule in which a
value is absent (an inactive parameter) or null says nothing about that point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.domains import is_number
from search_spaces.errors import SpaceError, nearest

Term = str | int | float
"""A dotted key, or a number that stands for itself."""

FITS_CLUSTER = "fits_cluster"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Args:
        kind: ``divides`` (the first term divides the product of the others), ``at_most`` (the first is at most
            the second), ``sum_at_most`` and ``product_at_most`` (of all terms but the last, which is the bound),
            or ``fits_cluster`` (some node, or several together, hold the trial; only a sweep can tell).
        terms: Keys and numbers.
        times: ``at_most``: the first term is multiplied by this; above 0.

    Raises:
        SpaceError: The kind is unknown, or the terms do not suit it.
    """

    kind: str
    terms: tuple[Term, ...] = ()
    times: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(self.terms))
        if self.kind not in KINDS:
            known = list(KINDS)
            raise SpaceError(
                f"a rule is one of {known}, got {self.kind!r}{nearest(str(self.kind), known) or '; use one'}"
            )
        problems = list(_broken_form(self))
        if problems:
            raise SpaceError(problems)

    @property
    def keys(self) -> tuple[str, ...]:
        """The dotted keys it looks at."""
        return tuple(term for term in self.terms if isinstance(term, str))

    def __str__(self) -> str:
        """The rule as people write it, such as ``2 x a <= b``."""
        return KINDS[self.kind].words(self)

    def broken(self, values: Mapping[str, object]) -> str | None:
        """Why ``values`` break the rule, in a line; None where they keep it or it says nothing about them.

        Args:
            values: Dotted key to value, of searched and other options alike.
        """
        if self.kind == FITS_CLUSTER:
            return None
        known = [values.get(term) if isinstance(term, str) else term for term in self.terms]
        if any(value is None for value in known):
            return None
        strange = [(t, v) for t, v in zip(self.terms, known, strict=True) if not is_number(v)]
        if strange:
            term, value = strange[0]
            return f"rule {self}: {term} must be a number, but is {value!r}; correct the rule"
        numbers: list[float] = [v for v in known if is_number(v)]
        if KINDS[self.kind].holds(self, numbers):
            return None
        shown = ", ".join(
            f"{t} = {v:g}" for t, v in zip(self.terms, numbers, strict=True) if isinstance(t, str)
        )
        return f"rule {self} is broken by {shown}; change one of them"


@dataclass(frozen=True, slots=True)
class _Kind:
    """How many terms a kind of rule takes, when it holds for their values, and how it reads."""

    least: int
    most: int
    holds: Callable[[Rule, Sequence[float]], bool]
    words: Callable[[Rule], str]


# Sums of values such as 0.1 are not exact.
_SLACK = 1e-9


def _below(left: float, right: float) -> bool:
    return left <= right + _SLACK * max(abs(left), abs(right))


def _divides(rule: Rule, values: Sequence[float]) -> bool:
    divisor, product = values[0], math.prod(values[1:])
    return divisor != 0 and product % divisor == 0


def _factor(rule: Rule) -> str:
    return "" if rule.times == 1 else f"{rule.times:g} x "


def _product(terms: Sequence[Term]) -> str:
    return " x ".join(map(str, terms))


KINDS: Mapping[str, _Kind] = {
    "divides": _Kind(2, 8, _divides, lambda r: f"{r.terms[0]} divides {_product(r.terms[1:])}"),
    "at_most": _Kind(
        2,
        2,
        lambda r, v: _below(r.times * v[0], v[1]),
        lambda r: f"{_factor(r)}{r.terms[0]} <= {r.terms[1]}",
    ),
    "sum_at_most": _Kind(
        3,
        32,
        lambda r, v: _below(math.fsum(v[:-1]), v[-1]),
        lambda r: f"{' + '.join(map(str, r.terms[:-1]))} <= {r.terms[-1]}",
    ),
    "product_at_most": _Kind(
        3,
        8,
        lambda r, v: _below(math.prod(v[:-1]), v[-1]),
        lambda r: f"{_product(r.terms[:-1])} <= {r.terms[-1]}",
    ),
    FITS_CLUSTER: _Kind(0, 0, lambda r, v: True, lambda r: "the cluster holds the trial"),
}


def _broken_form(rule: Rule) -> list[str]:
    kind, problems = KINDS[rule.kind], []
    if not kind.least <= len(rule.terms) <= kind.most:
        asked = f"{kind.least}" if kind.least == kind.most else f"{kind.least} to {kind.most}"
        problems.append(
            f"{rule.kind} takes {asked} terms, got {list(rule.terms)}; {_example(rule.kind)}"
        )
    problems += [
        f"{rule.kind}: a term is a dotted key or a finite number, got {term!r}; {_example(rule.kind)}"
        for term in rule.terms
        if not (isinstance(term, str) and term) and not is_number(term)
    ]
    if rule.terms and not problems and not rule.keys:
        problems.append(f"{rule.kind} needs at least one key, got {list(rule.terms)}; name one")
    if not is_number(rule.times) or rule.times <= 0:
        problems.append(f"times must be a number above 0, got {rule.times!r}; correct it")
    elif rule.times != 1 and rule.kind != "at_most":
        problems.append(f"times belongs to at_most, got it with {rule.kind}; remove it")
    return problems


def _example(kind: str) -> str:
    if kind == FITS_CLUSTER:
        return f"write {FITS_CLUSTER} alone"
    shown = {"divides": "[a, b]", "at_most": "[a, b]"}.get(kind, "[a, b, 8]")
    return f"write {{{kind}: {shown}}}"


def parse_rules(entries: object) -> tuple[Rule, ...]:
    """The rules that a user wrote.

    Example:
        >>> parse_rules([{"at_most": ["a.low", "a.high"]}, "fits_cluster"])[0].keys
        ('a.low', 'a.high')

    Args:
        entries: A list of ``{kind: [terms]}``, for ``at_most`` perhaps with ``times``, and ``fits_cluster``.

    Raises:
        SpaceError: All problems, each with the number of its rule.
    """
    if not isinstance(entries, list | tuple):
        raise SpaceError(f"rules are a list, got {entries!r}; write rules: [{{at_most: [a, b]}}]")
    found, problems = [], []
    for number, entry in enumerate(entries):
        try:
            found.append(_rule(entry))
        except SpaceError as error:
            problems += [f"rules[{number}]: {line}" for line in error.problems]
    if problems:
        raise SpaceError(problems)
    return tuple(dict.fromkeys(found))


def _rule(entry: Any) -> Rule:
    if isinstance(entry, str):
        return Rule(entry)
    kinds = [key for key in entry if key != "times"] if isinstance(entry, Mapping) else []
    if len(kinds) != 1:
        raise SpaceError(f"a rule is {{kind: [terms]}} or {FITS_CLUSTER}, got {entry!r}; write one")
    terms = entry[kinds[0]]
    if not isinstance(terms, list | tuple):
        raise SpaceError(
            f"{kinds[0]} needs a list of terms, got {terms!r}; write {{{kinds[0]}: [a, b]}}"
        )
    return Rule(kinds[0], tuple(terms), entry.get("times", 1.0))
