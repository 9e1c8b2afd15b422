"""Values that docs/ppo.md offers are taken by their options, but for those it marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from rlhf_core.config import TrialConfig, apply
from rlhf_core.config.fields import dotted_fields
from rlhf_core.errors import ConfigError

PAGE = (Path(__file__).resolve().parents[4] / "docs/ppo.md").read_text(encoding="utf-8")
CHOICES = {
    key: choices
    for key, field in dotted_fields(TrialConfig)
    if (choices := get_args(field.annotation)) and all(isinstance(one, str) for one in choices)
}


def offered() -> Iterator[tuple[str, str, bool]]:
    """Option, value, and whether it is marked: of rows of an option, and of tables of its values."""
    heading = ""
    for line in PAGE.splitlines():
        first, _, rest = line.removeprefix("| ").partition(" | ")
        name = first.strip("`")
        if not line.startswith("|"):
            heading = ""
        elif line.startswith("|-"):
            continue
        elif name in CHOICES and not heading:
            heading = name
        elif name in CHOICES:
            meaning = rest.partition(" | ")[0]
            for value, mark in re.findall(r"`(\w+)`( †)?:", meaning):
                yield name, value, bool(mark)
        elif heading in CHOICES:
            yield heading, name, False
        else:
            heading = heading or first


def test_a_value_is_marked_where_its_option_refuses_it() -> None:
    found = list(offered())
    assert {"ppo.ratio", "ppo.advantage", "ppo.aggregation", "ppo.correction.kind"} <= {
        key for key, _, _ in found
    }
    assert [row for row in found if (row[1] in CHOICES[row[0]]) == row[2]] == []


@pytest.mark.parametrize(
    ("values", "marked"),
    [
        ({"ppo.log_ratio_clamp": [-1.0, 10.0]}, "two bounds †"),
        ({"ppo.correction.kind": "tis", "ppo.correction.low": 0.25}, "with low †"),
        ({"ppo.ratio": "sequence_token"}, "`sequence_token` †"),
    ],
)
def test_what_is_marked_is_refused(values: dict[str, object], marked: str) -> None:
    assert marked in PAGE
    with pytest.raises(ConfigError):
        apply(TrialConfig(), values)
