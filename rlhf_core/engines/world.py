"""Torch's default process group, which DeepSpeed needs: one for a process, over the ranks of one role."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from threading import Lock

import torch
import torch.distributed as dist

from rlhf_core.errors import RankError
from rlhf_core.ranks import Ranks

_lock = Lock()


@dataclass
class _World:
    """Who is in it: number of ranks, this one's place, engines that use it here, and the group's name."""

    size: int
    rank: int
    users: int
    name: str


_world: _World | None = None


def enter_world(ranks: Ranks, device: torch.device) -> None:
    """Makes the group over ``ranks``, or joins those who are alone in this process as well.

    Raises:
        RankError: If the process has another place in it already; ranks of an engine are processes.
    """
    global _world
    name = ranks.seat.group if ranks.seat else "alone"
    with _lock:
        if _world is not None and ranks.size == _world.size == 1:
            _world.users += 1
            return
        if _world is not None or dist.is_initialized():
            held = f"{_world.rank} of {_world.size} of {_world.name}" if _world else "of another"
            raise RankError(
                f"{name}: rank {ranks.rank} of {ranks.size} needs a process of its own with optim.engine "
                f"'deepspeed', but this one is rank {held} already; use layout split or colocated on Ray"
            )
        _world = _World(ranks.size, ranks.rank, 1, name)
    backend = "nccl" if device.type == "cuda" and ranks.backend == "nccl" else "gloo"
    dist.init_process_group(
        backend,
        store=ranks.store("default") or dist.HashStore(),
        rank=ranks.rank,
        world_size=ranks.size,
        # Shorter than that of the role's own group, in which a rank that was left alone says so.
        timeout=timedelta(seconds=ranks.seat.timeout_s / 2) if ranks.seat else None,
    )


def leave_world() -> None:
    """Gives the group up; the last user of the process ends it."""
    global _world
    with _lock:
        if _world is None:
            return
        _world.users -= 1
        if _world.users:
            return
        _world = None
    from deepspeed import comm

    comm.destroy_process_group()
