"""Whom a service serves next, what it merges, and what it charges. Decisions without I/O: no Ray, no torch.

The clock is passed in.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Hashable, Mapping
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
        batch: Equal for requests that the caller needs together; a turn ends where another batch begins.
        left: Requests of the batch that are still to come after this one, as far as is known.
    """

    caller: str
    size: int
    key: Hashable
    call: T
    batch: Hashable = None
    left: int = 0


class FairQueue(Generic[T]):
    """Who waits for the answers comes before who is still asking; a caller's own requests keep their order.

    A trial needs what it asks while it samples no sooner than its last answer: first comes the caller that has the
    fewest requests of its batch still to send. Of equal ones, callers take turns, whoever came first and however
    much each asks.

    A turn is one batch. Until it is over a caller keeps its place, also while it asks for nothing and others are
    served in between: trials that sample at the same time would, one request each, all be done last. Once nobody
    waits, turns begin anew.

    Args:
        most: Rows that may go through the model together; None: requests are not merged.
        turn: Most requests of one turn.
    """

    def __init__(self, most: int | None = None, turn: int = 1) -> None:
        self.most, self.turn = most, turn
        # What each caller has waiting, in the order of their turns.
        self._waiting: OrderedDict[str, deque[Request[T]]] = OrderedDict()
        # Requests of its turn that a caller has had served, and their batch.
        self._served: Counter[str] = Counter()
        self._batch: dict[str, Hashable] = {}
        # What each caller's newest request says is still to come.
        self._left: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, request: Request[T]) -> None:
        """A caller that has no turn gets the last one."""
        own = self._waiting.setdefault(request.caller, deque())
        own.append(request)
        self._left[request.caller] = request.left
        if len(own) == 1 and self._batch.get(request.caller, request.batch) != request.batch:
            self._end_turn(request.caller)

    def take(self) -> list[Request[T]]:
        """What is served next: the first request of the caller whose turn it is, and what is merged with it.

        Merged is what the callers after it ask first, in turn and around again, while it fits. Empty where nothing
        waits.
        """
        first = self._caller(())
        if first is None:
            return []
        taken = [self._next(first)]
        room = 0 if self.most is None or taken[0].key is None else self.most - taken[0].size
        passed: set[str] = set()
        while room > 0 and (caller := self._caller(passed)) is not None:
            request = self._waiting[caller][0]
            if request.key == taken[0].key and request.size <= room:
                room -= request.size
                taken.append(self._next(caller, merged=True))
            else:
                passed.add(caller)
        if not len(self):
            for state in (self._waiting, self._served, self._batch, self._left):
                state.clear()
        return taken

    def _caller(self, passed: Collection[str]) -> str | None:
        """Of those that have a request waiting the nearest to its batch's end; of equal ones the first in turn."""
        waiting = (c for c, own in self._waiting.items() if own and c not in passed)
        return min(waiting, key=self._left.__getitem__, default=None)

    def _next(self, caller: str, *, merged: bool = False) -> Request[T]:
        """The caller's first request; its next turn is the last one, once this one is over."""
        own = self._waiting[caller]
        request = own.popleft()
        self._served[caller] += 1
        self._batch[caller] = request.batch
        over = bool(own) and own[0].batch != request.batch
        if merged or over or self._served[caller] >= self.turn:
            self._end_turn(caller)
        return request

    def _end_turn(self, caller: str) -> None:
        self._served.pop(caller, None)
        self._batch.pop(caller, None)
        own = self._waiting.pop(caller)
        if own:
            self._waiting[caller] = own


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
