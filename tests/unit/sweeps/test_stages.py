from __future__ import annotations

import io

from rich.console import Console

from sweeps.stages import stages


def test_without_a_terminal_each_stage_is_a_line_and_the_end_has_seconds() -> None:
    file = io.StringIO()
    with stages(Console(file=file), "preparing") as note:
        for stage in ("policy", "reward"):
            for step in (1, 2):
                note(stage, step, 2)
    lines = file.getvalue().splitlines()
    assert lines[:2] == ["preparing: policy, 2 steps", "preparing: reward, 2 steps"]
    assert lines[2] == "preparing: done after 0 s"


def test_work_without_stages_prints_nothing() -> None:
    file = io.StringIO()
    with stages(Console(file=file), "preparing"):
        pass
    assert file.getvalue() == ""


def test_on_a_terminal_there_is_one_status_line() -> None:
    file = io.StringIO()
    with stages(Console(file=file, force_terminal=True, width=80), "preparing") as note:
        note("policy", 1, 2)
    assert "preparing: policy, 2 steps" not in file.getvalue()
