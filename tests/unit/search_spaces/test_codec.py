from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from search_spaces import (
    Choice,
    Constant,
    Float,
    Int,
    Parameter,
    Space,
    SpaceError,
    When,
    from_dict,
    parse,
    to_dict,
)

SHORT = """
ppo.clip_range_low: {float: [0.1, 0.3]}
optim.policy.lr: {float: [1.0e-4, 3.0e-3], log: true, centre: 1e-3}
sync.interval: {choice: [1, 2, 4]}
ppo.epochs: {int: [1, 4]}
ppo.kl.controller: {choice: [fixed, adaptive]}
ppo.kl.target: {float: [2, 12], when: {ppo.kl.controller: adaptive}}
ppo.gamma: {constant: 1.0}
"""

# Files of old runs have to stay readable: a change here needs a new schema version.
STORED = """
{"schema_version": 1, "parameters": [
 {"key": "optim.policy.lr", "type": "float", "low": 0.0001, "high": 0.003, "log": true,
  "step": null, "when": null, "centre": 0.001},
 {"key": "ppo.epochs", "type": "int", "low": 1, "high": 5, "log": false, "step": 2,
  "when": null, "centre": null},
 {"key": "ppo.kl.controller", "type": "choice", "values": ["fixed", "adaptive"],
  "when": null, "centre": "fixed"},
 {"key": "ppo.kl.target", "type": "float", "low": 2.0, "high": 12.0, "log": false, "step": 0.5,
  "when": {"key": "ppo.kl.controller", "values": ["adaptive"]}, "centre": null},
 {"key": "ppo.gamma", "type": "constant", "value": 1.0, "when": null, "centre": null}
]}
"""
STORED_SPACE = Space(
    {
        "optim.policy.lr": Parameter(Float(1e-4, 3e-3, log=True), centre=1e-3),
        "ppo.epochs": Parameter(Int(1, 5, step=2)),
        "ppo.kl.controller": Parameter(Choice(("fixed", "adaptive")), centre="fixed"),
        "ppo.kl.target": Parameter(
            Float(2, 12, step=0.5), When("ppo.kl.controller", ("adaptive",))
        ),
        "ppo.gamma": Parameter(Constant(1.0)),
    }
)


def test_short_form() -> None:
    space = parse(yaml.safe_load(SHORT))
    assert dict(space) == {
        "ppo.clip_range_low": Parameter(Float(0.1, 0.3)),
        "optim.policy.lr": Parameter(Float(1e-4, 3e-3, log=True), centre=1e-3),
        "sync.interval": Parameter(Choice((1, 2, 4))),
        "ppo.epochs": Parameter(Int(1, 4)),
        "ppo.kl.controller": Parameter(Choice(("fixed", "adaptive"))),
        "ppo.kl.target": Parameter(Float(2, 12), When("ppo.kl.controller", ("adaptive",))),
        "ppo.gamma": Parameter(Constant(1.0)),
    }


def test_numbers_that_yaml_reads_as_strings() -> None:
    text = """
    a: {float: [1e-5, 1E+2], step: 1e-5}
    b: {choice: [1e-5, 1e5, auto]}
    c: {constant: -2.5e3}
    d: {int: [1, 1e3]}
    e: {int: [1, 2], when: {b: [1e-5, auto]}}
    f: {choice: ["12", e5]}
    """
    raw = yaml.safe_load(text)
    assert raw["a"]["float"][0] == "1e-5"
    space = parse(raw)
    assert space["a"].domain == Float(1e-5, 100.0, step=1e-5)
    assert space["b"].domain == Choice((1e-5, 1e5, "auto"))
    assert space["c"].domain == Constant(-2500.0)
    assert space["d"].domain == Int(1, 1000)
    assert space["e"].when == When("b", (1e-5, "auto"))
    assert space["f"].domain == Choice(("12", "e5"))


def test_parse_reports_all_problems_with_their_keys() -> None:
    bad: dict[str, Any] = {
        "a": {"flot": [1, 2]},
        "b": {"float": [2, 1], "logg": True, "when": {"x": 1, "y": 2}},
        "c": {"float": [1, 2], "choice": [1]},
        "d": 3,
        "e": {"int": [1, 2, 3]},
        "f": {"choice": 4},
        "g": {"float": [0, 1], "centre": 5},
        "h": {"choice": [1, 2], "log": True},
        "i": {"int": [1, 4], "when": {"a": 1}},
        "j": {"int": [1, 4], "when": {"nowhere": 1}},
    }
    with pytest.raises(SpaceError) as caught:
        parse(bad)
    found = [
        (key, text) for key, text in (p.split(": ", maxsplit=1) for p in caught.value.problems)
    ]
    assert [key for key, _ in found] == ["a", "b", "b", "b", "c", "d", "e", "f", "g", "h", "j"]
    text = "\n".join(t for _, t in found)
    assert "no field 'logg'; did you mean 'log'?" in text
    assert "when needs one key" in text
    assert "int needs [low, high], got [1, 2, 3]" in text
    assert "{float: [0.1, 0.3]}" in text
    with pytest.raises(SpaceError, match="a space maps dotted keys to domains"):
        parse([1])  # type: ignore[arg-type]


def test_stored_form_is_pinned() -> None:
    assert to_dict(STORED_SPACE) == json.loads(STORED)
    space = from_dict(json.loads(STORED))
    assert space == STORED_SPACE
    assert list(space) == list(STORED_SPACE)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schema_version": 2}, "schema_version must be 1, got 2; read the file with the release"),
        ({"schema_version": True}, "schema_version must be 1, got True"),
        ({"parameters": {}}, "parameters must be a list"),
        ({"extra": 1}, "a stored space has no field 'extra'"),
        ({"parameters": [{"type": "int"}]}, r"parameters\[0\]: needs a string `key`"),
        ({"parameters": [{"key": "a", "type": "flot"}]}, "a: type must be one of"),
        ({"parameters": [{"key": "a", "type": "constant", "value": 1}]}, "needs when, centre"),
        (
            {"parameters": [{"key": "a", "type": "constant", "value": 1, "when": 3, "centre": 1}]},
            "when must hold key and values",
        ),
        (
            {
                "parameters": [
                    {"key": "a", "type": "constant", "value": 1, "when": None, "centre": None}
                ]
                * 2
            },
            "a: a key may appear once",
        ),
    ],
)
def test_from_dict_refuses(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpaceError, match=expected):
        from_dict({**json.loads(STORED), **change})
