"""Laws of group estimators and of the running normalisation; the others: ``tests/property``."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core import ppo

bounded = settings(max_examples=50, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize("estimator", sorted(ppo.NEEDS_GROUPS))
@bounded
@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    seed=st.integers(0, 2**32),
    shift=st.floats(-100, 100),
    scale=st.floats(0.1, 10),
)
def test_group_estimators_see_only_differences_within_a_group(
    estimator: str, ids: list[int], seed: int, shift: float, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups_B = torch.tensor(ids)
    scores_B = torch.randint(0, 4, (len(ids),), generator=generator).double()
    before_B = ppo.baselined_scores(estimator, scores_B, groups_B)
    moved_B = scores_B + shift * (1 + groups_B)
    after_B = ppo.baselined_scores(estimator, moved_B, groups_B)
    torch.testing.assert_close(after_B, before_B, rtol=0, atol=1e-6)
    # Rows may stand in any order, and ids are only names.
    order = torch.randperm(len(ids), generator=generator)
    renamed_B = ppo.baselined_scores(estimator, scores_B[order], 7 - 3 * groups_B[order])
    torch.testing.assert_close(renamed_B, before_B[order], rtol=0, atol=1e-12)
    for group in set(ids):
        assert before_B[groups_B == group].sum().item() == pytest.approx(0.0, abs=1e-9)
    # No spread, no advantage; and group_norm alone does not see the scale.
    flat_B = ~ppo.groups_with_spread(scores_B, groups_B)
    assert before_B[flat_B].abs().sum().item() == pytest.approx(0.0, abs=1e-9)
    scaled_B = ppo.baselined_scores(estimator, scale * scores_B, groups_B, group_eps=0.0)
    unscaled_B = ppo.baselined_scores(estimator, scores_B, groups_B, group_eps=0.0)
    factor = 1.0 if estimator == "group_norm" else scale
    torch.testing.assert_close(scaled_B, factor * unscaled_B, rtol=1e-9, atol=1e-9)


@bounded
@given(
    scores=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), cuts=st.sets(st.integers(0, 12))
)
def test_running_norm_does_not_depend_on_the_batches(scores: list[float], cuts: set[int]) -> None:
    scores_B = torch.tensor(scores, dtype=torch.float64)
    whole, state = ppo.RunningNorm().update(scores_B), ppo.RunningNorm()
    for a, b in itertools.pairwise(sorted(cuts | {0, 12})):
        state = state.update(scores_B[a:b])
    assert state.count == whole.count
    assert (state.mean, state.m2) == pytest.approx((whole.mean, whole.m2), rel=1e-9, abs=1e-9)
    torch.testing.assert_close(whole.mean, float(scores_B.mean()), rtol=1e-12, atol=1e-12)
