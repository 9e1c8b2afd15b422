from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import rlhf_core.ppo


def test_needs_torch_and_nothing_heavier_and_exports_resolve() -> None:
    code = (
        "import sys, rlhf_core.ppo as p\n"
        "heavy = {'ray', 'transformers', 'deepspeed', 'pandas', 'pydantic', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)), [n for n in p.__all__ if not hasattr(p, n)])"
    )
    root = Path(rlhf_core.ppo.__file__).parents[2]
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[] []"
