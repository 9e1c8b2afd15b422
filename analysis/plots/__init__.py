"""Plots of a sweep, each split into its data (a frame anyone can use) and its drawing.

matplotlib is imported by the drawing functions only and no window or pyplot state is touched.
"""

from __future__ import annotations

from analysis.plots.learning_curves import (
    Curves,
    draw_learning_curves,
    learning_curve_data,
    plot_learning_curves,
)
from analysis.plots.parameters import (
    ParameterPoints,
    draw_parameters,
    parameter_data,
    plot_parameters,
)
from analysis.plots.style import save

__all__ = [
    "Curves",
    "ParameterPoints",
    "draw_learning_curves",
    "draw_parameters",
    "learning_curve_data",
    "parameter_data",
    "plot_learning_curves",
    "plot_parameters",
    "save",
]
