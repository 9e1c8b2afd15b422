"""Released packages of the peers: wheels that are only read, and environments of their own.

Wheels lie in the user's cache folder, environments in ``.venv-NAME``; both are made at the first call. The
interpreter of an environment that is there already is named in a variable: ``RLHF_TRL_PYTHON``,
``RLHF_DEEPSPEED_PYTHON``, ``RLHF_HYDRA_PYTHON``, ``RLHF_RLIABLE_PYTHON``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from filelock import FileLock

from rlhf_core.tasks.builtin import cache_folder

ROOT = Path(__file__).resolve().parents[2]
# Groups are installed one after the other: torch by its exact version first, or pip takes another build.
PACKAGES: dict[str, list[list[str]]] = {
    "trl": [["torch==2.13.0"], ["trl==1.12.0", "transformers==4.57.6"]],
    "deepspeed": [["torch==2.13.0", "setuptools"], ["deepspeed==0.19.8", "--no-build-isolation"]],
    "hydra": [["hydra-core==1.3.2"]],
    "rliable": [["rliable==1.2.0", "pandas<3"]],
}


def peer_python(name: str) -> str:
    """The interpreter of the environment ``name`` of ``PACKAGES``."""
    given = os.environ.get(f"RLHF_{name.upper()}_PYTHON")
    if given:
        return given
    folder = ROOT / f".venv-{name}"
    python, done = folder / "bin" / "python", folder / ".installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for packages in PACKAGES[name]:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        done.touch()
    return str(python)


def wheel(name: str, version: str) -> zipfile.ZipFile:
    """The released wheel, downloaded once, without what it depends on."""
    folder = cache_folder() / "wheels" / f"{name}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if not list(folder.glob("*.whl")):
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary"]
            subprocess.run([*pip, ":all:", "--dest", str(folder), f"{name}=={version}"], check=True)
    return zipfile.ZipFile(next(iter(folder.glob("*.whl"))))


def read_wheel(archive: zipfile.ZipFile, ending: str) -> str:
    """The one file of a wheel whose path ends so."""
    (name,) = [name for name in archive.namelist() if name.endswith(ending)]
    return archive.read(name).decode()
