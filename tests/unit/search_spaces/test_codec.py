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
    Logit,
    Parameter,
    Pow2,
    Rule,
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
STORED_1 = """
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


STORED_2 = """
{"schema_version": 2, "parameters": [
 {"key": "ppo.gamma", "type": "logit", "low": 0.9, "high": 0.999, "when": null, "centre": 0.99},
 {"key": "ppo.minibatches", "type": "pow2", "low": 1, "high": 8, "when": null, "centre": null},
 {"key": "optim.policy.lr", "type": "float", "low": 0.0001, "high": 0.003, "log": true,
  "step": null, "when": null, "centre": null}
 ], "rules": [
 {"kind": "divides", "terms": ["ppo.minibatches", "rollout.prompts_per_iteration"], "times": 1.0},
 {"kind": "at_most", "terms": ["optim.policy.lr", 0.01], "times": 2.0},
 {"kind": "fits_cluster", "terms": [], "times": 1.0}
]}
"""
STORED_SPACE_2 = Space(
    {
        "ppo.gamma": Parameter(Logit(0.9, 0.999), centre=0.99),
        "ppo.minibatches": Parameter(Pow2(1, 8)),
        "optim.policy.lr": Parameter(Float(1e-4, 3e-3, log=True)),
    },
    (
        Rule("divides", ("ppo.minibatches", "rollout.prompts_per_iteration")),
        Rule("at_most", ("optim.policy.lr", 0.01), times=2.0),
        Rule("fits_cluster"),
    ),
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
    assert "no field 'logg'; did you mean 'log' or 'logit'?" in text
    assert "when needs one key" in text
    assert "int needs [low, high], got [1, 2, 3]" in text
    assert "{float: [0.1, 0.3]}" in text
    with pytest.raises(SpaceError, match="a space maps dotted keys to domains"):
        parse([1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"), [(STORED_1, STORED_SPACE), (STORED_2, STORED_SPACE_2)]
)
def test_stored_forms_of_every_version_are_read(text: str, expected: Space) -> None:
    space = from_dict(json.loads(text))
    assert space == expected
    assert list(space) == list(expected)
    assert space.rules == expected.rules


def test_stored_form_is_pinned() -> None:
    assert to_dict(STORED_SPACE_2) == json.loads(STORED_2)
    upgraded = {**json.loads(STORED_1), "schema_version": 2, "rules": []}
    assert to_dict(STORED_SPACE) == upgraded


def test_scales_and_rules_of_the_short_form() -> None:
    text = """
    a: {float: [0.9, 0.999], logit: true, centre: 0.99}
    b: {int: [16, 128.0], pow2: true}
    c: {float: [0.9, 0.99], logit: false, log: true}
    """
    rules = [
        {"at_most": ["a", "1e-1"], "times": "2e0"},
        "fits_cluster",
        {"at_most": ["a", 0.1], "times": 2},
    ]
    space = parse(yaml.safe_load(text), rules)
    assert space["a"] == Parameter(Logit(0.9, 0.999), centre=0.99)
    assert space["b"].domain == Pow2(16, 128)
    assert space["c"].domain == Float(0.9, 0.99, log=True)
    # Written twice, it is one rule.
    assert space.rules == (Rule("at_most", ("a", 0.1), 2.0), Rule("fits_cluster"))


def test_problems_of_scales_and_rules_come_together() -> None:
    bad = {
        "a": {"float": [0.9, 1.0], "logit": True},
        "b": {"float": [0.9, 0.99], "logit": True, "log": True},
        "c": {"int": [1, 12], "pow2": True},
        "d": {"int": [1, 8], "pow2": "yes"},
        "e": {"int": [1, 8], "logit": True},
    }
    with pytest.raises(SpaceError) as caught:
        parse(bad, [{"atmost": ["a", "b"]}, {"at_most": ["a"]}, 3])
    assert [line.split(":")[0] for line in caught.value.problems] == [
        "a", "b", "c", "d", "e", "rules[0]", "rules[1]", "rules[2]",
    ]  # fmt: skip
    text = str(caught.value)
    assert "a logit domain lies within (0, 1), got high=1.0" in text
    assert "logit stands alone, got it with log" in text
    assert "needs powers of two, got high=12; use high=8" in text
    assert "pow2 must be true or false, got 'yes'" in text
    assert "got 'atmost'; did you mean 'at_most'" in text
    with pytest.raises(SpaceError, match="rules are a list"):
        parse({}, {"at_most": ["a", "b"]})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schema_version": 3}, "must be 1 or 2, got 3; read the file with the release"),
        ({"schema_version": True}, "schema_version must be 1 or 2, got True"),
        ({"rules": []}, "a stored space has no field 'rules'"),
        ({"parameters": [{"key": "a", "type": "pow2"}]}, "of schema_version 1 has no type 'pow2'"),
        ({"schema_version": 2, "rules": {}}, "rules must be a list"),
        ({"schema_version": 2, "rules": [{"kind": "at_most"}]}, r"rules\[0\] must hold"),
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
        from_dict({**json.loads(STORED_1), **change})
