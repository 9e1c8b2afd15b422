"""Many trials: plan, launch, schedule, record."""

from sweeps.sweep import Interrupted, Sweep

__all__ = ["Interrupted", "Sweep"]
