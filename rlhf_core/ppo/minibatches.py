"""Which sequences go into which minibatch and micro-batch, as lists of indices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlhf_core.errors import ConfigError


def minibatch_indices(
    size: int, minibatches: int, epochs: int, *, seed: int | torch.Generator
) -> list[list[list[int]]]:
    """A fresh random partition of ``size`` sequences into ``minibatches`` for every epoch.

    Args:
        size: Number of sequences in the rollout batch.
        minibatches: Optimiser steps in one epoch; must divide ``size``.
        epochs: Passes over the batch.
        seed: Seed, or a CPU generator, which advances.

    Returns:
        ``result[epoch][minibatch]`` is a list of ``size / minibatches`` indices.

    Raises:
        ConfigError: A number is below 1, or ``minibatches`` does not divide ``size``.
    """
    problems = [
        f"{name} must be at least 1, got {value!r}; raise it"
        for name, value in (("size", size), ("minibatches", minibatches), ("epochs", epochs))
        if value < 1
    ]
    if not problems and size % minibatches:
        fitting = [n for n in range(1, size + 1) if size % n == 0]
        near = min(fitting, key=lambda n: abs(n - minibatches))
        problems.append(
            f"minibatches must divide the rollout batch, got {minibatches} minibatches and "
            f"{size} sequences; use {near} minibatches or another batch size"
        )
    if problems:
        raise ConfigError(problems)
    if isinstance(seed, int):
        seed = torch.Generator().manual_seed(seed)
    width = size // minibatches
    plan = []
    for _ in range(epochs):
        order: list[int] = torch.randperm(size, generator=seed).tolist()
        plan.append([order[start : start + width] for start in range(0, size, width)])
    return plan


def micro_batches(
    lengths: Sequence[int], *, max_tokens: int | None = None, max_sequences: int | None = None
) -> list[list[int]]:
    """Groups of sequences of similar length that fit into memory together.

    Sequences are sorted by length, longest first, and packed greedily; equal lengths keep their
    order. Every sequence appears exactly once.

    Args:
        lengths: Tokens of each sequence.
        max_tokens: Bound on sequences x longest of a group, that is, padding included.
        max_sequences: Bound on the sequences of a group.

    Returns:
        Lists of indices into ``lengths``.

    Raises:
        ConfigError: No bound is given, a bound is below 1, a length is negative, or one sequence
            alone exceeds ``max_tokens``.
    """
    _check_bounds(lengths, max_tokens, max_sequences)
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        count = len(groups[-1]) + 1 if groups else 0
        full = (max_sequences is not None and count > max_sequences) or (
            max_tokens is not None and count * longest > max_tokens
        )
        if not groups or full:
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return groups


def _check_bounds(
    lengths: Sequence[int], max_tokens: int | None, max_sequences: int | None
) -> None:
    problems = [
        f"{name} must be at least 1, got {value!r}; raise it"
        for name, value in (("max_tokens", max_tokens), ("max_sequences", max_sequences))
        if value is not None and value < 1
    ]
    if max_tokens is None and max_sequences is None:
        problems.append("micro-batches need a bound, got none; set max_tokens or max_sequences")
    if any(length < 0 for length in lengths):
        problems.append(f"lengths must not be negative, got {min(lengths)}; pass token counts")
    if max_tokens is not None and lengths and max(lengths) > max_tokens:
        problems.append(
            f"one sequence must fit into max_tokens, got a sequence of {max(lengths)} tokens and "
            f"max_tokens={max_tokens}; raise max_tokens or shorten responses"
        )
    if problems:
        raise ConfigError(problems)
