from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile beside an installation whose command only tells how it was called."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    command = tmp_path / ".venv/bin/rlhf-sweep"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\necho called "$@"\n')
    command.chmod(0o755)
    (tmp_path / ".venv/.installed").touch()
    return tmp_path


def demo(checkout: Path) -> list[str]:
    done = subprocess.run(
        ["make", "demo"], cwd=checkout, capture_output=True, text=True, check=True
    )
    return [line for line in done.stdout.splitlines() if line.startswith("called")]


def test_the_demo_runs_once_and_then_shows_what_is_there(checkout: Path) -> None:
    assert demo(checkout) == ["called run quickstart --out runs/quickstart"]
    (checkout / "runs/quickstart").mkdir(parents=True)
    (checkout / "runs/quickstart/best.yaml").touch()
    assert demo(checkout) == ["called status runs/quickstart", "called best runs/quickstart"]
