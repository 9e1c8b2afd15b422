"""Weights as flat buckets: how they travel from the learner to the rollouts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlhf_core.errors import RlhfError

BUCKET_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Header:
    """What a delivery says about its buckets.

    Attributes:
        version: Weight version.
        layout: ``(parameter name, bucket, offset, shape)`` of every parameter.
        checksum: Of all buckets; proves the delivery.
    """

    version: int
    layout: tuple[tuple[str, int, int, tuple[int, ...]], ...]
    checksum: str


def _checksum(buckets: list[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for bucket in buckets:
        digest.update(bucket.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def flatten(model: nn.Module, version: int) -> tuple[Header, list[Tensor]]:
    """Copies the parameters of ``model`` into CPU buckets of at most 64 MiB (a larger parameter stands alone)."""
    layout: list[tuple[str, int, int, tuple[int, ...]]] = []
    groups: list[list[Tensor]] = [[]]
    filled = 0
    for name, parameter in model.named_parameters():
        flat = parameter.detach().reshape(-1).cpu()
        if groups[-1] and (
            filled + flat.nbytes > BUCKET_BYTES or flat.dtype != groups[-1][0].dtype
        ):
            groups.append([])
            filled = 0
        offset = sum(part.numel() for part in groups[-1])
        layout.append((name, len(groups) - 1, offset, tuple(parameter.shape)))
        groups[-1].append(flat)
        filled += flat.nbytes
    buckets = [torch.cat(parts) for parts in groups if parts]
    return Header(version, tuple(layout), _checksum(buckets)), buckets


@torch.no_grad()
def load_flat(model: nn.Module, header: Header, buckets: list[Tensor]) -> None:
    """Copies buckets into the parameters of ``model`` in place.

    Raises:
        RlhfError: If the buckets are not those of the header, or the model has other parameters.
    """
    if _checksum(buckets) != header.checksum:
        raise RlhfError(f"weights: version {header.version} arrived altered; its checksum differs")
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    if shapes != {name: shape for name, _, _, shape in header.layout}:
        raise RlhfError(f"weights: version {header.version} belongs to another model")
    for name, bucket, offset, shape in header.layout:
        target = parameters[name]
        target.copy_(buckets[bucket][offset : offset + target.numel()].view(shape))
