"""What a laptop without a GPU stack can import: plans, configurations and metrics need no torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "ray")
LIGHT = (
    "search_spaces",
    "rlhf_core.errors",
    "rlhf_core.config",
    "rlhf_core.metrics",
    "rlhf_core.seeding",
    "rlhf_core.store",
    "rlhf_core.assets",
    "rlhf_core.memory",
    "rlhf_core.runtime.placement",
    "rlhf_core.roles.functions",
)


def _imported(module: str) -> list[str]:
    script = f"import {module}, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return [str(name) for name in json.loads(done.stdout)]


@pytest.mark.parametrize("module", LIGHT)
def test_importing_pulls_in_nothing_heavy(module: str) -> None:
    names = _imported(module)
    assert module in names
    assert [heavy for heavy in HEAVY if heavy in names] == []


def test_what_is_heavy_is_seen_as_heavy() -> None:
    assert "torch" in _imported("rlhf_core.types")
