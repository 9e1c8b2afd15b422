from __future__ import annotations

import pytest
from ray.exceptions import ObjectLostError, RayActorError

from rlhf_core.errors import ConfigError, RankError
from sweeps.tuning.plugins import _what_was_lost

FILE = """Failure # 1 (occurred at 2026-11-30_13-32-39)
The actor died because of an error raised in its creation task.
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: ProgramTrainable
"""


@pytest.mark.parametrize(
    ("error", "lost", "reason"),
    [
        (None, True, "a process of the trial was lost"),
        (RayActorError(), True, "The actor experienced an error"),
        (RankError("rank 1 did not answer"), True, "rank 1 did not answer"),
        (ObjectLostError("00" * 28, None, "x"), True, "Failed to retrieve object"),
        (RuntimeError(FILE), True, "ray.exceptions.ActorDiedError: The actor died unexpectedly"),
        (
            RuntimeError("The actor is dead because its worker process has died. Exit type: X"),
            True,
            "The actor is dead",
        ),
        (ConfigError("model.device: no such device"), False, "model.device: no such device"),
        (RuntimeError("Traceback\nKeyError: 3"), False, "KeyError: 3"),
    ],
)
def test_an_error_that_left_a_trial_tells_whether_a_process_was_lost(
    error: Exception | None, lost: bool, reason: str
) -> None:
    found, line = _what_was_lost(error)
    assert found == lost
    assert line.startswith(reason)
