"""What a sweep leaves behind for people: leaderboard, plots, the best configuration and its last judgement."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import analysis
from analysis.finalists import tested_as
from analysis.leaderboard import objectives_of
from analysis.selection import FreshRuns, rank
from analysis.smoothed import smoothed_of
from analysis.sweep import Sweep
from rlhf_core.errors import ConfigError, RlhfError
from rlhf_core.store import LocalStore, open_store
from sweeps.driver import SweepDriver
from sweeps.load import Loaded
from sweeps.outcomes import State
from sweeps.record import storage_root, strict_json


@dataclass(frozen=True)
class Results:
    """Where things are, and who won.

    Attributes:
        directory: The run directory.
        best: Id of the best trial, or None where no trial may win.
        judgement: Its last judgement, or None.
        notes: What could not be made, one line each.
    """

    directory: Path
    best: str | None
    judgement: dict[str, Any] | None
    notes: tuple[str, ...]


def write_results(loaded: Loaded, directory: Path, console: Console) -> Results:
    """Writes ``leaderboard.csv``, the plots, ``best.yaml`` and ``best.json``; a part that fails is noted."""
    sweep = analysis.load(directory)
    notes: list[str] = list(sweep.warnings)
    store = LocalStore(directory)
    table = analysis.leaderboard(sweep)
    store.put("leaderboard.csv", table.to_csv(index=False).encode())
    for name, draw in (
        ("curves.png", analysis.plot_learning_curves),
        ("parameters.png", analysis.plot_parameters),
    ):
        try:
            analysis.save(draw(sweep), directory / name)
        except (RlhfError, ValueError, OSError) as error:
            notes.append(f"{name}: {error}")
    try:
        best = analysis.best(sweep)
    except ConfigError as error:
        return Results(directory, None, None, (*notes, *error.problems))
    judgement = _judge(loaded, directory, best, notes, console)
    _write_best(sweep, loaded, directory, best, judgement)
    return Results(directory, best, judgement, tuple(notes))


def chosen(driver: SweepDriver) -> str | None:
    """The trial that is chosen, by what the driver knows: as ``analysis.best`` chooses from the run directory."""
    records = driver.records.values()
    over = [record for record in records if record.state is State.ENDED]
    candidates = {record.trial: driver.choice.candidate(record) for record in over}
    tested: dict[str, list[Any]] = {}
    for record in over:
        if record.of is not None:
            tested.setdefault(record.of, []).append(candidates[record.trial])
    runs = {
        trial: FreshRuns([c.value for c in own if c.eligible], sum(not c.eligible for c in own))
        for trial, own in tested.items()
    }
    # Candidates are signed so that larger is better.
    if first := rank(runs, ascending=False):
        return first[0]
    ranked = driver.choice.ranked([record for record in over if record.of is None])
    return next((c.trial for c in ranked if c.trial not in runs), None)


def _judge(
    loaded: Loaded, directory: Path, best: str, notes: list[str], console: Console
) -> dict[str, Any] | None:
    selection = loaded.config.selection
    if selection.test_prompts == 0:
        return None
    root = storage_root(directory, loaded.config.storage.checkpoints)
    try:
        with console.status(f"judging {best} on {selection.test_prompts} test prompts"):
            return loaded.program.judge(
                _config(directory, best), open_store(f"{root}/{best}"), selection.model_dump()
            )
    except RlhfError as error:
        kept, text = _judged_before(directory, best), f"{error}".removeprefix("judgement: ")
        notes.append(f"judgement: {text}" + ("; the former one is kept" if kept else ""))
        return kept


def _judged_before(directory: Path, trial: str) -> dict[str, Any] | None:
    """The judgement of the trial that ``best.json`` holds, such as one whose checkpoint is gone since."""
    try:
        document = json.loads((directory / "best.json").read_text())
    except (OSError, ValueError):
        return None
    held = isinstance(document, dict) and document.get("trial") == trial
    return document.get("judgement") if held else None


def _config(directory: Path, trial: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((directory / f"trials/{trial}/config.json").read_text())
    return values


def _write_best(
    sweep: Sweep, loaded: Loaded, directory: Path, best: str, judgement: dict[str, Any] | None
) -> None:
    store = LocalStore(directory)
    row, objective = sweep.trials.loc[best], loaded.config.search.objective
    document = {
        "trial": best,
        "test": tested_as(sweep, best),
        "outcome": str(row["outcome"]),
        "objective": objective,
        "value": float(row["value"]),
        "smoothed": smoothed_of(sweep, best),
        "objectives": objectives_of(sweep, best),
        "judgement": judgement,
    }
    store.put("best.json", strict_json(document).encode())
    goals = len(document["objectives"])
    among = f", the first of {goals} objectives" if goals > 1 else ""
    header = (
        f"Best trial of sweep {loaded.config.name!r}: {best}, {objective} = {document['value']:.4g}{among}\n"
        "Run it without the sweep: rlhf-sweep train best.yaml\n"
        "An option that is not listed has its default; "
        f"trials/{best}/config.json lists all of them."
    )
    store.put("best.yaml", loaded.program.dump(_config(directory, best), header).encode())
