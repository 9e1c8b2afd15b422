"""Workers that compute one thing together: their process group, and what they say to each other over it.

A group is an explicit gloo or NCCL process group over a store of its own, never torch's default group: a process
may host several roles, and several trials may run on a machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_core.errors import DivergedError, RankError
from rlhf_core.types import CallContext

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True)
class Seat:
    """A worker's place in a group.

    Attributes:
        group: Name of the group; unique in a role.
        rank, size: Position, and number of ranks.
        store: Host and port of the group's store, which rank 0 keeps.
        address: Address of the worker's own node, under which the others reach it.
        backend: gloo, or nccl where every rank has a GPU of its own.
        timeout_s: A rank waits this long for the others.
        bucket_bytes: Smaller tensors travel together, at most so many bytes at a time.
    """

    group: str
    rank: int
    size: int
    store: tuple[str, int]
    address: str
    backend: Backend = "gloo"
    timeout_s: float = 300.0
    bucket_bytes: int = 64 * 2**20


class Ranks:
    """One rank's side of a group; without a seat, a rank that is alone.

    Every method but ``store`` and ``take_seconds`` is collective: all ranks call the same ones in the same order.

    Args:
        seat: Where this rank sits.
        store: The group's store, where this process keeps it.
        device: Device of NCCL's tensors.
    """

    def __init__(
        self,
        seat: Seat | None = None,
        store: dist.Store | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.seat = seat
        self.rank, self.size = (seat.rank, seat.size) if seat else (0, 1)
        self.device = torch.device("cpu")
        self._seconds = 0.0
        if seat is None:
            return
        if seat.backend == "nccl" and device is not None:
            self.device = device
        self._timeout = timedelta(seconds=seat.timeout_s)
        with self._bounded("does not meet the others"):
            store = store or dist.TCPStore(*seat.store, None, False, self._timeout)
            self._store = dist.PrefixStore(seat.group, store)
            self._group = _process_group(seat, self._store, self._timeout)

    @contextmanager
    def shared_fate(self, flags: Callable[[], Sequence[bool]] = tuple) -> Iterator[list[bool]]:
        """What fails on one rank inside the block fails on all, instead of keeping the others waiting.

        Args:
            flags: Asked at the end of the block, also of a failed one; of equal length on all ranks.

        Yields:
            A list that holds after the block, for each flag, whether it is set on any rank.

        Raises:
            DivergedError: If any rank raised one.
            RankError: If another rank failed otherwise; that rank raises its own error.
        """
        agreed: list[bool] = []
        mine: Exception | None = None
        try:
            yield agreed
        except Exception as error:
            if self.size == 1:
                raise
            mine = error
        if self.size == 1:
            agreed += flags()
            return
        if mine is not None:
            self._store.set(f"error/{self.rank}", json.dumps(_described(mine)))
        marks = [float(mine is not None and rank == self.rank) for rank in range(self.size)]
        status = torch.tensor([*marks, *map(float, flags())], device=self.device)
        self._run(lambda: self._group.allreduce([status], _options(dist.ReduceOp.MAX)))
        seen = [bool(value) for value in status.tolist()]
        if mine is not None:
            raise mine
        if any(seen[: self.size]):
            raise self._error_of(seen.index(True))
        agreed += seen[self.size :]

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its sum over ranks, in place; 16-bit ones are summed in float32."""
        if self.seat is None or self.size == 1:
            return
        for bucket in _buckets(tensors, self.seat.bucket_bytes):
            dtype = torch.promote_types(bucket[0].dtype, torch.float32)
            first = bucket[0].view(-1)
            if len(bucket) == 1 and first.dtype == dtype and first.device == self.device:
                self._reduce(first)
                continue
            flat = torch.cat([t.reshape(-1).to(self.device, dtype) for t in bucket])
            self._reduce(flat)
            for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, by rank; each may have as many as it likes."""
        if self.size == 1:
            return [list(numbers)]
        lengths = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        lengths[self.rank] = len(numbers)
        self._reduce(lengths)
        counts = [int(length) for length in lengths.tolist()]
        table = torch.zeros(self.size, max(counts), dtype=torch.float64, device=self.device)
        table[self.rank, : len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        self._reduce(table)
        return [row[:count] for row, count in zip(table.tolist(), counts, strict=True)]

    def broadcast(self, tensor: Tensor) -> None:
        """Rank 0's tensor into that of the others; it lies on ``device``."""
        if self.size > 1:
            options = dist.BroadcastOptions()
            options.rootRank = 0
            self._run(lambda: self._group.broadcast([tensor], options))

    @property
    def backend(self) -> Backend:
        """What the group speaks."""
        return self.seat.backend if self.seat else "gloo"

    def store(self, name: str) -> dist.Store | None:
        """The group's store under a name of its own, for another group of the same ranks; None of one alone."""
        return dist.PrefixStore(name, self._store) if self.seat else None

    def take_seconds(self) -> float:
        """Seconds in sums and broadcasts, waits for other ranks included, since last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _reduce(self, tensor: Tensor) -> None:
        self._run(lambda: self._group.allreduce([tensor], _options(dist.ReduceOp.SUM)))

    def _run(self, start: Callable[[], Any]) -> None:
        begin = time.perf_counter()
        with self._bounded("lost the others"):
            start().wait(self._timeout)
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
        self._seconds += time.perf_counter() - begin

    @contextmanager
    def _bounded(self, what: str) -> Iterator[None]:
        """Errors of the process group as one line."""
        assert self.seat is not None
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"{self.seat.group}: rank {self.rank} of {self.size} {what}: a process ended, or none "
                f"answered within {self.seat.timeout_s:g} s (sync.timeout_s) ({_brief(error)})"
            ) from error

    def _error_of(self, rank: int) -> Exception:
        """What rank ``rank`` said of its error."""
        assert self.seat is not None
        told = json.loads(self._store.get(f"error/{rank}"))
        if told["diverged"]:
            return DivergedError(*told["diverged"])
        return RankError(f"{self.seat.group}: rank {rank} of {self.size} failed: {told['message']}")


class Member:
    """A role that can sit in groups. The runtime seats it; ``device`` is where its model lives."""

    device: torch.device

    def __init__(self) -> None:
        self._groups: dict[str, Ranks] = {}
        self._stores: dict[str, dist.Store] = {}

    def where(self, context: CallContext) -> str:
        """The device as no other process names it, or "cpu"; builds the role and nothing else."""
        if self.device.type != "cuda":
            return "cpu"
        return str(torch.cuda.get_device_properties(self.device).uuid)

    def listen(
        self, context: CallContext, group: str, address: str, timeout_s: float
    ) -> tuple[str, int]:
        """Opens the store of a group whose rank 0 this is to be; returns its host and port."""
        timeout = timedelta(seconds=timeout_s)
        # Port 0 is bound before it is told, so no other process can take it in between.
        store = dist.TCPStore(address, 0, None, True, timeout, wait_for_workers=False)
        self._stores[group] = store
        return address, store.port

    def join(self, context: CallContext, seat: Seat) -> None:
        """Takes the seat; returns when all ranks have."""
        self._groups[seat.group] = Ranks(seat, self._stores.get(seat.group), self.device)

    def ranks(self, group: str) -> Ranks:
        """The group ``group``; alone where it was never joined."""
        if group not in self._groups:
            self._groups[group] = Ranks()
        return self._groups[group]

    def leave(self) -> None:
        """Gives up all seats."""
        self._groups.clear()
        self._stores.clear()


def balanced(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices for each rank, about equal in tokens: the longest first, to whoever has least.

    Indices of a rank keep their order. Rank 0 has one wherever there is any.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        rank = loads.index(min(loads))
        shares[rank].append(index)
        loads[rank] += max(1, lengths[index])
    return [sorted(share) for share in shares]


def _process_group(seat: Seat, store: dist.Store, timeout: timedelta) -> Any:
    if seat.backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, seat.rank, seat.size, options)
    gloo = dist.ProcessGroupGloo
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    where = {"interface": interface} if interface else {"hostname": seat.address}
    options = gloo._Options()
    options._devices = [gloo.create_device(**where)]
    options._timeout = timeout
    return gloo(store, seat.rank, seat.size, options)


def _options(operation: Any) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = operation
    return options


def _buckets(tensors: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """Consecutive tensors of one type, together at most ``limit`` bytes; a larger one stands alone."""
    bucket: list[Tensor] = []
    filled = 0
    for tensor in tensors:
        if bucket and (filled + tensor.nbytes > limit or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, filled = [], 0
        bucket.append(tensor)
        filled += tensor.nbytes
    if bucket:
        yield bucket


def _described(error: Exception) -> dict[str, Any]:
    parts = [error.role, error.tensor, error.detail] if isinstance(error, DivergedError) else None
    return {"diverged": parts, "message": f"{type(error).__name__}: {error}"}


def _brief(error: Exception) -> str:
    """The first line of torch's message, without the place in its source."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].rpartition("] ")[2][:200]
