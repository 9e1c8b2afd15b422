"""Guards on recorded learning curves: how many bad trials they end, how many healthy ones, and what that saves.

python tests/benchmarks/guards.py [--table FILE] [--seed SEED]

The table has a row for each configuration, seed and iteration (docs/replay.md). The configurations
are cut into two halves: thresholds are set on one and measured on the other. A trial is bad when its held-out
reward ends more than two standard errors below where it began, or when a number was not finite.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from sweeps.config import GuardsConfig
from sweeps.decide.guards import WATCHED, Guards, Limits
from sweeps.replay.table import RECORDED
from sweeps.schedulers import make_guards

RECALL, FALSE_STOPS, SAVED, HEALTHY = 0.95, 0.02, 0.40, 150
# What a setting must keep on the half on which it is chosen, so that it keeps the targets on the other one.
CHOSEN_RECALL, CHOSEN_FALSE_STOPS = 0.97, 0.01
OPTIONS: dict[str, tuple[float | None, ...]] = {
    "max_kl": (None, 15, 20, 30, 40, 60, 80, 120),
    "min_entropy_share": (None, 0.01, 0.02, 0.05, 0.1),
    "max_length_ratio": (None, 2, 3, 4),
    "max_truncated_share": (None, 0.5, 0.8, 0.95),
    "max_heldout_fall": (None, 3, 4, 6, 8, 12),
    "max_eval_fall": (None, 2, 3, 4, 5, 6, 8),
    "hacking_fall": (None, 3, 4, 6, 8),
}
WINDOWS, PATIENCE = (2, 3, 4), (1, 2, 3)
# Limits that compare means over a window.
OVER_WINDOWS = ("max_heldout_fall", "hacking_fall")
NEVER = 10**9
Steps = NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """A recorded trial.

    Attributes:
        config: Number of its configuration.
        reports: Iteration and metrics of each report.
        bad: Whether it went wrong.
    """

    config: int
    reports: tuple[tuple[int, Mapping[str, float]], ...]
    bad: bool

    @property
    def last(self) -> int:
        return self.reports[-1][0]


def curves(frame: pd.DataFrame) -> Iterator[Curve]:
    """The trials of a table in long form: columns ``config``, ``seed``, ``iteration`` and one for each metric."""
    metrics = [name for name in WATCHED if name in frame]
    others = [name for name in frame.columns if "/" in str(name) and name not in WATCHED]
    for (config, _), rows in frame.groupby(["config", "seed"], observed=True):
        rows = rows.sort_values("iteration")
        table = rows[metrics].to_numpy(dtype=float)
        # Of what no guard looks at only that matters which is not finite.
        infinite = np.isinf(rows[others].to_numpy(dtype=float)).any(axis=1)
        reports = tuple(
            (
                int(at),
                {n: float(v) for n, v in zip(metrics, row, strict=True) if not math.isnan(v)}
                | ({"infinite": math.inf} if blown else {}),
            )
            for at, row, blown in zip(rows["iteration"], table, infinite, strict=True)
        )
        diverged = "outcome" in rows and (rows["outcome"] == "diverged").any()
        yield Curve(int(config), reports, bool(diverged) or is_bad(reports))


def is_bad(reports: Sequence[tuple[int, Mapping[str, float]]]) -> bool:
    """The label: the last evaluation is below the first by more than two standard errors."""
    measured = [
        (metrics["eval/heldout"], metrics["eval/heldout_stderr"])
        for _, metrics in reports
        if "eval/heldout" in metrics
    ]
    if not measured:
        return True
    (first, error), (last, other) = measured[0], measured[-1]
    return last < first - 2 * math.hypot(error, other)


def stops(found: Sequence[Curve], guards: Guards) -> Steps:
    """Iteration after which each trial is ended; ``NEVER`` where none is. The last report ends it anyway."""
    ends = []
    for number, curve in enumerate(found):
        told = (
            at
            for at, metrics in curve.reports[:-1]
            if guards.decide(f"{number}", at, metrics) is not None
        )
        ends.append(next(told, NEVER))
    return np.array(ends)


@dataclass(frozen=True)
class Score:
    """What guards did to trials: numbers of trials, and steps of the bad ones."""

    bad: int
    caught: int
    healthy: int
    stopped: int
    saved: float
    saved_of_all: float

    @property
    def recall(self) -> float:
        return self.caught / max(1, self.bad)

    @property
    def false_stops(self) -> float:
        return self.stopped / max(1, self.healthy)


def score(found: Sequence[Curve], ends: Steps) -> Score:
    bad = np.array([curve.bad for curve in found])
    last = np.array([curve.last for curve in found])
    spared = np.maximum(0, last - ends)
    ended = ends < NEVER
    return Score(
        bad=int(bad.sum()),
        caught=int((bad & ended).sum()),
        healthy=int((~bad).sum()),
        stopped=int((~bad & ended).sum()),
        saved=float(spared[bad].sum() / max(1, last[bad].sum())),
        saved_of_all=float(spared.sum() / max(1, last.sum())),
    )


def choose(found: Sequence[Curve]) -> Limits:
    """The limits that save most on these trials, out of all combinations, with a price on every broken target."""
    chosen, most = Limits(), -math.inf
    ends: dict[str, Steps] = {}
    for patience, window in itertools.product(PATIENCE, WINDOWS):
        for name in OPTIONS if window == WINDOWS[0] else OVER_WINDOWS:
            shared = {"window": window, "patience": patience}
            ends[name] = np.array(
                [stops(found, Guards(Limits(**{name: value}, **shared))) for value in OPTIONS[name]]
            )
        setting, reached = _best(found, ends)
        if reached > most:
            chosen, most = Limits(**setting, window=window, patience=patience), reached
    return chosen


def _best(
    found: Sequence[Curve], ends: Mapping[str, Steps]
) -> tuple[dict[str, float | None], float]:
    """The best combination of limits and its worth. Any guard ends a trial, so the first one counts."""
    most, best, names = -math.inf, (0, 0), list(OPTIONS)
    few, many = names[:3], names[3:]
    heads, tails = (_products([ends[name] for name in part]) for part in (few, many))
    used = [_products([_used(OPTIONS[name]) for name in part], np.add) for part in (few, many)]
    for number, head in enumerate(heads):
        worth = _worth(found, np.minimum(head, tails))
        # Of two that do the same, the one with fewer limits.
        worth -= 1e-3 * (used[0][number] + used[1])[:, 0]
        place = int(worth.argmax())
        if worth[place] > most:
            most, best = float(worth[place]), (number, place)
    setting: dict[str, float | None] = {}
    for part, place in zip((few, many), best, strict=True):
        sizes = [len(OPTIONS[name]) for name in part]
        chosen = np.unravel_index(place, sizes)
        setting |= {n: OPTIONS[n][int(i)] for n, i in zip(part, chosen, strict=True)}
    return setting, most


def _used(values: Sequence[float | None]) -> Steps:
    return np.array([[value is not None] for value in values]).astype(int)


def _products(parts: Sequence[Steps], join: np.ufunc = np.minimum) -> Steps:
    """Every row of each of the parts with every row of the others; the last one varies fastest."""
    rows = parts[0]
    for part in parts[1:]:
        rows = join(rows[:, None], part[None]).reshape(-1, part.shape[1])
    return rows


def _worth(found: Sequence[Curve], ends: Steps) -> NDArray[np.float64]:
    """What each row of stops is worth: the share of steps saved, less what it lacks of the targets."""
    bad = np.array([curve.bad for curve in found])
    last = np.array([curve.last for curve in found])
    ended = ends < NEVER
    recall = ended[:, bad].mean(axis=1) if bad.any() else np.ones(len(ends))
    wrong = ended[:, ~bad].mean(axis=1) if (~bad).any() else np.zeros(len(ends))
    saved = np.maximum(0, last - ends)[:, bad].sum(axis=1) / max(1, last[bad].sum())
    lacks = np.maximum(0, CHOSEN_RECALL - recall) + np.maximum(0, wrong - CHOSEN_FALSE_STOPS)
    return np.asarray(saved - 10 * lacks)


def wilson(hits: int, of: int) -> list[float]:
    """The 95 % Wilson interval of a share."""
    if of == 0:
        return [0.0, 1.0]
    z, share = 1.96, hits / of
    middle = (share + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z / (1 + z**2 / of) * math.sqrt(share * (1 - share) / of + z**2 / (4 * of**2))
    return [round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)]


def resampled(found: Sequence[Curve], ends: Steps, seed: int, repeats: int = 2000) -> list[float]:
    """The 95 % bootstrap interval of the saved share, whole configurations drawn."""
    draw = np.random.default_rng(seed)
    bad = np.array([curve.bad for curve in found])
    last = np.array([curve.last for curve in found])
    spared = np.maximum(0, last - ends)
    numbers = sorted({curve.config for curve in found})
    place = {config: i for i, config in enumerate(numbers)}
    rows = np.array([place[curve.config] for curve in found])
    sums = [np.bincount(rows[bad], values[bad], len(numbers)) for values in (spared, last)]
    drawn = draw.integers(len(numbers), size=(repeats, len(numbers)))
    top, bottom = (values[drawn].sum(axis=1) for values in sums)
    shares = top / np.maximum(1, bottom)
    return [round(float(q), 4) for q in np.quantile(shares, [0.025, 0.975])]


def told(found: Sequence[Curve], limits: Guards, seed: int) -> dict[str, Any]:
    """The score in the words of the report."""
    ends = stops(found, limits)
    reached = score(found, ends)
    return {
        "bad": reached.bad,
        "healthy": reached.healthy,
        "recall": round(reached.recall, 4),
        "recall_interval": wilson(reached.caught, reached.bad),
        "false_stops": round(reached.false_stops, 4),
        "false_stops_interval": wilson(reached.stopped, reached.healthy),
        "saved": round(reached.saved, 4),
        "saved_interval": resampled(found, ends, seed),
        "saved_of_all": round(reached.saved_of_all, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, default=RECORDED / "tiny.parquet")
    parser.add_argument("--seed", type=int, default=0, help="of the cut into halves")
    parser.add_argument("--quick", action="store_true", help="the same: it takes seconds anyway")
    asked = parser.parse_args()
    frame = pd.read_parquet(asked.table)
    if "phase" in frame:
        frame = frame[frame["phase"] == "tune"]
    found = list(curves(frame))
    numbers = sorted({curve.config for curve in found})
    drawn = np.random.default_rng(asked.seed).permutation(len(numbers))
    half = {numbers[i] for i in drawn[: len(numbers) // 2]}
    first = [curve for curve in found if curve.config in half]
    second = [curve for curve in found if curve.config not in half]
    limits = choose(first)
    measured = told(second, Guards(limits), asked.seed)
    ok = (
        measured["recall"] >= RECALL
        and measured["false_stops"] <= FALSE_STOPS
        and measured["saved"] >= SAVED
        and measured["healthy"] >= HEALTHY
    )
    line = {
        "name": "guards",
        "ok": ok,
        "target": {
            "recall": RECALL,
            "false_stops": FALSE_STOPS,
            "saved": SAVED,
            "healthy": HEALTHY,
        },
        **measured,
        "unit": "share",
        "limits": vars(limits),
        "on_the_half_they_were_set_on": told(first, Guards(limits), asked.seed),
        "defaults_on_all": told(found, make_guards(GuardsConfig()), asked.seed),
        "versions": {
            "python": platform.python_version(),
            **{p: version(p) for p in ("numpy", "pandas")},
        },
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
