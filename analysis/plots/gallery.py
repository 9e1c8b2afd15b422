"""Every plot with what it answers, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from analysis.plots.contour import plot_contour
from analysis.plots.costs import plot_costs
from analysis.plots.course import plot_course
from analysis.plots.goals import plot_objectives, plot_volume
from analysis.plots.imbalance import plot_imbalance
from analysis.plots.importance import plot_importance
from analysis.plots.learning_curves import plot_learning_curves
from analysis.plots.parallel import plot_parallel
from analysis.plots.parameters import plot_parameters
from analysis.plots.pareto import plot_front
from analysis.plots.relations import plot_ratio, plot_staleness
from analysis.plots.rungs import plot_survival
from analysis.plots.seeds import plot_seeds
from analysis.plots.timeline import plot_timeline
from analysis.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Exhibit(NamedTuple):
    """A plot.

    Attributes:
        name: Of its file, and of its function ``plot_<name>``.
        title: What it shows.
        caption: How to read it, in one or two sentences.
        plot: Makes the figure.
        each: Whether it is about the objective that ranks, so that several objectives need one each.
        several: Whether it has nothing to show of a single objective.
    """

    name: str
    title: str
    caption: str
    plot: Callable[[Sweep], Figure]
    each: bool = False
    several: bool = False

    def views(self, sweep: Sweep) -> Iterator[tuple[str, Sweep]]:
        """What is to be plotted, with its title: the sweep, or the sweep by each of its objectives."""
        goals = sweep.objectives
        if self.each and len(goals) > 1:
            for goal in goals:
                yield f"{self.title}: {goal}", sweep.ranked_by(goal.metric)
        elif len(goals) > 1 or not self.several:
            yield self.title, sweep


GALLERY = (
    Exhibit(
        "learning_curves",
        "Learning curves",
        "Every trial over its iterations, by outcome. A mark ends a curve that was cut off.",
        plot_learning_curves,
    ),
    Exhibit(
        "course",
        "Best so far",
        "The best eligible value against the bill. A search that is no better than chance runs inside "
        "the grey band, which is the best of as many of the same trials in random order.",
        plot_course,
        each=True,
    ),
    Exhibit(
        "objectives",
        "The objectives against each other",
        "Dots that are full are on the front: no other eligible trial is as good in every objective and "
        "better in one. Two objectives have their front as a line; the ring is the best by the first one.",
        plot_objectives,
        several=True,
    ),
    Exhibit(
        "volume",
        "Hypervolume so far",
        "The share of the box, between worst and best of each objective, that the front had covered. A "
        "search that is no better than chance runs inside the grey band.",
        plot_volume,
        several=True,
    ),
    Exhibit(
        "front",
        "Reward against KL",
        "No other completed trial beats those on the line in both. The broken lines are the fronts "
        "after a quarter and half of the bill: where they meet the full one, the rest bought nothing.",
        plot_front,
    ),
    Exhibit(
        "importance",
        "Importance of parameters",
        "Two questions, two measures. A long line means that these trials cannot tell.",
        plot_importance,
        each=True,
    ),
    Exhibit(
        "parameters",
        "The objective against each parameter",
        "Lines are medians of completed trials: of each value, or of bins of equally many trials.",
        plot_parameters,
        each=True,
    ),
    Exhibit(
        "contour",
        "Two parameters together",
        "The two most important ones. Areas interpolate between trials and end with them.",
        plot_contour,
        each=True,
    ),
    Exhibit(
        "parallel",
        "Parallel coordinates",
        "A trial is a line from parameter to parameter to its objective.",
        plot_parallel,
    ),
    Exhibit(
        "survival",
        "Who lives on, and when ranks can be believed",
        "Left: trials that reached an iteration. Right: how far ranks there are those at the end; "
        "stopping before the band leaves zero stops at random.",
        plot_survival,
    ),
    Exhibit(
        "seeds",
        "Seeds",
        "Configurations that ran more than once. Intervals that overlap do not tell two of them apart.",
        plot_seeds,
        each=True,
    ),
    Exhibit(
        "timeline",
        "Trials on GPUs",
        "What is hatched stood idle.",
        plot_timeline,
    ),
    Exhibit(
        "costs",
        "Where the time went",
        "Seconds of each phase, and of each role's workers busy or waiting.",
        plot_costs,
    ),
    Exhibit(
        "staleness",
        "Stale weights",
        "Fewer deliveries of weights buy speed and may cost reward.",
        plot_staleness,
    ),
    Exhibit(
        "ratio",
        "CPUs for each GPU",
        "As placed, over the bundles that hold a GPU.",
        plot_ratio,
    ),
    Exhibit(
        "imbalance",
        "Balance of nodes",
        "How much more than the mean the busiest node of a trial worked; above the line it is flagged.",
        plot_imbalance,
    ),
)
