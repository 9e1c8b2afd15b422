"""What a trial reported last, in its own store: its driver may have been killed before it heard it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from rlhf_core.metrics import IterationMetrics
from sweeps.programs.base import TrialContext

KEY = "report.json"


class LastReport:
    """The last result of a trial.

    A checkpoint may be newer than what the driver recorded, by one iteration at most. Then that iteration never
    comes again, so it is kept here, with whether it was the last one.

    Args:
        context: The trial. What another configuration left in its store is not its own.
    """

    def __init__(self, context: TrialContext) -> None:
        self._store = context.store
        given = json.dumps([context.base, context.params], sort_keys=True, default=str)
        self._mark = zlib.crc32(given.encode())

    def write(self, result: Mapping[str, Any], last: bool) -> None:
        """Keeps a result; ``last``: the trial was through with it."""
        kept = {key: value for key, value in result.items() if "/" in key or key == "iteration"}
        document = {"mark": self._mark, "last": last, "result": kept}
        self._store.put(KEY, json.dumps(document).encode())

    def read(self) -> dict[str, Any] | None:
        """``{"result": ..., "last": ...}`` of the trial, or None where it has reported nothing."""
        try:
            found: dict[str, Any] = json.loads(self._store.get(KEY))
            return found if found["mark"] == self._mark else None
        except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
            return None


def newest(known: Mapping[str, Any] | None, recalled: IterationMetrics | None) -> dict[str, Any]:
    """The last iteration of a trial that goes on, by its report or its checkpoint; empty where it has none."""
    reported: dict[str, Any] = dict(known["result"]) if known is not None else {}
    if recalled is None or recalled.iteration <= reported.get("iteration", -1):
        return reported
    return {"iteration": recalled.iteration, **recalled.values}
