"""Laws of the PPO arithmetic: padding, splitting, and the limits in which it becomes simple."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlhf_core import ppo

bounded = settings(max_examples=50, deadline=None, derandomize=True, database=None)


@dataclass(frozen=True)
class Batch:
    """Random float64 inputs; ``pad`` holds what stands outside the mask."""

    mask_BT: Tensor
    x_BT: Tensor
    y_BT: Tensor
    z_BT: Tensor
    scores_B: Tensor


@st.composite
def batches(draw: st.DrawFn, *, scale: float = 1.0) -> Batch:
    """Masks of any form: padding left or right, holes, empty rows."""
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    bits = draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    x, y, z = scale * torch.randn(3, rows, columns, generator=generator, dtype=torch.float64)
    scores_B = torch.randn(rows, generator=generator, dtype=torch.float64)
    return Batch(torch.tensor(bits).view(rows, columns), x, y, z, scores_B)


Function = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def _policy(mask: Tensor, x: Tensor, y: Tensor, z: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
    loss, stats = ppo.policy_loss(x, y, z, mask, clip_low=0.2, clip_high=0.3)
    return loss, *_numbers(stats)


def _value(mask: Tensor, x: Tensor, y: Tensor, z: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
    loss, stats = ppo.value_loss(x, y, z, mask, clip_range=0.3)
    return loss, *_numbers(stats)


def _entropy(mask: Tensor, x: Tensor, y: Tensor, z: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
    loss, stats = ppo.entropy_bonus(x, mask, coef=0.1)
    return loss, *_numbers(stats)


def _kl(mask: Tensor, x: Tensor, y: Tensor, z: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
    loss, stats = ppo.kl_loss(x, y, mask, coef=0.1, old_logprobs_BT=z)
    return loss, *_numbers(stats)


def _all_options(
    mask: Tensor, x: Tensor, y: Tensor, z: Tensor, scores: Tensor
) -> tuple[Tensor, ...]:
    loss, stats = ppo.policy_loss(
        x, y, z, mask, dual_clip=1.5, ratio="sequence", weights_BT=z, aggregation="sequence_sum"
    )
    return loss, *_numbers(stats)


def _correct(kind: str) -> Function:
    def function(
        mask: Tensor, x: Tensor, y: Tensor, z: Tensor, scores: Tensor
    ) -> tuple[Tensor, ...]:
        out = ppo.correct(kind, x, y, mask, low=0.5, high=1.5)
        return out.weights_BT, out.kept_BT, *_numbers(out.stats)

    return function


def _advantages(estimator: str) -> Function:
    def function(
        mask: Tensor, x: Tensor, y: Tensor, z: Tensor, scores: Tensor
    ) -> tuple[Tensor, ...]:
        return ppo.estimate_advantages(
            estimator,
            scores_B=scores,
            kl_BT=x,
            kl_coef=0.1,
            mask_BT=mask,
            groups_B=torch.arange(len(scores)) % 2,
            values_BT=y if estimator in ppo.NEEDS_CRITIC else None,
            gamma=0.9,
            whitening=ppo.USUAL_WHITENING[estimator],
        )

    return function


def _numbers(stats: Any) -> list[Tensor]:
    return [torch.tensor(v) for v in stats.metrics().values()]


FUNCTIONS: dict[str, Function] = {
    "masked_sum": lambda m, x, y, z, s: (ppo.masked_sum(x, m),),
    "masked_mean": lambda m, x, y, z, s: (ppo.masked_mean(x, m), ppo.masked_mean(x, m, dim=1)),
    "masked_var": lambda m, x, y, z, s: (ppo.masked_var(x, m), ppo.masked_var(x, m, unbiased=True)),
    "whiten": lambda m, x, y, z, s: (ppo.whiten(x, m), ppo.whiten(x, m, shift_mean=False)),
    "kl_penalised": lambda m, x, y, z, s: (ppo.kl_penalised(s, x, m, coef=0.1),),
    "gae": lambda m, x, y, z, s: ppo.gae(x, y, m, gamma=0.97, lam=0.9),
    "discounted_returns": lambda m, x, y, z, s: (ppo.discounted_returns(x, m, gamma=0.9),),
    "aggregate": lambda m, x, y, z, s: tuple(
        ppo.aggregate(x, m, aggregation=a) for a in ppo.AGGREGATIONS
    ),
    "policy_loss": _policy,
    "policy_loss_all_options": _all_options,
    "value_loss": _value,
    "entropy_bonus": _entropy,
    "kl_loss": _kl,
    **{f"correct_{kind}": _correct(kind) for kind in ppo.CORRECTIONS},
    **{f"advantages_{name}": _advantages(name) for name in ppo.ADVANTAGES},
}
SPREAD_OVER_TOKENS = [
    n for n in FUNCTIONS if n in ("whiten", "kl_penalised", "gae", "discounted_returns")
] + [f"advantages_{name}" for name in ppo.ADVANTAGES]


@pytest.mark.parametrize("name", FUNCTIONS)
@bounded
@given(batch=batches(), junk=st.sampled_from((0.0, -7.5, 1e30, math.inf, -math.inf, math.nan)))
def test_what_stands_outside_the_mask_never_matters(name: str, batch: Batch, junk: float) -> None:
    results = []
    for fill in (0.25, junk):
        padded = [
            x.masked_fill(~batch.mask_BT, fill).requires_grad_()
            for x in (batch.x_BT, batch.y_BT, batch.z_BT)
        ]
        out = FUNCTIONS[name](batch.mask_BT, *padded, batch.scores_B)
        gradients: tuple[Tensor, ...] = ()
        if out[0].requires_grad:
            gradients = torch.autograd.grad(out[0].square().sum(), padded[:1])
            assert not gradients[0][~batch.mask_BT].any()
        results.append((*out, *gradients))
    for ours, other in zip(*results, strict=True):
        assert torch.isfinite(ours).all()
        assert torch.equal(ours, other)


@pytest.mark.parametrize("name", SPREAD_OVER_TOKENS)
@bounded
@given(batch=batches())
def test_zeros_outside_the_mask_and_more_padding_changes_nothing(name: str, batch: Batch) -> None:
    inputs = (batch.x_BT, batch.y_BT, batch.z_BT)
    before = FUNCTIONS[name](batch.mask_BT, *inputs, batch.scores_B)
    wider = [torch.nn.functional.pad(x, (2, 3), value=9.0) for x in inputs]
    mask_BT = torch.nn.functional.pad(batch.mask_BT, (2, 3))
    after = FUNCTIONS[name](mask_BT, *wider, batch.scores_B)
    for old, new in zip(before, after, strict=True):
        assert not old[~batch.mask_BT].any()
        torch.testing.assert_close(new[:, 2:-3], old, rtol=1e-12, atol=1e-12)


@bounded
@given(batch=batches())
def test_whitened_values_have_mean_0_and_variance_1(batch: Batch) -> None:
    out_BT = ppo.whiten(batch.x_BT, batch.mask_BT, eps=0.0 if batch.mask_BT.sum() > 1 else 1e-8)
    assert ppo.masked_mean(out_BT, batch.mask_BT).item() == pytest.approx(0.0, abs=1e-12)
    if batch.mask_BT.sum() > 1:
        assert ppo.masked_var(out_BT, batch.mask_BT).item() == pytest.approx(1.0, abs=1e-9)


@bounded
@given(batch=batches(), gamma=st.sampled_from((1.0, 0.9)))
def test_lambda_1_gives_monte_carlo_return_minus_value(batch: Batch, gamma: float) -> None:
    advantages_BT, returns_BT = ppo.gae(batch.x_BT, batch.y_BT, batch.mask_BT, gamma=gamma, lam=1)
    for b in range(batch.mask_BT.shape[0]):
        total = 0.0
        for t in reversed(batch.mask_BT[b].nonzero().flatten().tolist()):
            total = float(batch.x_BT[b, t]) + gamma * total
            assert returns_BT[b, t].item() == pytest.approx(total, abs=1e-12)
            difference = total - float(batch.y_BT[b, t])
            assert advantages_BT[b, t].item() == pytest.approx(difference, abs=1e-12)


@bounded
@given(batch=batches(), lam=st.sampled_from((0.0, 0.5, 1.0)))
def test_true_values_make_advantages_vanish(batch: Batch, lam: float) -> None:
    _, true_BT = ppo.gae(batch.x_BT, batch.y_BT, batch.mask_BT, gamma=0.9, lam=1)
    advantages_BT, returns_BT = ppo.gae(batch.x_BT, true_BT, batch.mask_BT, gamma=0.9, lam=lam)
    torch.testing.assert_close(advantages_BT, torch.zeros_like(true_BT), rtol=0, atol=1e-12)
    torch.testing.assert_close(returns_BT, true_BT, rtol=0, atol=1e-12)


@bounded
@given(batch=batches(), shift=st.floats(-5, 5))
def test_a_higher_score_lifts_the_undiscounted_return_of_every_token(
    batch: Batch, shift: float
) -> None:
    returns = [
        ppo.gae(ppo.terminal_rewards(s, batch.mask_BT), batch.y_BT, batch.mask_BT, lam=1.0)[1]
        for s in (batch.scores_B, batch.scores_B + shift)
    ]
    expected_BT = shift * batch.mask_BT.double()
    torch.testing.assert_close(returns[1] - returns[0], expected_BT, rtol=0, atol=1e-12)


@bounded
@given(batch=batches())
def test_ratio_1_gives_the_plain_policy_gradient(batch: Batch) -> None:
    new_BT = batch.x_BT.clone().requires_grad_()
    loss, stats = ppo.policy_loss(new_BT, batch.x_BT, batch.z_BT, batch.mask_BT)
    (gradient,) = torch.autograd.grad(loss, new_BT)
    plain_BT = -batch.z_BT * batch.mask_BT / max(1, int(batch.mask_BT.sum()))
    torch.testing.assert_close(gradient, plain_BT, rtol=0, atol=1e-14)
    assert loss.item() == pytest.approx(plain_BT.sum().item(), abs=1e-12)
    metrics = stats.metrics()
    assert metrics["ratio_max"] == float(batch.mask_BT.any())
    assert [metrics[k] for k in ("clip_fraction_low", "clip_fraction_high", "approx_kl")] == [0] * 3


@pytest.mark.parametrize("ratio", ppo.RATIOS)
@bounded
@given(batch=batches())
def test_ratio_1_gives_the_plain_policy_gradient_of_a_sequence(ratio: Any, batch: Batch) -> None:
    # One advantage for each sequence, as group estimators give it.
    new_BT, advantages_BT = batch.x_BT.clone().requires_grad_(), batch.z_BT[:, :1]
    loss, _ = ppo.policy_loss(
        new_BT,
        batch.x_BT,
        advantages_BT.expand(new_BT.shape),
        batch.mask_BT,
        ratio=ratio,
        dual_clip=1.5,
        aggregation="sequence_mean_token_mean",
    )
    (gradient,) = torch.autograd.grad(loss, new_BT)
    share_BT = batch.mask_BT.double() / batch.mask_BT.sum(1, keepdim=True).clamp(min=1)
    plain_BT = -advantages_BT * share_BT / max(1, int(batch.mask_BT.any(1).sum()))
    torch.testing.assert_close(gradient, plain_BT, rtol=0, atol=1e-14)


@bounded
@given(batch=batches(scale=5.0), dtype=st.sampled_from((torch.float32, torch.float64)))
def test_k3_is_never_negative_and_k2_is_half_of_k1_squared(
    batch: Batch, dtype: torch.dtype
) -> None:
    new_BT, ref_BT = batch.x_BT.to(dtype), batch.y_BT.to(dtype)
    assert (ppo.k3(new_BT, ref_BT) >= 0).all()
    assert (ppo.k3(new_BT, new_BT + 1e-4 * ref_BT) >= 0).all()
    assert (ppo.estimate("k3", new_BT, ref_BT, bound=math.inf, value_clamp=10.0) >= 0).all()
    torch.testing.assert_close(ppo.k2(new_BT, ref_BT), ppo.k1(new_BT, ref_BT).square() / 2)
    assert torch.equal(ppo.k1(new_BT, ref_BT), -ppo.k1(ref_BT, new_BT))


@pytest.mark.parametrize("name", ["policy", "value", "entropy"])
@bounded
@given(batch=batches(), data=st.data())
def test_any_split_into_micro_batches_adds_up_to_the_full_batch(
    name: str, batch: Batch, data: st.DataObject
) -> None:
    losses: dict[str, Callable[..., tuple[Tensor, Any]]] = {
        "policy": lambda x, y, z, m, n: ppo.policy_loss(x, y, z, m, clip_low=0.1, normalizer=n),
        "value": lambda x, y, z, m, n: ppo.value_loss(x, y, z, m, clip_range=0.4, normalizer=n),
        "entropy": lambda x, y, z, m, n: ppo.entropy_bonus(x, m, coef=0.3, normalizer=n),
    }
    tokens = max(1, int(batch.mask_BT.sum()))
    size = len(batch.scores_B)
    order = data.draw(st.permutations(range(size)))
    cuts = sorted(data.draw(st.sets(st.integers(1, size))) | {0, size})
    parts = [order[a:b] for a, b in itertools.pairwise(cuts)]
    full_BT, split_BT = (batch.x_BT.clone().requires_grad_() for _ in range(2))
    full, full_stats = losses[name](full_BT, batch.y_BT, batch.z_BT, batch.mask_BT, None)
    full.backward()
    total, stats = 0.0, None
    for part in parts:
        # Columns that are padding for the whole part are cut off, as a collator does.
        width = 1 + max((int(t) for t in batch.mask_BT[part].nonzero()[:, 1]), default=0)
        cut = [x[part][:, :width] for x in (split_BT, batch.y_BT, batch.z_BT, batch.mask_BT)]
        loss, part_stats = losses[name](*cut, tokens)
        loss.backward()
        total += loss.item()
        stats = part_stats if stats is None else stats + part_stats
    assert stats is not None
    assert total == pytest.approx(full.item(), abs=1e-10)
    torch.testing.assert_close(split_BT.grad, full_BT.grad, rtol=0, atol=1e-10)
    assert stats.metrics() == pytest.approx(full_stats.metrics(), abs=1e-10)
    for key in ("clip_fraction_low", "clip_fraction_high", "clip_fraction", "ratio_max"):
        assert stats.metrics().get(key) == pytest.approx(full_stats.metrics().get(key), abs=1e-14)


@pytest.mark.parametrize("kept_only", [False, True])
@pytest.mark.parametrize("correction", ppo.CORRECTIONS)
@pytest.mark.parametrize("aggregation", ppo.AGGREGATIONS)
@pytest.mark.parametrize("ratio", ppo.RATIOS)
@settings(bounded, max_examples=10)
@given(batch=batches(), data=st.data())
def test_any_split_adds_up_under_every_option(
    ratio: Any,
    aggregation: Any,
    correction: str,
    kept_only: bool,
    batch: Batch,
    data: st.DataObject,
) -> None:
    def losses(rows: list[int], new_BT: Tensor, counts: Any) -> tuple[Tensor, Any, Any, Tensor]:
        x, y, z, mask = (t[rows] for t in (batch.x_BT, batch.y_BT, batch.z_BT, batch.mask_BT))
        fix = ppo.correct(correction, x, y, mask, low=0.5, high=1.5)
        mask = fix.kept_BT if kept_only else mask
        options: dict[str, Any] = {"aggregation": aggregation, "normalizer": counts}
        policy, stats = ppo.policy_loss(
            new_BT[rows],
            x,
            z,
            mask,
            dual_clip=2.0,
            ratio=ratio,
            weights_BT=fix.weights_BT,
            **options,
        )
        kl, kl_stats = ppo.kl_loss(new_BT[rows], y, mask, coef=0.3, old_logprobs_BT=x, **options)
        value, _ = ppo.value_loss(new_BT[rows], y, z, mask, clip_range=0.4, **options)
        entropy, _ = ppo.entropy_bonus(new_BT[rows], mask, coef=0.3, **options)
        return policy + kl + value + entropy, stats, (kl_stats, fix.stats), mask

    size = len(batch.scores_B)
    order = data.draw(st.permutations(range(size)))
    cuts = sorted(data.draw(st.sets(st.integers(1, size))) | {0, size})
    parts = [order[a:b] for a, b in itertools.pairwise(cuts)]
    full_BT, split_BT = ((batch.x_BT - batch.y_BT).requires_grad_() for _ in range(2))
    full, full_stats, full_more, mask_BT = losses(list(range(size)), full_BT, None)
    full.backward()
    out = [losses(part, split_BT, ppo.Normalizer.of(mask_BT)) for part in parts]
    sum(o[0] for o in out).backward()  # type: ignore[union-attr]
    assert sum(o[0].item() for o in out) == pytest.approx(full.item(), abs=1e-10)
    torch.testing.assert_close(split_BT.grad, full_BT.grad, rtol=0, atol=1e-10)
    stats = functools.reduce(operator.add, (o[1] for o in out))
    assert stats.metrics() == pytest.approx(full_stats.metrics(), abs=1e-10)
    for index, whole in enumerate(full_more):
        more = functools.reduce(operator.add, (o[2][index] for o in out))
        assert more.metrics() == pytest.approx(whole.metrics(), abs=1e-10)


@bounded
@given(
    lengths=st.lists(st.integers(0, 30), max_size=20),
    max_tokens=st.one_of(st.none(), st.integers(30, 90)),
    max_sequences=st.one_of(st.none(), st.integers(1, 6)),
)
def test_micro_batches_hold_every_sequence_once_within_bounds(
    lengths: list[int], max_tokens: int | None, max_sequences: int | None
) -> None:
    if max_tokens is None and max_sequences is None:
        max_tokens = 30
    groups = ppo.micro_batches(lengths, max_tokens=max_tokens, max_sequences=max_sequences)
    assert sorted(i for g in groups for i in g) == list(range(len(lengths)))
    for group in groups:
        assert max_sequences is None or len(group) <= max_sequences
        assert max_tokens is None or len(group) * max(lengths[i] for i in group) <= max_tokens
    flat = [lengths[i] for g in groups for i in g]
    assert flat == sorted(flat, reverse=True)


@bounded
@given(batch=batches(), shift=st.floats(-50, 50), temperature=st.sampled_from((0.5, 1.0, 2.0)))
def test_logits_may_be_shifted_and_probabilities_sum_to_1(
    batch: Batch, shift: float, temperature: float
) -> None:
    logits_BTV = torch.stack((batch.x_BT, batch.y_BT, batch.z_BT), dim=-1)
    total_BT = torch.zeros_like(batch.x_BT)
    for token in range(3):
        tokens_BT = torch.full(batch.x_BT.shape, token)
        logprobs_BT = ppo.token_logprobs(logits_BTV, tokens_BT, temperature=temperature)
        moved_BT = ppo.token_logprobs(logits_BTV + shift, tokens_BT, temperature=temperature)
        torch.testing.assert_close(moved_BT, logprobs_BT, rtol=0, atol=1e-11)
        total_BT += logprobs_BT.exp()
    torch.testing.assert_close(total_BT, torch.ones_like(total_BT), rtol=0, atol=1e-12)
    entropy_BT = ppo.entropy(logits_BTV, temperature=temperature)
    assert ((entropy_BT >= 0) & (entropy_BT <= math.log(3) + 1e-12)).all()
