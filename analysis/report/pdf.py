"""An HTML page as PDF, printed by a headless Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from rlhf_core.errors import ConfigError

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_TIMEOUT_S = 180


def chromium(profile: str) -> list[str]:
    """The command of a headless Chromium that keeps its state in the folder ``profile``.

    Raises:
        ConfigError: None is on the PATH.
    """
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise ConfigError(
            f"a PDF is printed by Chromium, none of {', '.join(_NAMES)} is on the PATH; "
            "on Debian: apt-get install chromium, or print the page from any browser"
        )
    # The sandbox of Chromium refuses to run as root, as in most containers.
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    quiet = ["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"]
    return [found, "--headless=new", f"--user-data-dir={profile}", *quiet, *root]


def print_pdf(page: Path) -> Path:
    """``page`` with the suffix ``.pdf``, beside it.

    Raises:
        ConfigError: There is no Chromium, or it did not make the file.
    """
    target = page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "page.pdf"
        command = [*chromium(folder), "--no-pdf-header-footer", f"--print-to-pdf={made}"]
        try:
            done = subprocess.run(
                [*command, page.resolve().as_uri()], capture_output=True, timeout=_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(f"Chromium took more than {_TIMEOUT_S} s to print {page}") from None
        if done.returncode or not made.exists():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise ConfigError(f"Chromium could not print {page}: {' '.join(last) or 'no reason'}")
        shutil.copyfile(made, target)
    return target
