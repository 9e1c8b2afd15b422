"""Partial rollouts: which response grows for which batch, under whose weights, and which batch takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.batches import OnChunk, PartialBatches, Response, as_rollout
from rlhf_core.config import TrialConfig, apply, resolve_trial
from rlhf_core.errors import ConfigError
from rlhf_core.types import Chunk, Prompt, Rollout

PAD = 0


class Positions:
    """Prompts that are their position."""

    def at(self, positions: Iterable[int], seed: int) -> list[Prompt]:
        return [Prompt(str(at), (at,)) for at in positions]


class Sampler:
    """Responses of known lengths; token i of the response to prompt p is 1000 p + i.

    Attributes:
        version: Stamp of what is sampled now.
        turns: Prompts of the chunks of each turn, with the tokens they had.
    """

    def __init__(self, length: Callable[[int], int]) -> None:
        self.length, self.version = length, 0
        self.turns: list[list[list[tuple[int, int]]]] = []

    def __call__(self, chunks: Sequence[Chunk], sampled: OnChunk) -> list[Rollout]:
        self.turns.append(
            [
                [(p.tokens[0], len(b)) for p, b in zip(c.prompts, c.begun, strict=True)]
                for c in chunks
            ]
        )
        parts = [self._sample(chunk) for chunk in chunks]
        for index, (chunk, part) in enumerate(zip(chunks, parts, strict=True)):
            sampled(index, chunk, part)
        return parts

    def _sample(self, chunk: Chunk) -> Rollout:
        grown, prompts = [], []
        for prompt, begun in zip(chunk.prompts, chunk.begun, strict=True):
            at, length = prompt.tokens[0], self.length(prompt.tokens[0])
            tokens = tuple(range(len(begun), min(length, len(begun) + (chunk.new_tokens or 0))))
            versions_T = torch.full((len(tokens),), self.version)
            ends = len(begun) + len(tokens) == length
            new = tuple(1000 * at + token for token in tokens)
            grown.append(Response(new, torch.tensor(tokens).float(), versions_T, ends))
            prompts.append(Prompt("", (*prompt.tokens, *begun)))
        return as_rollout(prompts, grown, PAD)


def config(**values: Any) -> TrialConfig:
    dotted = {f"rollout.{key}": value for key, value in values.items()}
    return apply(resolve_trial({}, "test"), dotted)


def make(**values: Any) -> PartialBatches:
    return PartialBatches(config(**values), Positions(), PAD)  # type: ignore[arg-type]


def run(batches: PartialBatches, sampler: Sampler, numbers: Iterable[int]) -> list[Rollout]:
    found = []
    for number in numbers:
        sampler.version = number
        told: list[tuple[int, Chunk, Rollout]] = []
        sample = batches.sample(number, sampler, lambda *chunk, told=told: told.append(chunk))
        # Of what the batch takes and nothing else, however many turns that was.
        assert [index for index, _, _ in told] == [*range(len(sample.chunks))]
        assert all(chunk is sample.chunks[i] and part is sample.parts[i] for i, chunk, part in told)
        found.append(sample.rollout(PAD))
    return found


SMALL = {"prompts_per_iteration": 2, "partial_prompts": 4, "max_new_tokens": 6, "partial_tokens": 2}


def test_long_responses_go_on_under_later_weights_by_hand() -> None:
    lengths = {0: 6, 1: 2, 2: 1, 3: 3}
    sampler = Sampler(lambda at: lengths.get(at, 2))
    batches = make(**SMALL, chunk_size=3)
    first, second, third = run(batches, sampler, range(3))
    # One turn each: 1 and 2 are done after the first, 3 and 4 or 5 after the second, 0 after the third.
    assert sampler.turns == [
        [[(0, 0), (1, 0), (2, 0)], [(3, 0)]],
        [[(0, 2), (3, 2), (4, 0)], [(5, 0)]],
        [[(0, 4), (6, 0), (7, 0)]],
    ]
    assert first.tokens_BL[:, 0].tolist() == [1, 2]
    assert second.tokens_BL[:, 0].tolist() == [3, 4]
    assert third.tokens_BL[:, 0].tolist() == [0, 5]
    assert third.response(0) == [0, 1, 2, 3, 4, 5]
    assert third.versions_BT[0].tolist() == [0, 0, 1, 1, 2, 2]
    assert third.logprobs_BT[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert second.versions_BT.tolist() == [[0, 0, 1], [1, 1, 0]]
    assert second.response_mask_BT.tolist() == [[True, True, True], [True, True, False]]
    assert second.prompt_lengths_B.tolist() == [1, 1]
    assert second.finished_B.tolist() == [True, True]


def test_a_batch_waits_until_enough_prompts_have_all_their_responses() -> None:
    """Responses that never end stop at the longest; under one version, since no batch is full before."""
    sampler = Sampler(lambda at: 99)
    batches = make(**SMALL, samples_per_prompt=2)
    (batch,) = run(batches, sampler, [0])
    assert len(sampler.turns) == 3
    assert batch.tokens_BL[:, 0].tolist() == [0, 0, 1, 1]
    assert batch.response_lengths_B.tolist() == [6] * 4
    assert not batch.finished_B.any()
    assert (batch.versions_BT == 0).all()


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 4), st.sampled_from([1, 2, 3, 6]))
def test_every_prompt_is_trained_on_once_and_none_is_staler_than_is_said(
    data: st.DataObject, size: int, more: int, tokens: int
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 8), min_size=7, max_size=7))
    values = {
        "prompts_per_iteration": size, "partial_prompts": size + more, "max_new_tokens": 6,
        "partial_tokens": tokens,
    }  # fmt: skip
    rows = run(make(**values), Sampler(lambda at: lengths[at % 7]), range(12))
    taken = [int(at) for batch in rows for at in batch.tokens_BL[:, 0]]
    assert len(set(taken)) == len(taken) == 12 * size
    assert max(taken) < 12 * size + more
    lag = config(**values).rollout.partial_lag
    for number, batch in enumerate(rows):
        assert number - int(batch.versions_BT[batch.response_mask_BT].min()) <= lag
        for row in range(size):
            at, length = int(batch.tokens_BL[row, 0]), int(batch.response_lengths_B[row])
            assert batch.response(row) == [1000 * at + i for i in range(length)]
            assert length == min(6, lengths[at % 7])


def test_what_is_under_way_goes_through_a_checkpoint() -> None:
    lengths = [5, 1, 6, 2, 3]
    whole = run(make(**SMALL), Sampler(lambda at: lengths[at % 5]), range(6))
    for cut in (1, 3):
        first, second = make(**SMALL), make(**SMALL)
        run(first, Sampler(lambda at: lengths[at % 5]), range(cut))
        second.load(cut, first.state())
        rest = run(second, Sampler(lambda at: lengths[at % 5]), range(cut, 6))
        for got, want in zip(rest, whole[cut:], strict=True):
            for name in Rollout.__dataclass_fields__:
                assert torch.equal(getattr(got, name), getattr(want, name)), name


def test_without_a_surplus_nothing_is_under_way_between_batches() -> None:
    values = {**SMALL, "partial_prompts": 2}
    first, second = make(**values), make(**values)
    run(first, Sampler(lambda at: 3), range(2))
    second.load(2, first.state())
    (batch,) = run(second, Sampler(lambda at: 3), [2])
    assert batch.tokens_BL[:, 0].tolist() == [4, 5]
    # A trial that sampled whole responses until then goes on with its next prompts.
    second.load(7, {})
    (batch,) = run(second, Sampler(lambda at: 3), [7])
    assert batch.tokens_BL[:, 0].tolist() == [14, 15]


def test_partial_rollouts_that_cannot_be_are_refused() -> None:
    for values, problem in (
        (
            {"partial_tokens": 7},
            "partial_tokens must divide rollout.max_new_tokens, but 24 / 7 leaves 3",
        ),
        (
            {"partial_prompts": 128},
            "partial_prompts 128 has no effect: it belongs to partial rollouts",
        ),
        ({"partial_tokens": 8, "partial_prompts": 3}, "at least the 64 of rollout.prompts_per_it"),
    ):
        with pytest.raises(ConfigError, match=problem):
            config(**values)


@pytest.mark.parametrize(("mode", "least"), [("sync", 4), ("async", 5)])
def test_the_bound_on_staleness_counts_what_partial_rollouts_add(mode: str, least: int) -> None:
    """Three parts and two batches under way add 3, an interval of two iterations 1."""
    base = config(partial_tokens=8)
    assert base.rollout.partial_lag == 3
    values = {"sync.mode": mode, "sync.interval": 2}
    with pytest.raises(ConfigError, match=rf"at least {least} .* rollouts that may take 3 more"):
        apply(base, {**values, "sync.max_staleness": least - 1})
    fits = apply(base, {**values, "sync.max_staleness": least + 1})
    assert fits.batches_ahead == (2 if mode == "async" else 0)
