"""The catalogue of metrics: single names, and families under names of the user's own."""

from __future__ import annotations

import pytest

from analysis.names import axis_label
from rlhf_core.errors import ConfigError
from rlhf_core.metrics import CATALOGUE, entry, find, first_nonfinite, names_under, repeatable


def test_a_name_of_a_family_has_the_entry_of_the_family() -> None:
    family, one = CATALOGUE["reward/component/NAME"], entry("reward/component/brevity")
    assert one is not None
    assert one.name == axis_label(one.name) == "reward/component/brevity"
    assert one.description == "Reward reward.extra.brevity, before its weight."
    assert (one.unit, one.reduction, one.direction) == (
        family.unit,
        family.reduction,
        family.direction,
    )
    assert find("eval/component/brevity").name == "eval/component/brevity"
    assert find("kl/token") is CATALOGUE["kl/token"]


@pytest.mark.parametrize("name", ["reward/brevity", "reward/component", "component/brevity", ""])
def test_any_other_name_has_none(name: str) -> None:
    assert entry(name) is None
    with pytest.raises(ConfigError, match="no metric"):
        find(name)


def test_names_under_spells_families_out() -> None:
    names = names_under(["brevity", "safety"])
    assert {"reward/component/safety", "eval/component/brevity", "kl/token"} <= set(names)
    assert not [name for name in names_under([]) if "component" in name]


def test_numbers_of_a_family_are_watched_and_repeatable() -> None:
    values = {"reward/component/a": float("nan"), "time/eval": 1.0}
    assert first_nonfinite(values) == "reward/component/a"
    assert list(repeatable(values)) == ["reward/component/a"]
