"""OpenRLHF's versions and what differs between them."""

from __future__ import annotations

from dataclasses import dataclass

VERSIONS = (
    "0.11.2",
    "0.11.1",
    "0.11.0",
    "0.10.4",
    "0.10.3",
    "0.10.2",
    "0.10.1.post2",
    "0.10.1.post1",
    "0.10.1",
    "0.10.0",
    "0.9.10",
)


@dataclass(frozen=True)
class Dialect:
    """What differs between versions; ``micro`` are the default sizes of passes in training and scoring."""

    flat: bool
    unbiased_gradient: bool
    split_correction: bool
    loss_agg_mode: bool
    step_mean: bool
    micro: tuple[int, int]


def dialect(version: str) -> Dialect:
    """The dialect of a version of ``VERSIONS``."""
    age = VERSIONS.index(version)
    newest = age == 0
    return Dialect(
        flat=age >= VERSIONS.index("0.10.1.post2"),
        unbiased_gradient=age <= VERSIONS.index("0.11.1"),
        split_correction=newest,
        loss_agg_mode=newest,
        step_mean=age <= VERSIONS.index("0.10.4"),
        micro=(4, 8) if version == "0.9.10" else (1, 1),
    )
