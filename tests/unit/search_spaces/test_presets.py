from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import search_spaces
from search_spaces import Choice, Float, Parameter, Pow2, SpaceError, presets

NAMES = ("joint", "ppo_core", "quickstart", "resources", "reward", "sampling", "sync")


def test_every_preset_loads_and_is_described() -> None:
    assert presets.names() == NAMES
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
        "optim.critic_lr_ratio",
        "ppo.kl.coef",
        "ppo.lam",
        "ppo.epochs",
        "ppo.minibatches",
    }
    assert space["optim.policy.lr"].domain == Float(1e-7, 1e-5, log=True)
    assert space.check({key: p.centre for key, p in space.items()}) == []


@pytest.mark.parametrize("name", NAMES[:2] + NAMES[3:])
@pytest.mark.parametrize("size", [None, 3e5, 1.35e8, 7e9, 4e11])
def test_the_centres_of_a_preset_are_a_point_that_keeps_its_rules(
    name: str, size: float | None
) -> None:
    space = presets.load(name, size)
    centres = {key: p.centre for key, p in space.items() if p.centre is not None}
    point = {key: value for key, value in centres.items() if key in space.active(centres)}
    assert space.check(point) == []
    batch = {"rollout.prompts_per_iteration": 512, "rollout.samples_per_prompt": 1}
    assert space.broken(point, {"ppo.minibatches": 1, **batch}) == []


def test_joint_is_the_others_together() -> None:
    space = presets.load("joint")
    parts = [presets.load(name) for name in ("ppo_core", "sync", "resources")]
    assert set(space) == set().union(*parts)
    assert set(space.rules) == {rule for part in parts for rule in part.rules}


def test_learning_rates_fall_with_the_size_of_the_model() -> None:
    sizes = [1e5, 3e6, 1.35e8, 3e8, 1.3e9, 8e9, 7e10, 4e11]
    domains = [presets.load("ppo_core", size)["optim.policy.lr"].domain for size in sizes]
    assert all(isinstance(domain, Float) and domain.log for domain in domains)
    for field in ("low", "high"):
        bounds = [getattr(domain, field) for domain in domains]
        assert bounds == sorted(bounds, reverse=True)
    # At a size that the preset names, and beyond its ends.
    assert domains[3] == Float(1e-6, 1e-4, log=True)
    assert domains[0] == domains[1] == Float(1e-4, 5e-3, log=True)
    assert domains[-1] == domains[-2]
    # Without a size: as for 8 B.
    assert (
        presets.load("ppo_core")["optim.policy.lr"]
        == presets.load("ppo_core", 8e9)["optim.policy.lr"]
    )


def test_between_two_sizes_bounds_lie_on_a_line_of_logarithms() -> None:
    domain = presets.load("joint", (3e6 * 3e8) ** 0.5)["optim.policy.lr"].domain
    assert domain == Float(1e-5, 7.1e-4, log=True)
    # 32 to 128 rises to 128 to 1024, in powers of two.
    batch = presets.load("sampling", 3e6 * 100**0.6)["rollout.prompts_per_iteration"]
    assert batch == Parameter(Pow2(64, 512), centre=256)


def test_only_some_presets_depend_on_the_size() -> None:
    assert [n for n in NAMES if presets.depends_on_size(n)] == ["joint", "ppo_core", "sampling"]
    for name in ("quickstart", "reward", "sync", "resources"):
        assert presets.load(name, 1e6) == presets.load(name)


@pytest.mark.parametrize(
    ("text", "size"),
    [("135M", 1.35e8), ("1.3B", 1.3e9), ("7b", 7e9), ("250k", 2.5e5), (" 3e8 ", None), (1.3e8, 1.3e8),
     ("1T", 1e12), (0, None), (-1, None), ("M", None), ("7 B", None), (True, None), (None, None)],
)  # fmt: skip
def test_a_size_is_a_number_or_text_with_a_unit(text: object, size: float | None) -> None:
    if size is not None:
        assert presets.model_size(text) == pytest.approx(size)
        return
    with pytest.raises(SpaceError, match="write for example 135M"):
        presets.model_size(text)


def test_unknown_preset_names_near_misses() -> None:
    with pytest.raises(SpaceError, match="no preset 'quikstart'; did you mean 'quickstart'"):
        presets.load("quikstart")
    with pytest.raises(SpaceError, match=r"use one of \['joint', 'ppo_core', 'quickstart', "):
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
