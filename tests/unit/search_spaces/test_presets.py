from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import search_spaces
from search_spaces import Choice, Float, Parameter, SpaceError, presets


def test_every_preset_loads_and_is_described() -> None:
    assert presets.names() == ("ppo_core", "quickstart")
    for name in presets.names():
        assert len(presets.load(name)) > 0
        assert len(presets.describe(name)) > 20


def test_quickstart_holds_exactly_this() -> None:
    assert dict(presets.load("quickstart")) == {
        "ppo.clip_range_low": Parameter(Float(0.1, 0.3)),
        "ppo.clip_range_high": Parameter(Float(0.1, 0.4)),
        "sync.interval": Parameter(Choice((1, 2))),
        "resources.cpus_per_gpu": Parameter(Choice((2, 4, 8))),
        "optim.policy.lr": Parameter(Float(3e-4, 5e-3, log=True)),
        "ppo.kl.coef": Parameter(Float(0.01, 0.2, log=True)),
    }


def test_ppo_core_can_start_from_its_centres() -> None:
    space = presets.load("ppo_core")
    assert set(space) == {
        "ppo.clip_range_low",
        "ppo.clip_range_high",
        "optim.policy.lr",
        "ppo.kl.coef",
        "ppo.lam",
        "ppo.epochs",
        "ppo.minibatches",
    }
    assert space["optim.policy.lr"].domain == Float(1e-7, 1e-5, log=True)
    assert space.check({key: p.centre for key, p in space.items()}) == []


def test_unknown_preset_names_near_misses() -> None:
    with pytest.raises(SpaceError, match="no preset 'quikstart'; did you mean 'quickstart'"):
        presets.load("quikstart")
    with pytest.raises(SpaceError, match=r"use one of \['ppo_core', 'quickstart'\]"):
        presets.describe("zzz")


def test_package_is_light_and_its_exports_are_pinned() -> None:
    code = (
        "import sys, search_spaces as s\n"
        "heavy = {'torch', 'ray', 'optuna', 'pandas', 'numpy', 'pydantic', 'rlhf_core'}\n"
        "print(sorted(heavy & set(sys.modules)), sorted(s.__all__))"
    )
    root = Path(search_spaces.__file__).parents[1]
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == (
        "[] ['Choice', 'Constant', 'Domain', 'Float', 'Int', 'Logit', 'Parameter', 'Pow2', 'Rule', "
        "'SCHEMA_VERSION', 'Scalar', 'Space', 'SpaceError', 'When', 'from_dict', 'parse', 'presets', 'to_dict']"
    )
