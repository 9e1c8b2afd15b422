"""Records the learning curves of a complete grid of configurations, for offline replay.

``python -m sweeps.replay.recorder GRID.yaml OUT`` trains every configuration of the grid with every tuning seed,
then the best ones with seeds that nobody tuned on, one after the other in this process. It may be stopped and
started again at any time: a run that is recorded is not repeated. Each run is one line of ``OUT/runs.jsonl``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.config.io import read_mapping
from rlhf_core.errors import ConfigError, DivergedError
from rlhf_core.store import LocalStore
from sweeps.programs.base import RunningTrial, TrialContext
from sweeps.programs.ppo import PPOProgram
from sweeps.record import strict_json, versions

RECORDED = (
    "eval/heldout", "eval/heldout_stderr", "eval/proxy", "eval/kl_response", "eval/length",
    "reward/proxy", "reward/proxy_std", "reward/heldout", "kl/response", "kl/coef",
    "policy/entropy", "policy/loss", "policy/approx_kl", "policy/clip_fraction_high",
    "policy/clip_fraction_low", "policy/ratio_max", "policy/grad_norm",
    "value/loss", "value/explained_variance", "rollout/length", "rollout/truncated_share",
    "staleness/mean", "cost/episodes", "cost/tokens", "sync/bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """What is recorded.

    Attributes:
        base: The trial where no level says otherwise.
        levels: ``{dotted key: its values, ascending}``; all combinations are trained.
        tied: ``{dotted key: key of levels}``: it always has the other one's value.
        tuning_seeds, test_seeds: Seeds of the trials; disjoint.
        finalists: Configurations that are trained with the test seeds: the best by mean final objective.
        objective: What ranks them; larger is better.
    """

    base: Mapping[str, Any]
    levels: Mapping[str, tuple[Any, ...]]
    tuning_seeds: tuple[int, ...]
    test_seeds: tuple[int, ...]
    finalists: int
    objective: str = "eval/heldout"
    tied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Grid:
        """A grid file.

        Raises:
            ConfigError: A key is missing or unknown, a level has a key that trials have not, or seeds overlap.
        """
        values = dict(read_mapping(path))
        try:
            values["levels"] = {k: tuple(v) for k, v in values["levels"].items()}
            for name in ("tuning_seeds", "test_seeds"):
                values[name] = tuple(values[name])
            grid = cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}: not a grid: {error}") from None
        both = set(grid.tuning_seeds) & set(grid.test_seeds)
        if both:
            raise ConfigError(
                f"{path}: tuning_seeds and test_seeds must be disjoint, both hold {both}"
            )
        found = [
            line for params in grid.configs() for line in PPOProgram().check(grid.base, params)
        ]
        if found:
            raise ConfigError([f"{path}: {line}" for line in dict.fromkeys(found)])
        return grid

    def configs(self) -> list[dict[str, Any]]:
        """Every configuration, ``{dotted key: value}``; its place is its number."""
        cells = itertools.product(*self.levels.values())
        return [dict(zip(self.levels, cell, strict=True)) for cell in cells]

    def params(self, config: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """What the trial of a configuration is given."""
        tied = {key: config[other] for key, other in self.tied.items()}
        return {**config, **tied, "seed": seed}


def record(grid: Grid, out: Path) -> Iterator[dict[str, Any]]:
    """Trains what is not recorded yet; yields each run once it is written."""
    out.mkdir(parents=True, exist_ok=True)
    _write_header(grid, out / "grid.json")
    done = read_runs(out)
    configs = grid.configs()
    tuning = [("tune", seed, range(len(configs))) for seed in grid.tuning_seeds]
    yield from _record_all(grid, out, tuning, done)
    best = finalists(grid, read_runs(out))
    yield from _record_all(grid, out, [("test", seed, best) for seed in grid.test_seeds], done)


def finalists(grid: Grid, runs: list[dict[str, Any]]) -> list[int]:
    """Numbers of the best configurations by the mean of their final objective over the tuning seeds."""
    finals = defaultdict(list)
    for run in runs:
        if run["phase"] == "tune":
            finals[run["config"]].append(_final(run, grid.objective))
    ranked = sorted(finals, key=lambda config: -statistics.fmean(finals[config]))
    return ranked[: grid.finalists]


def _final(run: Mapping[str, Any], objective: str) -> float:
    """The last value; a run that diverged has none and ranks last."""
    values = [line[objective] for line in run["iterations"] if line.get(objective) is not None]
    return values[-1] if values and run["outcome"] == "completed" else -math.inf


def read_runs(out: Path) -> list[dict[str, Any]]:
    """The recorded runs; a last line that was cut off is dropped from the file."""
    file = out / "runs.jsonl"
    if not file.exists():
        return []
    text = file.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        file.write_bytes(whole)
    return [json.loads(line) for line in whole.splitlines()]


def _write_header(grid: Grid, file: Path) -> None:
    header = {**asdict(grid), "versions": versions()}
    if file.exists():
        before = json.loads(file.read_text())
        changed = [k for k in asdict(grid) if before.get(k) != json.loads(strict_json(header))[k]]
        if changed:
            raise ConfigError(
                f"{file} was recorded with another {', '.join(changed)}; name another folder"
            )
        return
    file.write_text(strict_json(header))


def _record_all(
    grid: Grid, out: Path, parts: list[tuple[str, int, Any]], done: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    recorded = {(run["phase"], run["config"], run["seed"]) for run in done}
    trainer, configs = _Trainer(grid), grid.configs()
    store = LocalStore(out)
    try:
        for phase, seed, numbers in parts:
            for number in numbers:
                if (phase, number, seed) in recorded:
                    continue
                run = trainer.train(grid.params(configs[number], seed))
                run = {
                    "config": number,
                    "params": configs[number],
                    "seed": seed,
                    "phase": phase,
                    **run,
                }
                store.append("runs.jsonl", strict_json(run))
                yield run
    finally:
        trainer.close()


class _Trainer:
    """One process's trials, each in what the last one left loaded."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._running: Any = None

    def train(self, params: Mapping[str, Any]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="rlhf-record-") as folder:
            context = TrialContext(
                "record", self._grid.base, params, LocalStore(Path(folder)), warm=True
            )
            started = time.process_time()
            lines: list[dict[str, Any]] = []
            outcome, reason = "completed", ""
            try:
                for metrics in self._start(context):
                    kept = {k: metrics.values[k] for k in RECORDED if k in metrics.values}
                    spent = time.process_time() - started
                    lines.append({"iteration": metrics.iteration, **kept, "core_seconds": spent})
            except DivergedError as error:
                outcome, reason = "diverged", str(error)
                self.close()
            return {
                "iterations": lines,
                "core_seconds": time.process_time() - started,
                "outcome": outcome,
                "reason": reason,
            }

    def _start(self, context: TrialContext) -> RunningTrial:
        if self._running is None or not self._running.restart(context):
            self._running = PPOProgram().start(context)
        running: RunningTrial = self._running
        return running

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("grid", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    grid = Grid.read(args.grid)
    count = len(grid.configs()) * len(grid.tuning_seeds)
    count += grid.finalists * len(grid.test_seeds)
    for number, run in enumerate(record(grid, args.out)):
        final = _final(run, grid.objective)
        sys.stdout.write(
            f"{number + 1} of at most {count}: {run['phase']} config {run['config']} seed {run['seed']} "
            f"{run['outcome']} {final:.3f} in {run['core_seconds']:.1f} core-seconds\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
