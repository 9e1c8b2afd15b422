"""Who may import whom, as `pyproject.toml` says it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    script = (
        "import sys; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(config_filename=sys.argv[1], no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", script, str(folder / "pyproject.toml")],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_contract_is_kept() -> None:
    done = _lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
    assert "0 kept" not in done.stdout


def test_a_broken_contract_is_seen(tmp_path: Path) -> None:
    """The check itself can fail: a package that imports upwards."""
    for name in ("search_spaces", "rlhf_core", "sweeps", "analysis"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "search_spaces" / "__init__.py").write_text("import rlhf_core\nimport numpy\n")
    text = (ROOT / "pyproject.toml").read_text()
    # Modules that the small packages lack would be errors of their own.
    rest = text.partition("[tool.importlinter]")[2]
    contracts = rest.split("[[tool.importlinter.contracts]]")
    kept = [contracts[0], *(c for c in contracts if "one direction" in c or "plain data" in c)]
    (tmp_path / "pyproject.toml").write_text(
        "[tool.importlinter]" + "[[tool.importlinter.contracts]]".join(kept)
    )
    done = _lint(tmp_path)
    assert done.returncode != 0
    assert "2 broken" in done.stdout
