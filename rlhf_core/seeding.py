"""Seeds without state: every random choice of a trial follows from (seed, purpose, position).

Nothing is drawn from a global generator, so a checkpoint needs no generator state, and who runs a piece of
work, or when, changes nothing.
"""

from __future__ import annotations

import hashlib


def derive(seed: int, *position: int | str) -> int:
    """A 63-bit seed for one piece of work.

    Args:
        seed: The trial's seed.
        position: What the seed is for, e.g. ``("sample", iteration, chunk)``.
    """
    text = "/".join([str(seed), *map(str, position)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
