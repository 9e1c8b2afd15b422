"""Synthetic tables of learning curves: four parameters, a smooth optimum, noise between seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sweeps.replay.table import COMPLETED, DIVERGED, Header, Run, Table

LEVELS: dict[str, tuple[Any, ...]] = {
    "optim.policy.lr": (1e-4, 4e-4, 1.6e-3, 6.4e-3, 2.56e-2),
    "ppo.kl.coef": (0.005, 0.03, 0.12, 0.5),
    "ppo.clip_range_low": (0.1, 0.2, 0.4),
    "sync.interval": (1, 2, 4, 8),
}


def header(**changes: Any) -> Header:
    """The grid of the tests: 240 configurations, 16 iterations."""
    values: dict[str, Any] = {
        "base": {"extends": "tiny"},
        "levels": LEVELS,
        "tuning_seeds": (1, 2, 3),
        "test_seeds": (101, 102, 103),
        "iterations": 16,
        "objective": "eval/heldout",
        **changes,
    }
    return Header(**values)


def make_table(seed: int = 0, noise: float = 0.15, **changes: Any) -> Table:
    """Curves that saturate at what the configuration is worth; the largest learning rate diverges at times.

    Args:
        seed: Of the landscape and of the noise.
        noise: Standard deviation between seeds of a final value; the best configuration is worth about 1.
        changes: Of the header.
    """
    grid, rng = header(**changes), np.random.default_rng(seed)
    optimum = rng.uniform(0.3, 0.7, len(grid.levels))
    sizes = np.array([max(1, len(levels) - 1) for levels in grid.levels.values()])
    runs = {}
    for number, point in enumerate(grid.configurations):
        places = [levels.index(point[key]) for key, levels in grid.levels.items()]
        distance = (np.array(places) / sizes - optimum) * np.array([2.0, 1.2, 0.6, 0.5])[
            : len(sizes)
        ]
        worth = float(np.exp(-(distance**2).sum() * 2.0))
        speed = 1.5 + 4.0 * places[0] / sizes[0]
        for run_seed in (*grid.tuning_seeds, *grid.test_seeds):
            runs[number, run_seed] = _run(grid, worth, speed, places[0] == sizes[0], noise, rng)
    return Table(grid, runs)


def _run(
    grid: Header, worth: float, speed: float, wild: bool, noise: float, rng: np.random.Generator
) -> Run:
    final = worth + noise * rng.standard_normal()
    length = grid.iterations
    broken = wild and rng.random() < 0.5
    last = int(rng.integers(2, length)) if broken else length
    rows = []
    for iteration in range(last + 1):
        reached = 1 - math.exp(-speed * iteration / length)
        row = {"reward/proxy": final * reached, "cost/cpu_seconds": 0.25 * (iteration + 1)}
        if iteration % 2 == 0:
            row["eval/heldout"] = final * reached + 0.3 * noise * rng.standard_normal()
        rows.append(row)
    return Run(
        tuple(range(last + 1)),
        tuple(rows),
        tuple(float(s) for s in rng.uniform(0.2, 0.3, last + 1)),
        DIVERGED if broken else COMPLETED,
        "policy/loss is nan" if broken else "",
    )
