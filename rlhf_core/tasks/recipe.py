"""Settings that the recipes of tasks share. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, int, int], None]
"""Called with the stage, the steps done and the steps there are."""


@dataclass(frozen=True)
class ModelSize:
    """Shape of the Llama models of a task.

    Attributes:
        layers: Decoder layers.
        width: Hidden size.
        mlp: Inner size of the feed-forward blocks.
        heads: Attention heads.
        positions: Longest sequence, in tokens.
    """

    layers: int = 2
    width: int = 96
    mlp: int = 256
    heads: int = 4
    positions: int = 128

    def parameters(self, vocab: int) -> int:
        """Parameters of a Llama of this shape, norms aside, whose head is its embedding of ``vocab`` tokens."""
        layer = 4 * self.width**2 + 3 * self.width * self.mlp
        return vocab * self.width + self.layers * layer


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train.

    Attributes:
        steps: Optimiser steps.
        batch: Texts (or pairs of texts) a step.
        lr: Peak learning rate; a tenth of the steps warms up, then a cosine goes down to zero.
        weight_decay: Decoupled weight decay.
    """

    steps: int
    batch: int
    lr: float
    weight_decay: float = 0.01
