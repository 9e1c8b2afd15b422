"""Whom a service serves next, what it merges, and what it charges. Decisions without I/O: no Ray, no torch.

The clock is passed in.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Request(Generic[T]):
    """A call that waits.

    Attributes:
        caller: The trial that asks.
        size: Rows of its batch.
        key: Requests of equal keys can go through a model together; None: with no other.
        call: Whatever is to be done.
    """

    caller: str
    size: int
    key: Hashable
    call: T


class FairQueue(Generic[T]):
    """Callers take turns, whoever came first and however much each asks; a caller's own requests keep their order.

    Args:
        most: Rows that may go through the model together; None: requests are not merged.
        turn: Requests of one turn. Trials that ask at the same time would, one request each, all be done last.
    """

    def __init__(self, most: int | None = None, turn: int = 1) -> None:
        self.most, self.turn = most, turn
        # Requests of its turn that the first caller has had served.
        self._served = 0
        # In the order of their turns; a caller is here while it has requests.
        self._waiting: OrderedDict[str, deque[Request[T]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, request: Request[T]) -> None:
        """A caller that has nothing waiting gets the last turn."""
        self._waiting.setdefault(request.caller, deque()).append(request)

    def take(self) -> list[Request[T]]:
        """What is served next: the first request of the caller whose turn it is, and what is merged with it.

        Merged is what the callers after it ask first, in turn and around again, while it fits. Empty where nothing
        waits.
        """
        if not self._waiting:
            return []
        self._served += 1
        taken = [self._next(next(iter(self._waiting)), stays=self._served < self.turn)]
        room = 0 if self.most is None or taken[0].key is None else self.most - taken[0].size
        passed: set[str] = set()
        while True:
            caller = next((c for c in self._waiting if c not in passed), None)
            if caller is None or room <= 0:
                return taken
            first = self._waiting[caller][0]
            if first.key == taken[0].key and first.size <= room:
                room -= first.size
                taken.append(self._next(caller))
            else:
                passed.add(caller)

    def _next(self, caller: str, *, stays: bool = False) -> Request[T]:
        """The caller's first request; its next turn is the last one, unless its turn goes on."""
        first = next(iter(self._waiting)) == caller
        own = self._waiting[caller]
        request = own.popleft()
        if own and stays:
            return request
        del self._waiting[caller]
        if own:
            self._waiting[caller] = own
        if first:
            self._served = 0
        return request


@dataclass
class _Account:
    """Of a caller: its busy seconds, and what they and the service's were when it last asked."""

    since: float
    total: float
    busy: float = 0.0
    seen: float = 0.0
    paid: float = 0.0


@dataclass
class Meter:
    """Busy seconds of a service by caller, and each caller's part of the time it is reserved.

    Between two questions of a caller the service's time is divided by busy seconds: who had half of them pays for
    half of the time, idle time included. So what is reserved is paid while anybody asks, and by whom it serves.
    """

    total: float = 0.0
    accounts: dict[str, _Account] = field(default_factory=dict)

    def enter(self, caller: str, now: float) -> None:
        """The caller has asked for something; its account begins with the first time."""
        self.accounts.setdefault(caller, _Account(now, self.total))

    def worked(self, parts: Mapping[str, float]) -> None:
        """``{caller: busy seconds}`` of one forward pass."""
        for caller, seconds in parts.items():
            self.accounts[caller].busy += seconds
            self.total += seconds

    def usage(self, caller: str) -> float:
        """Busy seconds for the caller since it last asked this."""
        account = self.accounts.get(caller)
        if account is None:
            return 0.0
        busy, account.seen = account.busy - account.seen, account.busy
        return busy

    def charge(self, caller: str, now: float) -> float:
        """Seconds of the service that the caller pays for since it last asked this."""
        account = self.accounts.get(caller)
        if account is None:
            return 0.0
        of_all, own = self.total - account.total, account.busy - account.paid
        elapsed = now - account.since
        account.since, account.total, account.paid = now, self.total, account.busy
        return own / of_all * elapsed if of_all > 0 else 0.0
