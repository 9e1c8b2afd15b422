"""Ranks of the learner and the critic: together they are one rank with all rows, and none waits for the dead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import Zoo
from tiny_rollouts import CONTEXT, experience, settings, trial_config, weights

from rlhf_core.errors import DivergedError, RankError
from rlhf_core.metrics import CATALOGUE, repeatable
from rlhf_core.models.weights import checksum
from rlhf_core.ranks import Seat, balanced
from rlhf_core.runtime.base import RoleGroup, gather
from rlhf_core.runtime.groups import connect
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import Bundle, PlacementPlan, WorkerPlace
from rlhf_core.store import LocalStore
from rlhf_core.types import Experience, UpdateSettings, concat_rollouts

ODD = [[0, 5, 2], [1, 3, 4, 6, 7]]
OPTIONS = {
    "entropy_coef": 0.01,
    "value_clip_range": 0.2,
    "dual_clip": 2.0,
    "kl_coef": 0.1,
    "correction": {"kind": "tis"},
}


@contextlib.contextmanager
def _ranks(zoo: Zoo, name: str, count: int, **values: Any) -> Iterator[RoleGroup]:
    """A role on ``count`` ranks, threads of this process."""
    plan = PlacementPlan(
        "split",
        "PACK",
        tuple(Bundle(f"{name} {i}", 1.0, 0.0, 0.0) for i in range(count)),
        tuple(WorkerPlace(name, (name,), i, i) for i in range(count)),
    )
    runtime = LocalRuntime(trial_config(zoo, **values), plan)
    try:
        yield runtime.group(name)
    finally:
        runtime.close()


def _roles(group: RoleGroup) -> list[Any]:
    return [worker.host.role(group.role) for worker in group.workers]  # type: ignore[attr-defined]


def _updated(
    group: RoleGroup, batch: Experience, how: UpdateSettings
) -> tuple[dict[str, float], torch.Tensor]:
    """Metrics of an update and the weights after it, equal bits on all ranks."""
    metrics = group.together("update", CONTEXT, batch, how).result()
    proofs = {checksum([weights(role).view(torch.uint8)]) for role in _roles(group)}
    assert len(proofs) == 1
    return metrics, weights(_roles(group)[0])


def _batch(zoo: Zoo) -> Experience:
    batch = experience(zoo)
    return replace(batch, ref_logprobs_BT=batch.rollout.logprobs_BT * 1.1)


@pytest.mark.parametrize("name", ["learner", "critic"])
@pytest.mark.parametrize("micro", [{}, {"micro_batch_size": 2}, {"micro_batch_tokens": 30}])
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_compute_what_one_rank_computes(
    zoo: Zoo, name: str, count: int, micro: dict[str, int]
) -> None:
    results = []
    for ranks in (1, count):
        with _ranks(zoo, name, ranks) as group:
            for role in _roles(group):
                role.model.double()
            how = settings(ODD, **OPTIONS, **(micro if ranks > 1 else {}))
            results.append(_updated(group, _batch(zoo), how))
    (want, before), (got, after) = results
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-10)
    assert got.keys() == want.keys() <= CATALOGUE.keys()
    assert {"time/allreduce_learner", "time/allreduce_critic"} & got.keys()
    for key, value in repeatable(want).items():
        assert got[key] == pytest.approx(value, rel=1e-10, abs=1e-10), key


@pytest.mark.parametrize("name", ["learner", "critic"])
def test_one_step_in_single_precision(zoo: Zoo, name: str) -> None:
    grads, metrics, batch = [], [], _batch(zoo)
    # As if sampled by another policy, so that some tokens are clipped.
    noise_BT = 0.3 * torch.sin(torch.arange(batch.advantages_BT.numel())).view_as(batch.values_BT)
    batch = replace(batch, old_logprobs_BT=batch.rollout.logprobs_BT + noise_BT)
    for ranks in (1, 2, 3):
        with _ranks(zoo, name, ranks) as group:
            metrics.append(_updated(group, batch, settings(value_clip_range=0.01))[0])
            parameters = _roles(group)[0].model.parameters()
            grads.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
    shares = {"learner": ("policy/clip_fraction_low", "policy/clip_fraction_high")}
    for key in shares.get(name, ("value/clip_fraction",)):
        assert 0 < metrics[0][key] < 1
        assert metrics[0][key] == metrics[1][key] == metrics[2][key]
    for grad in grads[1:]:
        assert float((grad - grads[0]).norm() / grads[0].norm()) < 1e-5


@pytest.mark.parametrize("name", ["learner", "critic"])
def test_fewer_rows_than_ranks(zoo: Zoo, name: str) -> None:
    results = []
    for ranks in (1, 3):
        with _ranks(zoo, name, ranks) as group:
            results.append(_updated(group, _batch(zoo), settings([[4], [1, 2]], eps=1e-2)))
            all_metrics = gather(group.call_all("update", CONTEXT, _batch(zoo), settings([[4]])))
            assert all_metrics[1:] == [{}] * (ranks - 1)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-5, atol=1e-6)
    for key, value in repeatable(results[0][0]).items():
        assert results[1][0][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


def test_padding_and_bucket_size_change_nothing(zoo: Zoo) -> None:
    batch = _batch(zoo)
    wide = replace(
        batch.rollout,
        tokens_BL=torch.nn.functional.pad(batch.rollout.tokens_BL, (0, 7)),
    )
    assert concat_rollouts([wide], 0).tokens_BL.shape[1] > batch.rollout.tokens_BL.shape[1]
    found = []
    for values, given_batch in (
        ({}, batch),
        ({"sync__bucket_mb": 1e-3}, batch),
        ({}, replace(batch, rollout=wide)),
    ):
        with _ranks(zoo, "learner", 2, **values) as group:
            found.append(_updated(group, given_batch, settings(ODD))[1])
    assert torch.equal(found[0], found[2])
    # Sums of two numbers do not depend on the order.
    assert torch.equal(found[0], found[1])


def test_parameters_that_no_rank_uses_stay(zoo: Zoo) -> None:
    with _ranks(zoo, "critic", 2) as group:
        for role in _roles(group):
            role.model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
            role.engine.optimizer.add_param_group({"params": [role.model.unused]})
        _updated(group, _batch(zoo), settings(weight_decay=1.0))
        assert all(role.model.unused.grad is None for role in _roles(group))
        assert all(role.model.unused.tolist() == [1.0] * 3 for role in _roles(group))


def test_values_are_those_of_one_rank(zoo: Zoo) -> None:
    rollout, found = _batch(zoo).rollout, []
    for ranks in (1, 3):
        with _ranks(zoo, "critic", ranks, optim__micro_batch_size=2) as group:
            gather(group.call_all("update", CONTEXT, _batch(zoo), settings()))
            calls = group.call_all("values", CONTEXT, rollout)
            found += gather(calls)
    assert float(found[0].abs().max()) > 0
    for values_BT in found[1:]:
        torch.testing.assert_close(values_BT, found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["learner", "critic"])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_on_one_rank_is_a_divergence_of_all(
    zoo: Zoo, name: str, where: str
) -> None:
    batch = _batch(zoo)
    # One row, so one rank; the gradient overflows where the loss is still finite.
    bad = float("inf") if where == "loss" else 3e38
    batch.advantages_BT[3] = bad
    batch.returns_BT[3] = bad if where == "loss" else 1e19
    with _ranks(zoo, name, 3) as group:
        before = [weights(role) for role in _roles(group)]
        for future in group.call_all("update", CONTEXT, batch, settings()):
            with pytest.raises(DivergedError, match=f"{name}: "):
                future.result(timeout=30)
        assert all(map(torch.equal, before, map(weights, _roles(group))))


def test_values_that_are_not_finite_on_one_rank_are_a_divergence_of_all(zoo: Zoo) -> None:
    with _ranks(zoo, "critic", 2) as group:
        with torch.no_grad():
            next(_roles(group)[1].model.parameters()).fill_(float("nan"))
        for future in group.call_all("values", CONTEXT, _batch(zoo).rollout):
            with pytest.raises(DivergedError, match="critic: values"):
                future.result(timeout=30)


def test_an_error_of_one_rank_ends_all_and_is_the_one_that_is_raised(zoo: Zoo) -> None:
    with _ranks(zoo, "learner", 3) as group:
        embedding = _roles(group)[1].model.get_input_embeddings()
        embedding.weight = torch.nn.Parameter(embedding.weight[:2].clone())
        futures = group.call_all("update", CONTEXT, _batch(zoo), settings())
        for rank in (0, 2):
            with pytest.raises(RankError, match=r"learner: rank 1 of 3 failed: IndexError"):
                futures[rank].result(timeout=30)
        with pytest.raises(IndexError):
            group.together("update", CONTEXT, _batch(zoo), settings()).result(timeout=30)


def test_a_rank_that_never_comes_is_waited_for_until_the_timeout(zoo: Zoo) -> None:
    with _ranks(zoo, "learner", 2, sync__timeout_s=1.0) as group:
        call = group.workers[0].call("learner", "update", CONTEXT, _batch(zoo), settings())
        with pytest.raises(RankError, match=r"rank 0 of 2 lost the others: .* within 1 s \(sync"):
            call.result(timeout=30)


def test_ranks_that_do_not_meet_are_an_error(zoo: Zoo) -> None:
    config = trial_config(zoo, sync__timeout_s=1.0)
    with _ranks(zoo, "learner", 2) as group:
        first = group.workers[0]
        store = first.call("learner", "listen", CONTEXT, "alone", "127.0.0.1", 1.0).result()
        seat = Seat("alone", 0, 2, store, "127.0.0.1", timeout_s=1.0)
        with pytest.raises(RankError, match="alone: rank 0 of 2 does not meet the others"):
            first.call("learner", "join", CONTEXT, seat).result(timeout=30)
        # Another group of the same workers is none the worse for it.
        connect("again", [(worker, "learner") for worker in group.workers], config.sync)


def test_many_groups_live_in_one_process(zoo: Zoo) -> None:
    with contextlib.ExitStack() as stack:
        groups = [stack.enter_context(_ranks(zoo, "critic", 2)) for _ in range(3)]
        calls = [g.together("update", CONTEXT, _batch(zoo), settings()) for g in groups]
        first, *others = map(repeatable, gather(calls))
        assert others == [first, first]


@pytest.mark.parametrize("counts", [(2, 1), (1, 3), (3, 2)])
def test_a_checkpoint_of_n_ranks_goes_on_with_m(
    zoo: Zoo, tmp_path: Path, counts: Sequence[int]
) -> None:
    uri, batch, found = LocalStore(tmp_path).uri, _batch(zoo), []
    with _ranks(zoo, "learner", counts[0]) as group:
        _updated(group, batch, settings(ODD))
        entry = group.call("save", CONTEXT, uri, 1).result()
        found.append(_updated(group, batch, settings(eps=1e-2)))
    with _ranks(zoo, "learner", counts[1]) as group:
        gather(group.call_all("load", CONTEXT, uri, entry))
        found.append(_updated(group, batch, settings(eps=1e-2)))
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-5, atol=1e-6)
    for key, value in repeatable(found[0][0]).items():
        assert found[1][0][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 5))
def test_shares_are_whole_and_balanced(lengths: list[int], ranks: int) -> None:
    shares = balanced(lengths, ranks)
    assert sorted(i for share in shares for i in share) == list(range(len(lengths)))
    assert all(share == sorted(share) for share in shares)
    assert bool(shares[0]) == bool(lengths)
    loads = [sum(max(1, lengths[i]) for i in share) for share in shares]
    assert max(loads) - min(loads) <= max([1, *lengths])
    assert balanced(lengths, ranks) == shares


def test_long_rows_go_apart() -> None:
    assert balanced([3, 9, 4, 8], 2) == [[0, 1], [2, 3]]
