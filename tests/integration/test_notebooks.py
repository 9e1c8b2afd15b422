from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "analysis" / "notebooks"


def texts(notebook: Any) -> list[str]:
    """Printed and shown text of every cell with any, without colours, addresses and trailing blanks.

    Into how many outputs a kernel cuts what a cell prints depends on how busy the machine is.
    """
    found = []
    for cell in notebook.cells:
        parts = [
            output.get("text") or output.get("data", {}).get("text/plain", "") + "\n"
            for output in cell.get("outputs", [])
        ]
        text = re.sub(r"\x1b\[[0-9;]*m|0x[0-9a-f]+", "", "".join(parts))
        lines = [line.rstrip() for line in text.splitlines()]
        found += ["\n".join(lines).rstrip()] if any(lines) else []
    return found


@pytest.mark.long
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_committed(path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    executed = nbformat.read(path, as_version=4)
    NotebookClient(executed, timeout=120, resources={"metadata": {"path": str(FOLDER)}}).execute()
    assert len(texts(committed)) >= 5, "commit the notebook with its outputs"
    assert texts(executed) == texts(committed)


def test_recorded_sweeps_stay_small() -> None:
    files = [f for f in (FOLDER / "data").rglob("*") if f.is_file()]
    assert files
    assert sum(f.stat().st_size for f in files) < 3_000_000
