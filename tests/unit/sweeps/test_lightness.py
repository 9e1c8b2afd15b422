"""Commands that only read answer at once: neither Ray nor torch nor Optuna is imported for them.

A replay has Optuna, and nothing else that takes long to import.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"ray", "torch", "optuna", "transformers"}
RECORDED = Path(__file__).resolve().parents[3] / "analysis/notebooks/data/quickstart"
PROBE = """
import contextlib, io, json, sys
from sweeps.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    try:
        code = main(sys.argv[1:])
    except SystemExit as stop:
        code = stop.code
print(json.dumps([code or 0, sorted({name.split(".")[0] for name in sys.modules})]))
"""


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["status", str(RECORDED)],
        ["best", str(RECORDED)],
        ["samples", str(RECORDED)],
        ["inspect", str(RECORDED)],
        ["replay", "--help"],
        ["export", str(RECORDED), "--to", "openrlhf"],
    ],
    ids=" ".join,
)
def test_a_reading_command_imports_nothing_heavy(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *argv], capture_output=True, text=True, check=True
    )
    code, names = json.loads(done.stdout)
    assert code == 0
    assert HEAVY & set(names) == set()


def test_a_replay_imports_what_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "replay", "tiny", "--trials-equivalent", "12"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    code, names = json.loads(done.stdout)
    assert code == 0
    assert "optuna" in names
    assert {*HEAVY, "pandas", "scipy", "sqlalchemy"} & set(names) == {"optuna"}
