"""What was exported and not dropped comes back, whatever the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_configs import configs

from analysis.export import FRAMEWORKS, export_config, import_text
from rlhf_core.config import ROLES, TrialConfig, apply, flatten

SUFFIX = {"openrlhf": "sh", "verl": "sh", "trl": "py"}
# Without the phase that explains a failure, which traces every line and takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
PAIRS = [(name, version) for name, target in FRAMEWORKS.items() for version in target.versions]


def meaning(config: TrialConfig, roles: Sequence[str]) -> dict[str, Any]:
    """Every option, with those that stand for another value replaced by it; ``roles`` are those used."""
    flat = flatten(config)
    flat["ppo.whitening"] = config.ppo.whitening_used
    if config.ppo.aggregation == "sequence_sum" and config.ppo.constant_length is None:
        flat["ppo.constant_length"] = config.rollout.max_new_tokens
    if config.sync.mode == "async" and config.sync.max_staleness is None:
        flat["sync.max_staleness"] = config.sync_interval
    shared = [(set(group.roles) & set(roles), group.gpus) for group in config.resources.colocate]
    flat["resources.colocate"] = [group for group in shared if group[0]]
    return flat


def assert_comes_back(config: TrialConfig, target: str, version: str) -> None:
    made = export_config(config, target, version=version)
    assert made.applied is not None
    back = import_text(target, made.text, f"launch.{SUFFIX[target]}", version)
    kept = [key for key in flatten(config) if key not in made.applied.dropped]
    before, after = meaning(config, config.roles), meaning(back.config, config.roles)
    assert {k: after[k] for k in kept} == {k: approximately(before[k]) for k in kept}
    # A rule that reads nothing back has lost one of its keys on the way out.
    assert [keys for keys in back.unread if set(keys.split(", ")) <= set(kept)] == []
    assert back.unknown == {}


def approximately(value: Any) -> Any:
    return pytest.approx(value, rel=1e-12) if isinstance(value, float) else value


@pytest.mark.parametrize("target", sorted(FRAMEWORKS))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(data=st.data())
def test_import_of_export_gives_the_configuration_back(target: str, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(FRAMEWORKS[target].versions), "version")
    config = data.draw(configs(lambda c: FRAMEWORKS[target].apply(c, version)), "config")
    assert_comes_back(config, target, version)


@pytest.mark.parametrize(("target", "version"), PAIRS)
def test_the_default_configuration_comes_back_from_every_version(target: str, version: str) -> None:
    assert_comes_back(TrialConfig(), target, version)


@pytest.mark.parametrize("target", sorted(FRAMEWORKS))
@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("ahead", [False, True])
def test_shared_gpus_come_back(target: str, gpus: int, ahead: bool) -> None:
    """All roles in one group; ``ahead`` all but the rollout, which samples two batches ahead."""
    sharing = [role for role in ROLES if not (ahead and role == "rollout")]
    values: dict[str, Any] = {
        "resources.layout": "colocated",
        "resources.colocate": [{"roles": sharing, "gpus": gpus}],
        **{f"resources.roles.{role}.workers": gpus for role in ROLES},
    }
    if ahead:
        values |= {
            "sync.mode": "async",
            "sync.max_staleness": 2,
            "resources.roles.rollout.gpus": 1.0,
        }
    config = apply(TrialConfig(), values)
    for version in FRAMEWORKS[target].versions:
        assert_comes_back(config, target, version)
    kept = set(values) - set(FRAMEWORKS[target].apply(config, version).dropped)
    told = {True: {"openrlhf"}, False: {"openrlhf", "verl", "trl"} if gpus > 1 else set()}
    assert ("resources.colocate" in kept) is (target in told[ahead])
    assert ("sync.mode" in kept) is (ahead and target == "openrlhf")
