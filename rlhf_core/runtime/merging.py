"""Requests to a frozen role put together and its answer taken apart; rows stay as they are."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from rlhf_core.types import Rollout, Scores, concat_rollouts

# Padding is never read: rows are causal, or cut at their length.
PAD = 0
Args = tuple[Any, ...]


def key_of(method: str, args: Args) -> Hashable:
    """Equal for calls that can be put together; None for those that cannot."""
    if method == "logprobs":
        return method, args[1]
    return method if method == "scores" else None


def size_of(args: Args) -> int:
    """Rows of a call."""
    return args[0].size if args and isinstance(args[0], Rollout) else 1


def joined(method: str, calls: Sequence[Args]) -> Args:
    """Arguments of one call that asks for the rows of all."""
    rollout = concat_rollouts([args[0] for args in calls], PAD)
    if method == "logprobs":
        return rollout, calls[0][1]
    return rollout, [prompt for args in calls for prompt in args[1]]


def parted(method: str, result: Any, calls: Sequence[Args]) -> list[Any]:
    """Each call's own part of what ``joined`` brought."""
    parts, start = [], 0
    for args in calls:
        rows = slice(start, start + args[0].size)
        start = rows.stop
        if method == "logprobs":
            parts.append(_cut(result, rows, args[0]))
        else:
            heldout_B = None if result.heldout_B is None else result.heldout_B[rows]
            extra = {name: scores_B[rows] for name, scores_B in result.extra.items()}
            parts.append(Scores(result.proxy_B[rows], heldout_B, extra))
    return parts


def _cut(logprobs_BT: Tensor, rows: slice, rollout: Rollout) -> Tensor:
    # A part of its own: a view would carry the whole batch to every caller.
    return logprobs_BT[rows, : rollout.response_mask_BT.shape[1]].clone()
