"""The cheapest trial that is nearly as good as the best one."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from analysis.leaderboard import best, leaderboard
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError

_TEXT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*")
# What a trial cost: on GPUs, or where it used none, on CPUs.
COSTS = ("cost/gpu_seconds", "cost/cpu_seconds")


@dataclass(frozen=True)
class Within:
    """How far behind the best value still counts.

    Attributes:
        amount: In the unit of the objective, or a share of the best value's size.
        relative: Whether it is a share.
    """

    amount: float
    relative: bool

    @classmethod
    def parse(cls, text: str) -> Within:
        """Reads ``5%`` or ``0.1``.

        Raises:
            ConfigError: It is neither, or a share of more than 100 %.
        """
        match = _TEXT.fullmatch(text)
        amount = float(match[1]) / (100 if match[2] else 1) if match else math.nan
        if match is None or (match[2] and amount > 1):
            raise ConfigError(
                f"--within: a share of the best value such as 5%, or an amount such as 0.1, but is {text!r}"
            )
        return cls(amount, bool(match[2]))

    def reach(self, value: float) -> float:
        """The distance from ``value`` that it allows."""
        return self.amount * abs(value) if self.relative else self.amount


class Cheapest(NamedTuple):
    """The cheapest trial within reach of the best.

    Attributes:
        trial: Its id.
        value: What was compared: the objective, of finalists on test seeds, else smoothed where ranks are.
        cost: Its cost, in seconds.
        metric: The cost's metric.
        best: The best trial.
        best_value: Its value.
        best_cost: Its cost.
        within: How many trials were within reach, the best among them.
    """

    trial: str
    value: float
    cost: float
    metric: str
    best: str
    best_value: float
    best_cost: float
    within: int


def cheapest(sweep: Sweep, within: Within) -> Cheapest:
    """The eligible trial with the lowest cost among those whose value is ``within`` reach of the best one's.

    Where finalists ran on test seeds these are compared, by what they reached there, and no others: a value on the
    seed of the search is no fair rival of one on fresh seeds. Of equal costs the better trial is taken.

    Raises:
        ConfigError: No trial is eligible, or the best one reports no cost.
    """
    first, board = best(sweep), leaderboard(sweep)
    board = board[board["why_not"] == ""].set_index("trial")
    name = "value"
    if "test" in board and board["test"].notna().any():
        board, name = board[board["test"].notna()], "test"
    elif "smoothed" in board:
        name = "smoothed"
    metric = _cost_of(sweep, first)
    costs = sweep.trials[f"final.{metric}"].reindex(board.index)
    values = board[name]
    top = float(values[first])
    # Of 10.0 and 9.6 the difference is a little more than 0.4.
    slack = 1e-9 * max(1.0, abs(top))
    near = ((values - top).abs() <= within.reach(top) + slack) & costs.notna()
    # The board is sorted, and the first of equal costs is the best of them.
    trial = str(costs[near].idxmin())
    cost, usual = float(costs[trial]), float(costs[first])
    return Cheapest(trial, float(values[trial]), cost, metric, first, top, usual, int(near.sum()))


def _cost_of(sweep: Sweep, trial: str) -> str:
    """The metric of a trial's cost."""
    for metric in COSTS:
        column = sweep.trials.get(f"final.{metric}")
        if (
            column is not None
            and column.fillna(0.0).gt(0.0).any()
            and not math.isnan(column[trial])
        ):
            return metric
    raise ConfigError(
        f"--cheapest: {trial} reports neither {' nor '.join(COSTS)}; its program must report what it costs"
    )
