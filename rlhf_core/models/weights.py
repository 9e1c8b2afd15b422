"""How weights travel from the learner to the rollouts: as bytes in buckets, straight from and into parameters.

A delivery is the bytes of its parameters, one after the other, cut into buckets. Every bucket is proven by its
checksum before it is copied; nobody holds a second copy of the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from rlhf_core.errors import RlhfError
from rlhf_core.ranks import Ranks

GROUP = "weights"
TRAILER = 3
_WORD = 2**64


@dataclass(frozen=True)
class Header:
    """What a delivery says about itself.

    Attributes:
        version: Weight version.
        bucket_bytes: Size of every bucket but the last.
        tensors: ``(name, type, shape)`` of the parameters it carries, in order: those that can change.
    """

    version: int
    bucket_bytes: int
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each tensor."""
        return [math.prod(shape) * getattr(torch, kind).itemsize for _, kind, shape in self.tensors]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Bucket:
    """One part of a delivery.

    Attributes:
        index: Position.
        pieces: Its bytes (uint8), piece by piece as they lie in the parameters.
        checksum: XXH3 of them, 64 bits.
    """

    index: int
    pieces: Sequence[Tensor]
    checksum: int

    def copy(self) -> Bucket:
        """The bucket with pieces of its own."""
        return replace(self, pieces=[piece.clone() for piece in self.pieces])


class Detached(nn.Module):
    """Weights without their model, under the names they have in it."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._weights = {name: nn.Parameter(weight) for name, weight in weights.items()}

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._weights.items()


def header_of(model: nn.Module, version: int, bucket_bytes: int) -> Header:
    """The header of a delivery of ``model``; frozen parameters stay at home, every receiver has them."""
    tensors = tuple(
        (name, *_kind(parameter))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    )
    return Header(version, bucket_bytes, tensors)


def buckets_of(model: nn.Module, header: Header) -> list[Bucket]:
    """The weights of ``model`` as buckets of views, which change with the model."""
    return [Bucket(i, p, checksum(p)) for i, p in enumerate(_pieces(model, header))]


def checksum(pieces: Iterable[Tensor]) -> int:
    """XXH3 (64 bits) of the bytes of all pieces, one after the other."""
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece.cpu().numpy().data)
    return digest.intdigest()


@torch.no_grad()
def load(model: nn.Module, header: Header, buckets: Iterable[Bucket]) -> None:
    """Copies buckets into the parameters of ``model`` in place.

    Raises:
        RlhfError: If a bucket is not what was sent, one is missing, or the model has other parameters.
    """
    targets, count = _pieces(model, header), 0
    for bucket in buckets:
        if count < len(targets):
            _take(header, bucket, count, targets[count])
        count += 1
    if count != len(targets):
        raise RlhfError(
            f"weights: version {header.version} arrived with {count} buckets instead of {len(targets)}"
        )


def send(model: nn.Module, header: Header, ranks: Ranks) -> None:
    """Broadcasts the weights of ``model`` to the other ranks, which are in ``receive``.

    Raises:
        RankError: If one of them could not take them.
    """
    text = torch.frombuffer(bytearray(json.dumps(asdict(header)).encode()), dtype=torch.uint8)
    ranks.broadcast(torch.tensor([len(text)], device=ranks.device))
    ranks.broadcast(text.to(ranks.device))
    with ranks.shared_fate():
        for index, pieces in enumerate(_pieces(model, header)):
            flat = torch.cat([*pieces, pieces[0].new_empty(8 * TRAILER)]).to(ranks.device)
            proof = checksum([flat[: -8 * TRAILER]])
            trailer = torch.tensor([header.version, index, proof - _WORD * (proof >= _WORD // 2)])
            flat[-8 * TRAILER :].copy_(trailer.view(torch.uint8))
            ranks.broadcast(flat)


@torch.no_grad()
def receive(model: nn.Module, version: int | None, ranks: Ranks) -> Header:
    """Takes what rank 0 sends into the parameters of ``model`` in place; returns its header.

    Args:
        model: The receiver.
        version: The version expected, None for any.
        ranks: The group.

    Raises:
        RlhfError: As for ``load``, or if the version is another; after the last bucket, so that no other rank
            is kept waiting.
    """
    length = torch.zeros(1, dtype=torch.int64, device=ranks.device)
    ranks.broadcast(length)
    text = torch.zeros(int(length), dtype=torch.uint8, device=ranks.device)
    ranks.broadcast(text)
    told = json.loads(bytes(text.tolist()))
    tensors = tuple((name, kind, tuple(shape)) for name, kind, shape in told["tensors"])
    header = Header(told["version"], told["bucket_bytes"], tensors)
    with ranks.shared_fate():
        error: RlhfError | None = None
        for index, spans in enumerate(_spans(header)):
            sizes = [stop - start for _, start, stop in spans]
            flat = torch.empty(sum(sizes) + 8 * TRAILER, dtype=torch.uint8, device=ranks.device)
            ranks.broadcast(flat)
            try:
                if error is None:
                    check_version(header, version)
                    targets = _pieces(model, header)[index]
                    _take(header, _opened(header, flat, sizes), index, targets)
            except RlhfError as wrong:
                error = wrong
        if error is not None:
            raise error
    return header


def check_version(header: Header, version: int | None) -> None:
    """Refuses a delivery of another version than ``version``; None takes any."""
    if version is not None and header.version != version:
        raise RlhfError(f"weights: version {header.version} arrived, but {version} was expected")


def _opened(header: Header, flat: Tensor, sizes: Sequence[int]) -> Bucket:
    trailer = flat[-8 * TRAILER :].cpu().clone().view(torch.int64)
    version, index, proof = trailer.tolist()
    check_version(Header(version, header.bucket_bytes, ()), header.version)
    return Bucket(index, flat[: -8 * TRAILER].split(list(sizes)), proof % _WORD)


def _take(header: Header, bucket: Bucket, index: int, targets: Sequence[Tensor]) -> None:
    """Copies a bucket once its place, sizes and checksum are proven."""
    seen = checksum(bucket.pieces)
    sizes = [piece.numel() for piece in bucket.pieces]
    if (bucket.index, seen) != (index, bucket.checksum) or sizes != [t.numel() for t in targets]:
        raise RlhfError(
            f"weights: bucket {index} of version {header.version} arrived altered: it is bucket {bucket.index}, "
            f"{sum(sizes)} bytes with checksum {seen:016x}, but {bucket.checksum:016x} was sent"
        )
    for target, piece in zip(targets, bucket.pieces, strict=True):
        target.copy_(piece)


def _pieces(model: nn.Module, header: Header) -> list[list[Tensor]]:
    """The header's parameters of ``model``, cut into buckets: views of bytes."""
    parameters = dict(model.named_parameters())
    flat = []
    for name, *kind in header.tensors:
        found = parameters.get(name)
        if found is None or list(_kind(found)) != kind:
            has = "none of this name" if found is None else " ".join(map(str, _kind(found)))
            raise RlhfError(
                f"weights: version {header.version} belongs to another model: it carries {name} as "
                f"{' '.join(map(str, kind))}, the receiver has {has}"
            )
        flat.append(found.detach().view(-1).view(torch.uint8))
    return [[flat[tensor][start:stop] for tensor, start, stop in spans] for spans in _spans(header)]


def _spans(header: Header) -> list[list[tuple[int, int, int]]]:
    """``(tensor, first byte, byte after the last)`` of every piece of every bucket."""
    buckets: list[list[tuple[int, int, int]]] = []
    room = 0
    for tensor, size in enumerate(header.sizes):
        start = 0
        while start < size:
            if room == 0:
                buckets.append([])
                room = header.bucket_bytes
            stop = min(size, start + room)
            buckets[-1].append((tensor, start, stop))
            room -= stop - start
            start = stop
    return buckets


def _kind(parameter: Tensor) -> tuple[str, tuple[int, ...]]:
    return str(parameter.dtype).removeprefix("torch."), tuple(parameter.shape)
