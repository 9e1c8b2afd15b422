"""From a run directory to dataframes, tables and plots. Needs neither torch nor ray.

    >>> import analysis
    >>> sweep = analysis.load("runs/quickstart")
    >>> analysis.leaderboard(sweep, top=5)

Importing it is cheap: pandas, scipy and matplotlib come with the first call that needs them.
``analysis.statistics`` and ``analysis.plots`` hold what is behind the report.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from analysis.cheapest import Cheapest, Within, cheapest
from analysis.compare import best_so_far, final_by, findings
from analysis.finalists import finalists
from analysis.leaderboard import best, front, leaderboard, render_leaderboard
from analysis.load import Sweep, load
from analysis.status import render_status, status

if TYPE_CHECKING:
    from analysis.plots import (
        plot_contour,
        plot_costs,
        plot_course,
        plot_front,
        plot_imbalance,
        plot_importance,
        plot_learning_curves,
        plot_objectives,
        plot_parallel,
        plot_parameters,
        plot_ratio,
        plot_seeds,
        plot_staleness,
        plot_survival,
        plot_timeline,
        plot_volume,
        save,
    )
    from analysis.report import write_report

__all__ = [
    "Cheapest",
    "Sweep",
    "Within",
    "best",
    "best_so_far",
    "cheapest",
    "final_by",
    "finalists",
    "findings",
    "front",
    "leaderboard",
    "load",
    "plot_contour",
    "plot_costs",
    "plot_course",
    "plot_front",
    "plot_imbalance",
    "plot_importance",
    "plot_learning_curves",
    "plot_objectives",
    "plot_parallel",
    "plot_parameters",
    "plot_ratio",
    "plot_seeds",
    "plot_staleness",
    "plot_survival",
    "plot_timeline",
    "plot_volume",
    "render_leaderboard",
    "render_status",
    "save",
    "status",
    "write_report",
]

_LATE = {name: "analysis.plots" for name in __all__ if name.startswith("plot_") or name == "save"}
_LATE["write_report"] = "analysis.report"


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
