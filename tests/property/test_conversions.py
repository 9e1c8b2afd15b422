"""Spaces keep bounds, steps and scales on their way to Optuna and Tune and back; what is drawn lies inside."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import create_trial
from random_spaces import domains, spaces
from ray.tune.search.variant_generator import generate_variants

from search_spaces import Choice, Constant, Float, Int, Logit, Parameter, Pow2, Rule, Space, When
from sweeps.spaces import draw
from sweeps.tuning.param_space import from_tune, param_space, to_tune
from sweeps.tuning.space import (
    GRID,
    coordinate,
    distributions,
    from_study,
    suggest,
    to_distribution,
    to_domain,
    to_study,
)

optuna.logging.set_verbosity(optuna.logging.ERROR)
bounded = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def same(one: Any, other: Any) -> bool:
    """Equal domains; a logit's bounds pass through log odds and back."""
    if isinstance(one, Logit):
        ends = [(one.low, other.low), (one.high, other.high)]
        return isinstance(other, Logit) and all(a == pytest.approx(b, rel=1e-9) for a, b in ends)
    return bool(one == other)


@bounded
@given(domains)
def test_a_domain_comes_back_from_optuna(domain: Any) -> None:
    kind, distribution = coordinate(domain), to_distribution(domain)
    if kind == GRID:
        # An index: the space has the values.
        assert (distribution.low, distribution.high) == (0, domain.steps)
        return
    back = to_domain(distribution, kind)
    single = isinstance(domain, Choice) and len(domain.values) == 1
    assert same(domain, back) or (single and back == Constant(domain.values[0]))


@bounded
@given(domains)
def test_a_domain_comes_back_from_tune(domain: Any) -> None:
    back = from_tune(to_tune(domain))
    assert back == (Choice(domain.values) if isinstance(domain, Pow2) else domain)


@bounded
@given(domains, st.integers(0, 2**32 - 1))
def test_what_tune_draws_lies_in_the_domain(domain: Any, seed: int) -> None:
    drawn = to_tune(domain)
    values = [drawn.sample(random_state=np.random.default_rng(seed + i)) for i in range(5)] if (
        hasattr(drawn, "sample")
    ) else [drawn]  # fmt: skip
    assert all(domain.contains(value) for value in values), values


@bounded
@given(spaces(), st.integers(0, 1000))
def test_what_optuna_draws_is_a_point_that_its_study_gives_back(space: Space, seed: int) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    params = suggest(trial := study.ask(), space)
    assert space.check(params) == []
    assert from_study(space, trial.params) == params
    assert set(trial.params) <= set(distributions(space))


@bounded
@given(spaces(), st.integers(0, 1000))
def test_a_point_goes_into_a_study_and_comes_out_of_it(space: Space, seed: int) -> None:
    point = draw(space, random.Random(seed))
    stored = to_study(space, point)
    known = {name: d for name, d in distributions(space).items() if name in stored}
    # Optuna itself refuses a value outside of its distribution.
    trial = create_trial(params=stored, distributions=known, value=0.0)
    back = from_study(space, trial.params)
    assert back.keys() == point.keys()
    assert all(
        value == pytest.approx(point[key], rel=1e-9)
        if isinstance(value, float)
        else value == point[key]
        for key, value in back.items()
    )
    study = optuna.create_study()
    study.enqueue_trial(stored)
    assert suggest(study.ask(), space) == back


CONDITIONAL = Space(
    {
        "kl.target": Parameter(Float(2, 12), When("kl.controller", ("adaptive",))),
        "kl.horizon": Parameter(Int(100, 900, step=100), When("kl.target", (2.0, 12.0))),
        "kl.controller": Parameter(Choice(("fixed", "adaptive"))),
        "gamma": Parameter(Logit(0.9, 0.999)),
        "seed": Parameter(Constant(3)),
    }
)


def test_a_param_space_resolves_by_tunes_own_sampler_and_follows_conditions() -> None:
    base = {"kl.target": 6.0, "kl.horizon": 10_000}

    def drawn(seed: int) -> list[dict[str, Any]]:
        source = np.random.default_rng(seed)
        wanted = {"base": "tiny", **param_space(CONDITIONAL, base)}
        return [next(generate_variants(wanted, random_state=source))[1] for _ in range(40)]

    found = drawn(1)
    assert found == drawn(1) != drawn(2)
    assert {point["kl.controller"] for point in found} == {"fixed", "adaptive"}
    for point in found:
        assert (point["base"], point["seed"]) == ("tiny", 3)
        assert 0.9 <= point["gamma"] <= 0.999
        adaptive = point["kl.controller"] == "adaptive"
        assert (point["kl.target"] == 6.0) is not adaptive
        assert not adaptive or 2 <= point["kl.target"] <= 12
        # Its parent has none of the two values, unless by a miracle.
        assert point["kl.horizon"] == 10_000


def test_a_param_space_keeps_rules_that_can_be_kept() -> None:
    ordered = Rule("at_most", ("low", "high"), times=2.0)
    bounded_sum = Rule("sum_at_most", ("low", "high", "other"))
    space = Space(
        {
            "high": Parameter(Float(0.3, 1)),
            "low": Parameter(Float(0, 0.5)),
            "n": Parameter(Pow2(1, 8)),
        },
        (ordered, bounded_sum, Rule("divides", ("n", "batch"))),
    )
    base, source = {"batch": 4, "other": 1.2}, np.random.default_rng(0)
    wanted = param_space(space, base)
    assert type(wanted["high"]) is type(to_tune(Float(0, 1)))
    points = [next(generate_variants(dict(wanted), random_state=source))[1] for _ in range(60)]
    assert [space.broken(point, base) for point in points] == [[]] * 60
    assert {point["n"] for point in points} == {1, 2, 4}


def test_a_param_space_needs_a_value_for_what_may_be_inactive() -> None:
    with pytest.raises(ValueError, match=r"base has no 'kl\.target', which has"):
        param_space(CONDITIONAL, {"kl.horizon": 1})


def test_a_domain_of_tune_without_counterpart_is_refused() -> None:
    from ray import tune

    for drawn in (tune.randn(0, 1), tune.quniform(0, 1, 0.1), tune.sample_from(lambda _: 1)):
        with pytest.raises(ValueError, match="has no counterpart; use uniform"):
            from_tune(drawn)


def test_a_grid_keeps_its_last_step_though_optuna_counts_in_decimals() -> None:
    # In decimals 11 such steps are a little more than 1.
    step = 1 / 11
    domain = Float(0.0, 1.0, step=step)
    with pytest.warns(UserWarning, match="not divisible"):
        plain = optuna.distributions.FloatDistribution(0.0, 1.0, step=step)
    assert plain.high == pytest.approx(10 / 11)
    space = Space({"x": Parameter(domain)})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = {suggest(study.ask(), space)["x"] for _ in range(150)}
    assert len(seen) == 12
    assert (min(seen), max(seen)) == (0.0, 1.0)
    assert list(distributions(space)) == ["x [step]"]
