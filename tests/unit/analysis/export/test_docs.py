"""The outputs that docs/export.md shows are those of the commands."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from sweeps.cli import main

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/export.md").read_text(encoding="utf-8")
SHOWN = [
    part
    for block in re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
    for part in re.findall(
        r"\$ rlhf-sweep (.*?)\n(.*?)(?=^\$|\Z)", block, flags=re.DOTALL | re.MULTILINE
    )
]


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_page_shows_what_the_command_writes(
    command: str,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "analysis/notebooks/data/quickstart", tmp_path / "runs/first")
    script = re.findall(r"```bash\n(python3.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "train.sh").write_text(script[0])
    assert main(shlex.split(command)) in (0, 2)
    said = capsys.readouterr()
    written = (said.out + said.err).splitlines()
    assert [line for line in output.splitlines() if line not in (*written, "...", "")] == []


def test_the_page_shows_every_framework() -> None:
    assert len(SHOWN) >= 8
