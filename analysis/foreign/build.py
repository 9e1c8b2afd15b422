"""From plain records of trials to a ``Sweep``; what readers of other tools' files share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import frames
from analysis.run_directory import unfinished, with_metrics
from analysis.space import axes
from analysis.sweep import Sweep

Record = Mapping[str, Any]


@dataclass
class Foreign:
    """What was found.

    Attributes:
        name: Name of the sweep.
        path: Where it was read from.
        states: By trial: ``number``, ``state``, ``outcome``, ``reason``, ``value``, ``started``.
        params: By trial.
        lines: By trial: metrics lines with ``iteration`` and ``timestamp``.
        finals: By trial: metrics that have a last value only.
        objective: ``{metric, direction}``, or None where the source states none.
        objectives: ``{metric: direction}`` of several ones, the same first.
        space: Like ``space.json``.
        warnings: What could not be read.
    """

    name: str
    path: Path
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    params: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: dict[str, list[Record]] = field(default_factory=dict)
    finals: dict[str, dict[str, float]] = field(default_factory=dict)
    objective: dict[str, Any] | None = None
    objectives: dict[str, str] = field(default_factory=dict)
    space: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def sweep(self) -> Sweep:
        """The frames. Placements are empty; events hold the end of each trial that has a time."""
        info: dict[str, Any] = {"name": self.name, "trials": len(self.states)}
        if self.objective:
            info["objective"] = self.objective
        if self.objectives:
            info["objectives"] = self.objectives
        states = {trial: {"durations": {}, **state} for trial, state in self.states.items()}
        trials = frames.trials_frame(states, self.params, axes(self.space), self.name)
        read = {trial: frames.curves(lines) for trial, lines in self.lines.items()}
        iterations = frames.iterations_frame(read)
        joined = with_metrics(trials, iterations, info)
        finals = pd.DataFrame.from_dict(self.finals, orient="index").add_prefix("final.")
        for column in finals.columns.difference(joined.columns):
            joined[column] = finals[column].reindex(joined.index).astype("float64")
        return Sweep(
            path=self.path,
            info=info,
            space=self.space,
            trials=joined,
            iterations=iterations,
            placements=frames.placements_frame([]),
            events=frames.events_frame(self._events()),
            warnings=(*self.warnings, *unfinished(trials, len(trials))),
        )

    def _events(self) -> list[Record]:
        events = []
        for trial, state in self.states.items():
            if state.get("started") is not None:
                events.append({"time": state["started"], "trial": trial, "state": "started"})
            if state.get("ended_at") is not None:
                told = {k: state.get(k) for k in ("number", "state", "outcome", "reason", "value")}
                events.append({"time": state["ended_at"], "trial": trial, **told})
        return sorted(events, key=lambda event: float(event["time"]))


def flat(record: Record, separator: str, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, their keys joined."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, separator, f"{name}{separator}")
        else:
            found[name] = value
    return found
