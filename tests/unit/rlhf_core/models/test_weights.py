"""Deliveries of weights: whole or refused, in place, in buckets of bounded size, over both transports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import CONTEXT, CPU
from torch import nn

from rlhf_core.errors import RankError, RlhfError
from rlhf_core.models.load import load_policy
from rlhf_core.models.weights import (
    Bucket,
    Header,
    buckets_of,
    checksum,
    header_of,
    load,
    receive,
    send,
)
from rlhf_core.ranks import Member, Ranks, Seat

LIMIT = 2_000


def _model(zoo: Zoo, family: str = "Llama", dtype: str = "float32") -> nn.Module:
    return load_policy(zoo.policies[family], dtype, CPU)


def _moved(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model


def _equal(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


def _packed(model: nn.Module, version: int = 2) -> tuple[Header, list[Bucket]]:
    header = header_of(model, version, LIMIT)
    return header, buckets_of(model, header)


@contextlib.contextmanager
def _group(size: int, timeout_s: float = 20.0) -> Iterator[tuple[list[Ranks], ThreadPoolExecutor]]:
    """The ranks of a group and a thread for each."""
    member = Member()
    member.device = CPU
    store = member.listen(CONTEXT, "weights", "127.0.0.1", timeout_s)
    with ThreadPoolExecutor(size) as pool:
        seats = [
            Seat("weights", i, size, store, "127.0.0.1", timeout_s=timeout_s) for i in range(size)
        ]
        first = pool.submit(Ranks, seats[0], member._stores["weights"])
        ranks = [first, *(pool.submit(Ranks, seat) for seat in seats[1:])]
        yield [future.result() for future in ranks], pool


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_weights_arrive_in_place_in_buckets(zoo: Zoo, family: str, dtype: str) -> None:
    source, target = _moved(_model(zoo, family, dtype)), _model(zoo, family, dtype)
    header, buckets = _packed(source, 5)
    sizes = [sum(piece.nbytes for piece in bucket.pieces) for bucket in buckets]
    assert set(sizes[:-1]) == {LIMIT}
    assert sum(sizes) == header.nbytes == sum(p.nbytes for p in source.parameters())
    # No copy is made of a parameter, and a parameter larger than a bucket is cut.
    addresses = {p.untyped_storage().data_ptr() for p in source.parameters()}
    assert {p.untyped_storage().data_ptr() for b in buckets for p in b.pieces} == addresses
    assert any(p.nbytes > LIMIT for p in source.parameters())
    before = [p.data_ptr() for p in target.parameters()]
    load(target, header, buckets)
    assert _equal(source, target)
    assert before == [p.data_ptr() for p in target.parameters()]


ALTERED: dict[str, Callable[[list[Bucket]], list[Bucket]]] = {
    "a bit": lambda b: [replace(b[0], pieces=[p ^ 1 for p in b[0].pieces]), *b[1:]],
    "swapped contents": lambda b: [
        replace(b[0], pieces=b[1].pieces),
        replace(b[1], pieces=b[0].pieces),
        *b[2:],
    ],
    "swapped buckets": lambda b: [b[1], b[0], *b[2:]],
    "a truncated bucket": lambda b: [replace(b[0], pieces=[p[:-8] for p in b[0].pieces]), *b[1:]],
    "swapped words of a bucket": lambda b: [
        replace(b[0], pieces=[torch.cat([p[4:8], p[:4], p[8:]]) for p in b[0].pieces]),
        *b[1:],
    ],
    "one bucket less": lambda b: b[:-1],
    "one bucket more": lambda b: [*b, b[-1]],
    "nothing": lambda b: [],
}


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_delivery_is_refused(zoo: Zoo, what: str) -> None:
    source = _moved(_model(zoo))
    header, buckets = _packed(source)
    with pytest.raises(RlhfError, match="version 2 arrived"):
        load(_model(zoo), header, ALTERED[what](buckets))


def test_a_first_bucket_that_is_refused_changes_nothing(zoo: Zoo) -> None:
    header, buckets = _packed(_moved(_model(zoo)))
    target = _model(zoo)
    wrong = checksum(buckets[0].pieces) ^ 1
    with pytest.raises(RlhfError, match=f"{buckets[0].checksum:016x}, but {wrong:016x} was sent"):
        load(target, header, [replace(buckets[0], checksum=wrong), *buckets[1:]])
    assert _equal(target, _model(zoo))


def test_a_delivery_to_another_model_is_refused(zoo: Zoo) -> None:
    header, buckets = _packed(_model(zoo))
    wider = _model(zoo)
    wider.resize_token_embeddings(40)  # type: ignore[operator]
    for model in (_model(zoo, "GPT2"), wider, _model(zoo, dtype="bfloat16")):
        with pytest.raises(
            RlhfError, match=r"belongs to another model: it carries .* receiver has"
        ):
            load(model, header, buckets)


def test_frozen_parameters_do_not_travel(zoo: Zoo) -> None:
    source, target = _model(zoo), _model(zoo)
    for name, parameter in source.named_parameters():
        parameter.requires_grad_("layers.1" in name)
    whole = header_of(_model(zoo), 2, LIMIT)
    header, buckets = _packed(_moved(source))
    assert 0 < header.nbytes < whole.nbytes / 2
    load(target, header, buckets)
    for (name, got), sent in zip(target.named_parameters(), source.parameters(), strict=True):
        assert torch.equal(got, sent) == ("layers.1" in name), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_broadcast_reaches_every_rank(zoo: Zoo, dtype: str) -> None:
    source = _moved(_model(zoo, dtype=dtype))
    targets = [_model(zoo, dtype=dtype) for _ in range(2)]
    with _group(3) as (ranks, pool):
        sent = pool.submit(send, source, header_of(source, 4, LIMIT), ranks[0])
        got = [pool.submit(receive, t, 4, r) for t, r in zip(targets, ranks[1:], strict=True)]
        sent.result()
        assert [future.result().version for future in got] == [4, 4]
    assert all(_equal(source, target) for target in targets)


def _wrong_version(zoo: Zoo) -> tuple[nn.Module, int, str]:
    return _model(zoo), 5, "version 4 arrived, but 5 was expected"


def _wrong_model(zoo: Zoo) -> tuple[nn.Module, int, str]:
    return _model(zoo, "GPT2"), 4, "version 4 belongs to another model"


@pytest.mark.parametrize("case", [_wrong_version, _wrong_model])
def test_what_one_receiver_refuses_ends_the_broadcast_for_all(
    zoo: Zoo, case: Callable[[Zoo], tuple[nn.Module, int, str]]
) -> None:
    source = _moved(_model(zoo))
    wrong, version, message = case(zoo)
    kept = [p.clone() for p in wrong.parameters()]
    with _group(3) as (ranks, pool):
        calls: list[Future[Any]] = [
            pool.submit(send, source, header_of(source, 4, LIMIT), ranks[0]),
            pool.submit(receive, wrong, version, ranks[1]),
            pool.submit(receive, _model(zoo), 4, ranks[2]),
        ]
        with pytest.raises(RlhfError, match=message):
            calls[1].result(timeout=30)
        for call in (calls[0], calls[2]):
            with pytest.raises(RankError, match=f"rank 1 of 3 failed: RlhfError: .*{message}"):
                call.result(timeout=30)
    assert all(map(torch.equal, wrong.parameters(), kept))
