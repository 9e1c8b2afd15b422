"""From a run directory to dataframes, tables and plots. Needs neither torch nor ray.

    >>> import analysis
    >>> sweep = analysis.load("runs/quickstart")
    >>> analysis.leaderboard(sweep, top=5)

Importing it is cheap: pandas and matplotlib come with the first call that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from analysis.compare import best_so_far, final_by, findings
from analysis.leaderboard import best, leaderboard, render_leaderboard
from analysis.load import Sweep, load
from analysis.status import render_status, status

if TYPE_CHECKING:
    from analysis.plots import plot_learning_curves, plot_parameters, save

__all__ = [
    "Sweep",
    "best",
    "best_so_far",
    "final_by",
    "findings",
    "leaderboard",
    "load",
    "plot_learning_curves",
    "plot_parameters",
    "render_leaderboard",
    "render_status",
    "save",
    "status",
]

_PLOTS = ("plot_learning_curves", "plot_parameters", "save")


def __getattr__(name: str) -> Any:
    if name in _PLOTS:
        return getattr(import_module("analysis.plots"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLOTS})
