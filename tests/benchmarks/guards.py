"""Guards on recorded learning curves: how many bad trials they end, how many healthy ones, and what that saves.

python tests/benchmarks/guards.py [--table FILE] [--set-on FILE] [--seed SEED] [--splits N] [--quick]

The tables have a row for each configuration, seed and iteration (docs/replay.md). Thresholds are set on the
second table and measured on the first, ``from_another``, and the other way round. Then the configurations of the
first are cut into two halves: thresholds are set on one and measured on the other, for several cuts, whose mean
and range are told. A trial is bad when its held-out reward ends more than two standard errors below where it
began, or when a number was not finite.
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

Setting = Mapping[str, float]
RECALL, FALSE_STOPS, SAVED, HEALTHY = 0.95, 0.02, 0.40, 150
# What a setting must keep on the half on which it is chosen, so that it keeps the targets on the other one. Steps
# saved beyond it are worth nothing: they are what is given for fewer false stops.
CHOSEN_RECALL, CHOSEN_FALSE_STOPS, CHOSEN_SAVED = 0.97, 0.01, 0.45
# Of two settings that do the same, the one with fewer limits: each has to be worth more than this.
A_LIMIT = 0.05
# Each guard alone, beginning with off.
OPTIONS: dict[str, tuple[Setting, ...]] = {
    "max_kl": ({}, *({"max_kl": v} for v in (20, 40, 80, 120, 160))),
    "min_entropy_share": ({}, *({"min_entropy_share": v} for v in (0.02, 0.1))),
    "max_length_ratio": ({}, *({"max_length_ratio": v} for v in (2, 4))),
    "max_truncated_share": ({}, *({"max_truncated_share": v} for v in (0.8, 0.95))),
    "max_heldout_fall": ({}, *({"max_heldout_fall": v} for v in (4, 8))),
    "max_eval_fall": (
        {},
        *(
            {"max_eval_fall": v, "eval_patience": n}
            for v, n in itertools.product((2, 2.5, 3, 4), (2, 3, 4))
        ),
    ),
    "hacking_fall": ({}, *({"hacking_fall": v} for v in (4, 8))),
}
WINDOWS, PATIENCE = (2, 3, 4), (2, 3)
SPLITS, QUICK = 10, 2
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


# Where each guard alone ends each trial, [settings, trials], by patience and window.
Tried = Mapping[tuple[int, int], Mapping[str, Steps]]


def tried(found: Sequence[Curve]) -> Tried:
    """All guards alone on these trials."""
    horizon = horizon_of(found)
    ends: dict[tuple[int, int], dict[str, Steps]] = {}
    for patience, window in itertools.product(PATIENCE, WINDOWS):
        own = ends[patience, window] = dict(ends.get((patience, WINDOWS[0]), {}))
        for name in OPTIONS if window == WINDOWS[0] else OVER_WINDOWS:
            shared = {"window": window, "patience": patience}
            guards = [Guards(Limits(**{**shared, **one}), horizon) for one in OPTIONS[name]]
            own[name] = np.array([stops(found, guard) for guard in guards])
    return ends


def horizon_of(found: Sequence[Curve]) -> int:
    """Iterations of a whole trial."""
    return max(curve.last for curve in found)


def part(ends: Tried, chosen: NDArray[np.bool_]) -> Tried:
    """Of some trials alone."""
    return {key: {name: own[:, chosen] for name, own in by.items()} for key, by in ends.items()}


def choose(found: Sequence[Curve], ends: Tried) -> Limits:
    """The limits that are worth most on these trials, out of all combinations."""
    chosen, most = Limits(), -math.inf
    for (patience, window), own in ends.items():
        setting, reached = _best(found, own)
        if reached > most:
            chosen, most = Limits(**{**setting, "window": window, "patience": patience}), reached
    return chosen


def _best(found: Sequence[Curve], ends: Mapping[str, Steps]) -> tuple[dict[str, float], float]:
    """The best combination of limits and its worth. Any guard ends a trial, so the first one counts."""
    most, best, names = -math.inf, (0, 0), list(OPTIONS)
    few, many = names[:3], names[3:]
    heads, tails = (_products([ends[name] for name in part]) for part in (few, many))
    used = [_products([_used(OPTIONS[name]) for name in part], np.add) for part in (few, many)]
    for number, head in enumerate(heads):
        worth = _worth(found, np.minimum(head, tails))
        worth -= A_LIMIT * (used[0][number] + used[1])[:, 0]
        place = int(worth.argmax())
        if worth[place] > most:
            most, best = float(worth[place]), (number, place)
    setting: dict[str, float] = {}
    for part_of, place in zip((few, many), best, strict=True):
        sizes = [len(OPTIONS[name]) for name in part_of]
        for name, own in zip(part_of, np.unravel_index(place, sizes), strict=True):
            setting |= OPTIONS[name][int(own)]
    return setting, most


def _used(settings: Sequence[Setting]) -> Steps:
    return np.array([[bool(setting)] for setting in settings]).astype(int)


def _products(parts: Sequence[Steps], join: np.ufunc = np.minimum) -> Steps:
    """Every row of each of the parts with every row of the others; the last one varies fastest."""
    rows = parts[0]
    for part in parts[1:]:
        rows = join(rows[:, None], part[None]).reshape(-1, part.shape[1])
    return rows


def _worth(found: Sequence[Curve], ends: Steps) -> NDArray[np.float64]:
    """What each row of stops is worth: the share of steps saved, as far as asked, less what the targets lack."""
    bad = np.array([curve.bad for curve in found])
    last = np.array([curve.last for curve in found])
    ended = ends < NEVER
    recall = ended[:, bad].mean(axis=1) if bad.any() else np.ones(len(ends))
    wrong = ended[:, ~bad].mean(axis=1) if (~bad).any() else np.zeros(len(ends))
    saved = np.maximum(0, last - ends)[:, bad].sum(axis=1) / max(1, last[bad].sum())
    lacks = np.maximum(0, CHOSEN_RECALL - recall) + np.maximum(0, wrong - CHOSEN_FALSE_STOPS)
    return np.asarray(np.minimum(saved, CHOSEN_SAVED) - 10 * lacks)


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


def split(found: Sequence[Curve], ends: Tried, seed: int) -> dict[str, Any]:
    """The limits that one half of the configurations gives, and what they do on the other one."""
    numbers = sorted({curve.config for curve in found})
    drawn = np.random.default_rng(seed).permutation(len(numbers))
    half = {numbers[i] for i in drawn[: len(numbers) // 2]}
    set_on = np.array([curve.config in half for curve in found])
    limits = choose([c for c in found if c.config in half], part(ends, set_on))
    guards = Guards(limits, horizon_of(found))
    measured = told([c for c in found if c.config not in half], guards, seed)
    named = {name: value for name, value in vars(limits).items() if value is not None}
    return {**measured, "seed": seed, "limits": named}


def across(found: Sequence[Curve], others: Sequence[Curve], seed: int) -> dict[str, Any]:
    """The limits that the trials of another table give, and what they do on this one."""
    limits = choose(others, tried(others))
    measured = told(found, Guards(limits, horizon_of(found)), seed)
    return {**measured, "limits": {k: v for k, v in vars(limits).items() if v is not None}}


def reaches(measured: Mapping[str, Any]) -> bool:
    """Whether a measurement keeps all targets."""
    return bool(
        measured["recall"] >= RECALL
        and measured["false_stops"] <= FALSE_STOPS
        and measured["saved"] >= SAVED
        and measured["healthy"] >= HEALTHY
    )


def read(path: Path) -> list[Curve]:
    """The trials of a table on its tuning seeds."""
    frame = pd.read_parquet(path)
    if "phase" in frame:
        frame = frame[frame["phase"] == "tune"]
    return list(curves(frame))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, default=RECORDED / "tiny.parquet")
    parser.add_argument("--set-on", type=Path, default=RECORDED / "epochs.parquet")
    parser.add_argument("--seed", type=int, default=0, help="of the first cut into halves")
    parser.add_argument("--splits", type=int, help=f"cuts into halves; {SPLITS}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} cuts")
    asked = parser.parse_args()
    found, others = read(asked.table), read(asked.set_on)
    ends, count = tried(found), asked.splits or (QUICK if asked.quick else SPLITS)
    cuts = [split(found, ends, asked.seed + i) for i in range(count)]
    measured: dict[str, Any] = {}
    for name in ("recall", "false_stops", "saved", "saved_of_all"):
        values = [cut[name] for cut in cuts]
        measured[name] = round(float(np.mean(values)), 4)
        measured[f"{name}_range"] = [min(values), max(values)]
    measured["healthy"] = min(cut["healthy"] for cut in cuts)
    from_another = across(found, others, asked.seed)
    line = {
        "name": "guards",
        "ok": reaches(from_another) and reaches(measured),
        "target": {
            "recall": RECALL,
            "false_stops": FALSE_STOPS,
            "saved": SAVED,
            "healthy": HEALTHY,
        },
        **measured,
        "unit": "share, mean over cuts",
        "from_another": from_another,
        "the_other_way_round": across(others, found, asked.seed),
        "cuts": cuts,
        "defaults_on_all": told(found, make_guards(GuardsConfig()), asked.seed),
        "versions": {
            "python": platform.python_version(),
            **{p: version(p) for p in ("numpy", "pandas")},
        },
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
