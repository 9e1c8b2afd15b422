"""What can be said of a sweep beyond its best number. Pure numpy and scipy; importance asks Optuna."""

from __future__ import annotations

from analysis.statistics.budget import budget_correlation, expected_best, search_course
from analysis.statistics.goals import objective_front, volume_course
from analysis.statistics.hacking import hacking_signs
from analysis.statistics.importance import importance
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
