"""What is sampled for a batch: whole responses, or parts of them that go on under later weights.

Both are a function of the configuration, the number of the batch and what was sampled before, never of who samples
or how fast. A prompt is named by its position in the endless stream of training prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlhf_core.config.trial import TrialConfig
from rlhf_core.evaluation import Sample
from rlhf_core.prompts import PromptSet, chunks_of
from rlhf_core.seeding import derive
from rlhf_core.types import Chunk, Prompt, Rollout

T = TypeVar("T")
# Told of a chunk: its index in what was asked for, and its rollout.
OnChunk = Callable[[int, Chunk, Rollout], None]
Generate = Callable[[Sequence[Chunk], OnChunk], Sequence[Rollout]]


class Batches(Protocol):
    """Samples batches in the order of their numbers, 0, 1, ..."""

    def sample(self, number: int, generate: Generate, sampled: OnChunk) -> Sample:
        """Batch ``number``, from what ``generate`` answers.

        ``sampled`` is told of each chunk of the batch as soon as it is whole; ``generate`` tells whatever it is
        given of each that it was asked for.
        """
        ...

    def chunks(self, number: int, positions: Sequence[int]) -> list[Chunk]:
        """The chunks of batch ``number``, with the prompts at ``positions``; none: those its number says."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What goes from one batch to the next."""
        ...

    def load(self, number: int, state: Mapping[str, Tensor]) -> None:
        """Goes on at batch ``number`` with what ``state`` returned; with nothing where that is empty."""
        ...


def batches_of(config: TrialConfig, prompts: PromptSet, pad_id: int) -> Batches:
    """What the configuration asks for."""
    if config.rollout.partial_tokens is None:
        return WholeBatches(config, prompts)
    return PartialBatches(config, prompts, pad_id)


def _chunks(
    config: TrialConfig, prompts: PromptSet, number: int, positions: Sequence[int]
) -> list[Chunk]:
    rollout, seed, count = config.rollout, config.seed, config.rollout.prompts_per_iteration
    asked = prompts.at(positions or range(number * count, (number + 1) * count), seed)
    return chunks_of(asked, rollout.samples_per_prompt, rollout.chunk_size, seed, number + 1)


class WholeBatches:
    """Every response is sampled from its first token to its last for the batch it belongs to."""

    def __init__(self, config: TrialConfig, prompts: PromptSet) -> None:
        self.config, self.prompts = config, prompts

    def sample(self, number: int, generate: Generate, sampled: OnChunk) -> Sample:
        chunks = self.chunks(number)
        return Sample(chunks, generate(chunks, sampled))

    def chunks(self, number: int, positions: Sequence[int] = ()) -> list[Chunk]:
        return _chunks(self.config, self.prompts, number, positions)

    def state(self) -> dict[str, Tensor]:
        return {}

    def load(self, number: int, state: Mapping[str, Tensor]) -> None:
        return None


@dataclass(frozen=True)
class Response:
    """What was sampled of a response.

    Attributes:
        tokens: Its tokens.
        logprobs_T: Log-probability of each under the weights that sampled it.
        versions_T: Their version.
        finished: Whether it ended with end-of-sequence.
    """

    tokens: tuple[int, ...] = ()
    logprobs_T: Tensor = field(default_factory=lambda: torch.zeros(0))
    versions_T: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    finished: bool = False

    def followed_by(self, part: Rollout, row: int) -> Response:
        """With what ``part``, which began after it, has in ``row``."""
        mask_T = part.response_mask_BT[row]
        return Response(
            (*self.tokens, *part.response(row)),
            torch.cat([self.logprobs_T, part.logprobs_BT[row][mask_T]]),
            torch.cat([self.versions_T, part.versions_BT[row][mask_T]]),
            bool(part.finished_B[row]),
        )


def as_rollout(prompts: Sequence[Prompt], responses: Sequence[Response], pad_id: int) -> Rollout:
    """One row for each response, padded to the widest."""
    rows = [torch.tensor([*p.tokens, *r.tokens]) for p, r in zip(prompts, responses, strict=True)]
    ones = [torch.ones(len(r.tokens), dtype=torch.bool) for r in responses]
    return Rollout(
        tokens_BL=pad_sequence(rows, batch_first=True, padding_value=pad_id),
        prompt_lengths_B=torch.tensor([len(prompt.tokens) for prompt in prompts]),
        response_mask_BT=pad_sequence(ones, batch_first=True),
        logprobs_BT=pad_sequence([r.logprobs_T for r in responses], batch_first=True),
        finished_B=torch.tensor([r.finished for r in responses]),
        versions_BT=pad_sequence([r.versions_T for r in responses], batch_first=True),
    )


class PartialBatches:
    """Responses are sampled ``rollout.partial_tokens`` at a time, and more of them than a batch takes.

    For a batch every open response goes on by that many tokens, once, and again until enough prompts have all
    their responses; the batch takes the oldest of those. The others go on for the next batch under its weights.
    """

    def __init__(self, config: TrialConfig, prompts: PromptSet, pad_id: int) -> None:
        self.config, self.prompts, self.pad_id = config, prompts, pad_id
        self._next = 0
        # Responses by the position of their prompt, oldest first.
        self._begun: dict[int, list[Response]] = {}

    def chunks(self, number: int, positions: Sequence[int]) -> list[Chunk]:
        return _chunks(self.config, self.prompts, number, positions)

    def sample(self, number: int, generate: Generate, sampled: OnChunk) -> Sample:
        rollout, turn = self.config.rollout, 0
        for _ in range(rollout.prompts_under_way - len(self._begun)):
            self._begun[self._next] = [Response()] * rollout.samples_per_prompt
            self._next += 1
        while True:
            self._go_on(number, turn, generate)
            turn += 1
            ready = [at for at, begun in self._begun.items() if not any(map(self._is_open, begun))]
            if len(ready) >= rollout.prompts_per_iteration:
                sample = self._take(number, ready[: rollout.prompts_per_iteration])
                break
        for index, (chunk, part) in enumerate(zip(sample.chunks, sample.parts, strict=True)):
            sampled(index, chunk, part)
        return sample

    def _is_open(self, response: Response) -> bool:
        return not response.finished and len(response.tokens) < self.config.rollout.max_new_tokens

    def _go_on(self, number: int, turn: int, generate: Generate) -> None:
        """Samples the next tokens of every open response, in chunks of about the usual size."""
        rollout = self.config.rollout
        places = [
            (at, index)
            for at, begun in self._begun.items()
            for index, response in enumerate(begun)
            if self._is_open(response)
        ]
        asked = self.prompts.at([at for at, _ in places], self.config.seed)
        rows = list(zip(places, asked, strict=True))
        cuts = _cut(rows, rollout.chunk_size * rollout.samples_per_prompt)
        # The first turn is drawn as a batch of whole responses is.
        position = (number + 1, turn) if turn else (number + 1,)
        chunks = [self._chunk(index, cut, position) for index, cut in enumerate(cuts)]
        for cut, part in zip(cuts, generate(chunks, _nobody), strict=True):
            for row, ((at, index), _prompt) in enumerate(cut):
                self._begun[at][index] = self._begun[at][index].followed_by(part, row)

    def _chunk(
        self, index: int, rows: Sequence[tuple[tuple[int, int], Prompt]], position: tuple[int, ...]
    ) -> Chunk:
        rollout = self.config.rollout
        begun = tuple(self._begun[at][sample].tokens for (at, sample), _ in rows)
        room = rollout.max_new_tokens - max(map(len, begun))
        prompts = tuple(prompt for _, prompt in rows)
        seed = derive(self.config.seed, "sample", *position, index)
        return Chunk(index, prompts, seed, begun, min(rollout.partial_tokens or room, room))

    def _take(self, number: int, positions: Sequence[int]) -> Sample:
        chunks = self.chunks(number, positions)
        responses = iter([r for at in positions for r in self._begun.pop(at)])
        parts = [
            as_rollout(chunk.prompts, [next(responses) for _ in chunk.prompts], self.pad_id)
            for chunk in chunks
        ]
        return Sample(chunks, parts, tuple(positions))

    def state(self) -> dict[str, Tensor]:
        state = {"next": torch.tensor(self._next), "positions": torch.tensor([*self._begun])}
        if self._begun:
            rows = as_rollout(
                [prompt for prompt, _ in self._rows()], [r for _, r in self._rows()], self.pad_id
            )
            state |= {name: getattr(rows, name) for name in Rollout.__dataclass_fields__}
        return state

    def _rows(self) -> Iterator[tuple[Prompt, Response]]:
        prompts = self.prompts.at([*self._begun], self.config.seed)
        for prompt, begun in zip(prompts, self._begun.values(), strict=True):
            yield from ((prompt, response) for response in begun)

    def load(self, number: int, state: Mapping[str, Tensor]) -> None:
        # A trial that sampled whole responses has none under way.
        self._next = number * self.config.rollout.prompts_per_iteration
        self._begun = {}
        if not state:
            return
        self._next = int(state["next"])
        positions = state["positions"].tolist()
        if not positions:
            return
        rows = Rollout(**{name: state[name] for name in Rollout.__dataclass_fields__})
        responses = [Response().followed_by(rows, row) for row in range(rows.size)]
        begun = _cut(responses, rows.size // len(positions))
        self._begun = dict(zip(positions, begun, strict=True))


def _nobody(_index: int, _chunk: Chunk, _part: Rollout) -> None:
    """Parts of responses are no chunk of a batch yet."""


def _cut(items: list[T], size: int) -> list[list[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
