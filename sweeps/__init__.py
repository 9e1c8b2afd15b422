"""Many trials: plan, launch, schedule, record. Importing it is cheap; ``Sweep`` comes with its first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeps.sweep import Interrupted, Sweep

__all__ = ["Interrupted", "Sweep"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("sweeps.sweep"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
