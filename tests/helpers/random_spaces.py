"""Domains, rules and spaces at random, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from search_spaces import Choice, Constant, Float, Int, Logit, Parameter, Pow2, Rule, Space, When

numbers = st.floats(-1e6, 1e6, allow_nan=False)
values = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text("abc", max_size=3))


@st.composite
def floats(draw: st.DrawFn) -> Float:
    low, high = sorted((draw(numbers), draw(numbers)))
    assume(low < high)
    log = low > 0 and draw(st.booleans())
    step = (high - low) / draw(st.integers(1, 7)) if not log and draw(st.booleans()) else None
    assume(step is None or step > 0)
    return Float(low, high, log=log, step=step)


@st.composite
def ints(draw: st.DrawFn) -> Int:
    low, step = draw(st.integers(-50, 50)), draw(st.integers(1, 5))
    high = low + step * draw(st.integers(1, 9))
    return Int(low, high, log=low >= 1 and step == 1 and draw(st.booleans()), step=step)


def distinct(items: list[Any]) -> list[Any]:
    return list({(type(v) is bool, v): v for v in items}.values())


@st.composite
def logits(draw: st.DrawFn) -> Logit:
    inside = st.floats(1e-6, 1 - 1e-6)
    low, high = sorted((draw(inside), draw(inside)))
    assume(low < high)
    return Logit(low, high)


@st.composite
def powers(draw: st.DrawFn) -> Pow2:
    first = draw(st.integers(0, 12))
    return Pow2(2**first, 2 ** (first + draw(st.integers(1, 6))))


choices = st.lists(values, min_size=1, max_size=4).map(lambda v: Choice(tuple(distinct(v))))
domains = st.one_of(floats(), logits(), ints(), powers(), choices, values.map(Constant))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    kind = draw(st.sampled_from(("divides", "at_most", "sum_at_most", "product_at_most")))
    keys = [f"group.k{draw(st.integers(0, 9))}" for _ in range(2 if kind == "at_most" else 3)]
    terms = [*keys[:-1], draw(st.one_of(st.just(keys[-1]), st.integers(1, 99)))]
    return Rule(kind, tuple(terms), draw(st.floats(0.1, 9)) if kind == "at_most" else 1.0)


def pick(draw: st.DrawFn, domain: Any) -> Any:
    """A value of the domain, one of its ends or listed values."""
    if isinstance(domain, Choice):
        return draw(st.sampled_from(domain.values))
    if isinstance(domain, Constant):
        return domain.value
    return draw(st.sampled_from((domain.low, domain.high)))


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    parameters: dict[str, Parameter] = {}
    for index in range(draw(st.integers(0, 6))):
        domain = draw(domains)
        when = None
        if parameters and draw(st.booleans()):
            parent = draw(st.sampled_from(sorted(parameters)))
            when = When(parent, (pick(draw, parameters[parent].domain),))
        centre = pick(draw, domain) if draw(st.booleans()) else None
        parameters[f"group.k{index}"] = Parameter(domain, when, centre)
    ordered = dict(draw(st.permutations(list(parameters.items()))))
    return Space(ordered, tuple(draw(st.lists(rules(), max_size=3))))
