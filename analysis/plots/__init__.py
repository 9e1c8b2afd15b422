"""Plots of a sweep, each split into its data (a frame anyone can use) and its drawing.

matplotlib is imported by the drawing functions only and no window or pyplot state is touched.
"""

from __future__ import annotations

from analysis.plots.contour import contour_data, draw_contour, plot_contour
from analysis.plots.costs import Costs, cost_data, draw_costs, plot_costs
from analysis.plots.course import Course, course_data, draw_course, plot_course
from analysis.plots.gallery import GALLERY, Exhibit
from analysis.plots.goals import (
    Goals,
    Volume,
    draw_objectives,
    draw_volume,
    objectives_data,
    plot_objectives,
    plot_volume,
    volume_data,
)
from analysis.plots.imbalance import Imbalance, draw_imbalance, imbalance_data, plot_imbalance
from analysis.plots.importance import (
    Importances,
    draw_importance,
    importance_data,
    plot_importance,
)
from analysis.plots.learning_curves import (
    Curves,
    draw_learning_curves,
    learning_curve_data,
    plot_learning_curves,
)
from analysis.plots.parallel import draw_parallel, plot_parallel
from analysis.plots.parameters import (
    ParameterPoints,
    draw_parameters,
    parameter_data,
    plot_parameters,
)
from analysis.plots.pareto import Front, draw_front, front_data, plot_front
from analysis.plots.relations import (
    Relations,
    draw_relations,
    plot_ratio,
    plot_staleness,
    ratio_data,
    staleness_data,
)
from analysis.plots.rungs import Survival, draw_survival, plot_survival, survival_data
from analysis.plots.seeds import SeedSpread, draw_seeds, plot_seeds, seed_data
from analysis.plots.style import save
from analysis.plots.timeline import Timeline, draw_timeline, plot_timeline, timeline_data

__all__ = [
    "GALLERY",
    "Costs",
    "Course",
    "Curves",
    "Exhibit",
    "Front",
    "Goals",
    "Imbalance",
    "Importances",
    "ParameterPoints",
    "Relations",
    "SeedSpread",
    "Survival",
    "Timeline",
    "Volume",
    "contour_data",
    "cost_data",
    "course_data",
    "draw_contour",
    "draw_costs",
    "draw_course",
    "draw_front",
    "draw_imbalance",
    "draw_importance",
    "draw_learning_curves",
    "draw_objectives",
    "draw_parallel",
    "draw_parameters",
    "draw_relations",
    "draw_seeds",
    "draw_survival",
    "draw_timeline",
    "draw_volume",
    "front_data",
    "imbalance_data",
    "importance_data",
    "learning_curve_data",
    "objectives_data",
    "parameter_data",
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
    "ratio_data",
    "save",
    "seed_data",
    "staleness_data",
    "survival_data",
    "timeline_data",
    "volume_data",
]
