"""Weights through Ray's object store: one copy in, on every node one more, one out for each rollout worker."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import Tensor

from rlhf_core.models.weights import Bucket, Header


@dataclass(frozen=True)
class Parcel:
    """A delivery in the object store. Buckets are freed with the last copy of it.

    Attributes:
        header: The header.
        proofs: Checksum of each bucket.
        refs: Each bucket as a list of arrays of bytes. Inside of a parcel Ray does not fetch them unasked.
    """

    header: Header
    proofs: Sequence[int]
    refs: Sequence[Any]

    def open(self) -> Iterator[Bucket]:
        """Bucket after bucket, read where it lies in shared memory."""
        for index, (proof, ref) in enumerate(zip(self.proofs, self.refs, strict=True)):
            yield Bucket(index, [_readable(array) for array in ray.get(ref)], proof)


def pack(header: Header, buckets: Sequence[Bucket]) -> Parcel:
    """Copies the buckets into the object store, straight from the parameters."""
    # Arrays travel beside the pickle and are copied once; a tensor would be copied into it first.
    refs = [ray.put([piece.cpu().numpy() for piece in bucket.pieces]) for bucket in buckets]
    return Parcel(header, [bucket.checksum for bucket in buckets], refs)


def _readable(array: Any) -> Tensor:
    with warnings.catch_warnings():
        # It is only read.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
