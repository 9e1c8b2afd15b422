"""What is in the wheel: the four packages with their data, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("analysis", "rlhf_core", "search_spaces", "sweeps")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files of a wheel built from a copy of the working tree."""
    source = tmp_path_factory.mktemp("source")
    for file in ("pyproject.toml", "README.md"):
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, source)
    ignore = shutil.ignore_patterns("__pycache__")
    for package in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / package, source / package, ignore=ignore)
    (source / "README.md").touch()
    out = source / "dist"
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_the_four_packages_and_no_others(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_holds_no_tests_and_no_notebooks(names: list[str]) -> None:
    stray = ("test_", "conftest", ".ipynb", "notebooks/", "__pycache__", "tests/")
    assert [name for name in names if any(part in name for part in stray)] == []


def test_the_wheel_holds_every_module_and_preset(names: list[str]) -> None:
    for package in PACKAGES:
        files = [*(ROOT / package).rglob("*.py"), *(ROOT / package).rglob("presets/*.yaml")]
        expected = {
            file.relative_to(ROOT).as_posix() for file in files if "notebooks" not in file.parts
        }
        assert expected <= set(names)
    for data in (
        "rlhf_core/config/presets/tiny.yaml",
        "sweeps/presets/quickstart.yaml",
        "analysis/report/page.html.j2",
    ):
        assert data in names


def test_the_command_is_declared(names: list[str]) -> None:
    assert any(name.endswith(".dist-info/entry_points.txt") for name in names)
