"""Distinct-n of a set of responses."""

from __future__ import annotations

import torch

from rlhf_core.diversity import distinct_share
from rlhf_core.types import Rollout


def _responses(rows: list[tuple[list[int], bool]], prompt: int = 2) -> Rollout:
    """Responses after prompts of equal length; True: the last token ended it."""
    depth = max(len(tokens) for tokens, _ in rows)
    mask_BT = torch.tensor([[t < len(tokens) for t in range(depth)] for tokens, _ in rows])
    padded = [[7] * prompt + tokens + [0] * (depth - len(tokens)) for tokens, _ in rows]
    return Rollout(
        tokens_BL=torch.tensor(padded),
        prompt_lengths_B=torch.full((len(rows),), prompt),
        response_mask_BT=mask_BT,
        logprobs_BT=torch.zeros(mask_BT.shape),
        finished_B=torch.tensor([finished for _, finished in rows]),
        versions_BT=torch.zeros(mask_BT.shape, dtype=torch.int64),
    )


def test_equal_pairs_within_and_between_responses_count_once() -> None:
    batch = _responses([([4, 5, 4, 5], False), ([4, 5, 6], False)])
    assert distinct_share(batch, 1) == 3 / 7
    # 4 5, 5 4, 4 5 and 4 5, 5 6: three kinds of five; none spans two responses.
    assert distinct_share(batch, 2) == 3 / 5


def test_neither_prompt_nor_padding_nor_the_end_counts() -> None:
    batch = _responses([([4, 5, 1], True), ([6, 1], True), ([1], True)])
    assert distinct_share(batch, 1) == 1.0
    assert distinct_share(batch, 2) == 1.0


def test_without_an_n_gram_there_is_none() -> None:
    assert distinct_share(_responses([([4], False), ([1], True)]), 2) == 0.0
