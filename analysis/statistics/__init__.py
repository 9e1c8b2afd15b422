"""What can be said of a sweep beyond its best number. Pure numpy and scipy; importance asks Optuna.

Importing it is cheap: each name comes with its own module when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.statistics.budget import budget_correlation, expected_best, search_course
    from analysis.statistics.goals import objective_front, volume_course
    from analysis.statistics.hacking import hacking_signs
    from analysis.statistics.parameters import importance
    from analysis.statistics.pareto import hypervolume, pareto_front, trade_off
    from analysis.statistics.robust import (
        Interval,
        bootstrap,
        iqm,
        performance_profile,
        probability_of_improvement,
    )
    from analysis.statistics.seeds import SeedNoise, replicates, seed_noise, seed_table
    from analysis.statistics.smoothing import smoothed

__all__ = [
    "Interval",
    "SeedNoise",
    "bootstrap",
    "budget_correlation",
    "expected_best",
    "hacking_signs",
    "hypervolume",
    "importance",
    "iqm",
    "objective_front",
    "pareto_front",
    "performance_profile",
    "probability_of_improvement",
    "replicates",
    "search_course",
    "seed_noise",
    "seed_table",
    "smoothed",
    "trade_off",
    "volume_course",
]

_HOMES = {
    "budget": ("budget_correlation", "expected_best", "search_course"),
    "goals": ("objective_front", "volume_course"),
    "hacking": ("hacking_signs",),
    "parameters": ("importance",),
    "pareto": ("hypervolume", "pareto_front", "trade_off"),
    "robust": ("Interval", "bootstrap", "iqm", "performance_profile", "probability_of_improvement"),
    "seeds": ("SeedNoise", "replicates", "seed_noise", "seed_table"),
    "smoothing": ("smoothed",),
}
_LATE = {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
