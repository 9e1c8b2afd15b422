from __future__ import annotations

from typing import Any

import pytest

from search_spaces import Rule, SpaceError
from search_spaces.rules import parse_rules


@pytest.mark.parametrize(
    ("rule", "kept", "broken"),
    [
        (Rule("divides", ("a", "b")), {"a": 4, "b": 8}, {"a": 3, "b": 8}),
        (Rule("divides", ("a", "b", "c")), {"a": 6, "b": 4, "c": 3}, {"a": 6, "b": 4, "c": 5}),
        (Rule("divides", ("a", 12)), {"a": 4}, {"a": 0}),
        (Rule("at_most", ("a", "b")), {"a": 0.3, "b": 0.3}, {"a": 0.31, "b": 0.3}),
        (Rule("at_most", ("a", "b"), times=2), {"a": 1, "b": 2}, {"a": 1, "b": 1.9}),
        (Rule("at_most", (0.1, "b")), {"b": 0.2}, {"b": 0.05}),
        # 0.1 + 0.2 is above 0.3 in binary.
        (Rule("sum_at_most", ("a", "b", 0.3)), {"a": 0.1, "b": 0.2}, {"a": 0.2, "b": 0.2}),
        (Rule("sum_at_most", ("a", "b", "c")), {"a": 1, "b": 1, "c": 2}, {"a": 1, "b": 2, "c": 2}),
        (Rule("product_at_most", ("a", "b", 8)), {"a": 2, "b": 4}, {"a": 3, "b": 3}),
    ],
    ids=str,
)
def test_a_rule_holds_or_is_broken_in_words(rule: Rule, kept: Any, broken: Any) -> None:
    assert rule.broken(kept) is None
    line = rule.broken(broken)
    assert line is not None
    assert line.startswith(f"rule {rule} is broken by ")
    assert all(f"{key} = {value}" in line for key, value in broken.items())
    # What is absent, or off, breaks nothing.
    for key in broken:
        assert rule.broken({k: v for k, v in broken.items() if k != key}) is None
        assert rule.broken({**broken, key: None}) is None


def test_words() -> None:
    rules = parse_rules(
        [
            {"divides": ["a", "b", "c"]},
            {"at_most": ["a", "b"], "times": 2},
            {"sum_at_most": ["a", "b", 1]},
            {"product_at_most": ["a", "b", "c"]},
            "fits_cluster",
        ]
    )
    assert [str(rule) for rule in rules] == [
        "a divides b x c",
        "2 x a <= b",
        "a + b <= 1",
        "a x b <= c",
        "the cluster holds the trial",
    ]


def test_a_value_that_is_no_number_is_told() -> None:
    assert Rule("at_most", ("a", "b")).broken({"a": "gae", "b": 1}) == (
        "rule a <= b: a must be a number, but is 'gae'; correct the rule"
    )
    assert "must be a number, but is True" in str(Rule("divides", ("a", 2)).broken({"a": True}))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"devides": ["a", "b"]}, "did you mean 'divides'"),
        ({"divides": ["a"]}, "divides takes 2 to 8 terms"),
        ({"at_most": ["a", "b", "c"]}, "at_most takes 2 terms"),
        ({"at_most": ["a", None]}, "a term is a dotted key or a finite number, got None"),
        ({"at_most": ["a", True]}, "got True"),
        ({"at_most": [1, 2]}, "needs at least one key"),
        ({"at_most": "a"}, "needs a list of terms"),
        ({"at_most": ["a", "b"], "times": 0}, "times must be a number above 0, got 0"),
        ({"divides": ["a", "b"], "times": 2}, "times belongs to at_most"),
        ({"at_most": ["a", "b"], "divides": ["a", "b"]}, r"a rule is \{kind: \[terms\]\}"),
        ({"fits_cluster": ["a"]}, "write fits_cluster alone"),
        ("fits_the_cluster", "did you mean 'fits_cluster'"),
        (7, "a rule is"),
    ],
)
def test_a_malformed_rule_is_refused(entry: Any, expected: str) -> None:
    with pytest.raises(SpaceError, match=r"rules\[1\]: .*" + expected):
        parse_rules([{"at_most": ["a", "b"]}, entry])
