"""Where DeepSpeed keeps float32 weights and moments of a parameter on this rank; whole ones out of all parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.ranks import Ranks


@dataclass(frozen=True)
class Shard:
    """This rank's part of one parameter: ``flat[start : start + size]`` are its elements from ``offset`` on.

    Attributes:
        flat: What the optimiser moves here; its moments lie in the same places.
        start, size: Place within ``flat``; size 0: this rank has nothing of the parameter.
        offset: Place within the parameter, flattened.
    """

    flat: Tensor
    start: int
    size: int
    offset: int

    def read(self, source: Tensor, shape: Sequence[int], ranks: Ranks) -> Tensor:
        """The whole parameter (or moment) out of ``source``, which is laid out as ``flat``; collective.

        Returns:
            float32 of ``shape``, on the device of ``source``.
        """
        whole = torch.zeros(math.prod(shape), dtype=torch.float32, device=source.device)
        whole[self.offset : self.offset + self.size] = self._part(source)
        ranks.add([whole])
        return whole.view(*shape)

    def write(self, target: Tensor, whole: Tensor) -> None:
        """This rank's part of ``whole`` into ``target``, which is laid out as ``flat``."""
        part = whole.flatten()[self.offset : self.offset + self.size]
        self._part(target).copy_(part)

    def _part(self, tensor: Tensor) -> Tensor:
        return tensor.detach().view(-1)[self.start : self.start + self.size]


def shard_of(zero: Any, stage: int, parameter: nn.Parameter, rank: int) -> Shard:
    """The shard of ``parameter``.

    Args:
        zero: DeepSpeed's optimiser.
        stage: Of ZeRO.
        parameter: Of the module.
        rank: This one.
    """
    if stage == 0:
        # Every rank has all of it; one counts.
        return Shard(parameter, 0, 0 if rank else parameter.numel(), 0)
    if stage == 3:
        index, start, size = zero.grad_position[zero.get_param_id(parameter)]
        offset = min(size * rank, parameter.ds_numel)  # type: ignore[attr-defined]
        # The last parts are padded.
        size = min(size, parameter.ds_numel - offset)  # type: ignore[attr-defined]
        return Shard(zero.fp32_partitioned_groups_flat[index], start, size, offset)
    place = parameter._hp_mapping  # type: ignore[attr-defined]
    if place is None:
        return Shard(flats_of(zero, stage)[0], 0, 0, 0)
    here, there = place.hp_fragment_address, place.lp_fragment_address
    flat = flats_of(zero, stage)[place.param_group_index]
    return Shard(flat, here.start, here.numel, there.start)


def flats_of(zero: Any, stage: int) -> list[Tensor]:
    """All that the optimiser moves on this rank."""
    if stage == 3:
        return list(zero.fp32_partitioned_groups_flat)
    return [flat for group in zero.param_groups for flat in group["params"]]
