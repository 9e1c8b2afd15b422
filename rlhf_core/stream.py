"""Batches of rollouts ahead of the learner: which weights sample which batch, and the thread that keeps it going.

Which weight version a batch is sampled with follows from its number, the sync interval and how many batches are
ahead, never from who is faster. So an asynchronous trial has the same numbers in every layout and on every run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf_core.batches import Batches, OnChunk
from rlhf_core.errors import CheckpointError
from rlhf_core.evaluation import Sample
from rlhf_core.runtime.base import RoleGroup, Runtime, gather
from rlhf_core.scoring import Scoring
from rlhf_core.types import CallContext, Chunk, Rollout

# Names of a checkpoint's tensors: where the prompts of a batch stand, and what is under way.
POSITIONS, UNDER_WAY = "positions", "under_way."


def version_of(batch: int, interval: int, ahead: int) -> int:
    """Weight version that samples batch ``batch`` (0, 1, ...).

    The batch may be started when the learner has finished iteration ``batch - ahead``; of the versions
    delivered by then, multiples of ``interval``, it takes the newest.

    Example:
        >>> [version_of(batch, 1, 0) for batch in range(4)], [version_of(b, 2, 1) for b in range(6)]
        ([0, 1, 2, 3], [0, 0, 0, 2, 2, 4])
    """
    return max(0, batch - ahead) // interval * interval


@dataclass(frozen=True)
class Sampled:
    """A batch of rollouts.

    Attributes:
        sample: Its chunks and rollouts.
        seconds: From its first chunk to its last.
        sync_seconds: Time the rollouts took to load weights before it.
        tokens: Response tokens sampled in that time.
        scoring: What the frozen roles were asked about it.
    """

    sample: Sample
    scoring: Scoring
    seconds: float
    sync_seconds: float = 0.0
    tokens: int = 0


class RolloutStream:
    """Samples batches in order, up to ``ahead`` of them before they are asked for.

    Args:
        runtime: Carries the weights.
        group: The rollouts.
        batches: What is sampled for a batch.
        context: Call context with a weight version.
        scoring: The frozen roles, for a batch.
        ahead: Batches that may wait; 0 samples when asked.
        interval: Iterations between deliveries.
        last: Batches of the whole trial; none beyond is sampled.
        rests: Whether the rollouts give up memory after each batch.

    Attributes:
        held: Weight version that the rollouts hold.
    """

    def __init__(
        self,
        runtime: Runtime,
        group: RoleGroup,
        batches: Batches,
        context: Callable[[int], CallContext],
        scoring: Callable[[int], Scoring],
        *,
        ahead: int,
        interval: int,
        last: int,
        rests: bool = False,
    ) -> None:
        self.runtime, self.group, self.rests = runtime, group, rests
        self.batches, self.context, self.scoring = batches, context, scoring
        self.ahead, self.interval, self.last = ahead, interval, last
        self.next = 0
        self.held = 0
        self._published: tuple[int, Any] | None = None
        self._pending: dict[int, Future[Sampled]] = {}
        # Calls to a runtime that works in this very thread would gain nothing from another one.
        self._thread = ThreadPoolExecutor(1, "rollouts") if ahead and runtime.concurrent else None

    def restart(self, batch: int, held: int, state: Mapping[str, Tensor]) -> None:
        """Goes on at ``batch`` with rollouts that hold version ``held`` and what ``settle`` returned.

        Raises:
            CheckpointError: If that is not what this code writes.
        """
        begun, waiting = {}, {}
        for key, tensor in state.items():
            name = key.removeprefix(UNDER_WAY)
            (waiting if name == key else begun)[name] = tensor
        try:
            ready = unpacked(waiting, self.batches.chunks)
            self.batches.load(batch + len(ready), begun)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint: the batches that wait for iteration {batch + 1} cannot be read: {error!r}; "
                "go on with the code that wrote them, or from another step"
            ) from None
        self.next, self.held, self._published = batch + len(ready), held, None
        self._pending = {}
        for number, sample in ready.items():
            self._pending[number] = Future()
            self._pending[number].set_result(Sampled(sample, self.scoring(number), 0.0))

    def take(self, batch: int) -> Sampled:
        """Batch ``batch``; starts those that may be sampled meanwhile."""
        while self.next < min(batch + self.ahead + 1, self.last):
            number = self.next
            self.next += 1
            self._pending[number] = self._submit(number)
        return self._pending.pop(batch).result()

    def publish(self, context: CallContext) -> float:
        """Takes the learner's weights of now as the context's version; returns their bytes.

        The rollouts get them before the first batch that is to be sampled with them, without ``ahead`` now.
        """
        if not self.ahead:
            sent = self.runtime.deliver_weights(context).result()
            self.held = context.version or 0
            return float(sent["bytes"])
        parcel, size = self.runtime.publish(context)
        self._published = (context.version or 0, parcel)
        return float(size)

    def settle(self) -> dict[str, Tensor]:
        """Waits for every call and delivers what was published.

        Returns:
            The batches that wait and the responses under way, for ``restart``.
        """
        ready = {number: future.result().sample for number, future in self._pending.items()}
        if self._published is not None:
            self._load(*self._published)
            self._published = None
        begun = self.batches.state()
        return packed(ready) | {UNDER_WAY + name: tensor for name, tensor in begun.items()}

    def close(self, *, wait: bool = False) -> None:
        """Starts nothing more; with ``wait`` it returns when nothing is under way."""
        if self._thread is not None:
            self._thread.shutdown(wait=wait, cancel_futures=True)

    def _submit(self, number: int) -> Future[Sampled]:
        version, parcel = version_of(number, self.interval, self.ahead), None
        if self._published is not None and self._published[0] == version:
            parcel = self._published[1]
        if self._thread is not None:
            return self._thread.submit(self._sample, number, version, parcel)
        done: Future[Sampled] = Future()
        try:
            done.set_result(self._sample(number, version, parcel))
        except Exception as error:  # noqa: BLE001 - raised where the batch is asked for
            done.set_exception(error)
        return done

    def _sample(self, number: int, version: int, parcel: Any) -> Sampled:
        start = time.perf_counter()
        if parcel is not None and self.held != version:
            self._load(version, parcel)
        loaded = time.perf_counter()
        context, scoring, tokens = self.context(self.held), self.scoring(number), 0

        def generate(chunks: Sequence[Chunk], sampled: OnChunk) -> Sequence[Rollout]:
            def finished(index: int, part: Rollout) -> None:
                nonlocal tokens
                tokens += int(part.response_mask_BT.sum())
                sampled(index, chunks[index], part)

            calls = [(context, (chunk,)) for chunk in chunks]
            return self.group.map("generate", calls, finished=finished)

        sample = self.batches.sample(number, generate, scoring.sampled)
        if self.rests:
            gather(self.group.call_all("rest", context))
        seconds = time.perf_counter() - loaded
        return Sampled(sample, scoring, seconds, loaded - start, tokens)

    def _load(self, version: int, parcel: Any) -> None:
        self.runtime.receive(self.context(version), parcel)
        self.held = version


def packed(batches: Mapping[int, Sample]) -> dict[str, Tensor]:
    """Waiting batches as named tensors, for a checkpoint."""
    tensors = {
        f"{number}.{index}.{name}": getattr(part, name)
        for number, sample in batches.items()
        for index, part in enumerate(sample.parts)
        for name in Rollout.__dataclass_fields__
    }
    named = {number: sample.positions for number, sample in batches.items() if sample.positions}
    return tensors | {f"{number}.{POSITIONS}": torch.tensor(at) for number, at in named.items()}


def unpacked(
    tensors: Mapping[str, Tensor], chunks: Callable[[int, Sequence[int]], list[Chunk]]
) -> dict[int, Sample]:
    """What ``packed`` packed; chunks follow from the number of a batch and the positions of its prompts."""
    fields: dict[int, dict[int, dict[str, Tensor]]] = {}
    positions: dict[int, tuple[int, ...]] = {}
    for key, tensor in tensors.items():
        number, _, rest = key.partition(".")
        if rest == POSITIONS:
            positions[int(number)] = tuple(tensor.tolist())
            continue
        index, name = rest.split(".")
        fields.setdefault(int(number), {}).setdefault(int(index), {})[name] = tensor
    samples = {}
    for number, parts in sorted(fields.items()):
        rollouts = [Rollout(**parts[index]) for index in sorted(parts)]
        at = positions.get(number, ())
        samples[number] = Sample(chunks(number, at), rollouts, at)
    return samples
