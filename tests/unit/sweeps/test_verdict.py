from __future__ import annotations

from typing import Any

from sweeps.verdict import conditions_line, sample_lines, texts_lines, verdict_line

JUDGEMENT: dict[str, Any] = {
    "metric": "heldout", "before": -10.105, "after": 100.703, "gain": 110.807, "stderr": 0.028,
    "standard_errors": 2870.1, "kl_response": 6.1, "prompts": 256, "trained_on": 0,
    "samples": [["a film", " is\nbad.", ""], ["b", "c", "d"], ["e", "f", "g"]],
}  # fmt: skip


def test_the_judgement_is_two_lines_that_fit_and_two_samples() -> None:
    lines = [verdict_line(JUDGEMENT), conditions_line(JUDGEMENT)]
    assert max(map(len, lines)) < 93
    assert "held-out reward -10.105 -> 100.703" in lines[0]
    assert "2870.1 standard errors" in lines[0]
    assert "256 prompts never trained on" in lines[1]
    for trained_on, words in (
        (256, "256 prompts, all of them trained on"),
        (3, "256 prompts, 3 of them trained on"),
        (None, "256 test prompts"),
    ):
        line = conditions_line({**JUDGEMENT, "trained_on": trained_on})
        assert line.startswith(f"on {words}, at a KL of")
    assert sample_lines(JUDGEMENT) == [
        "prompt  a film", "before  is bad.", "after   (nothing)",
        "prompt  b", "before  c", "after   d",
    ]  # fmt: skip
    assert sample_lines({**JUDGEMENT, "samples": None}) == []


def test_lengths_and_distinct_n_are_told_where_they_were_recorded() -> None:
    measured = {
        "length_before": 19.8, "length_after": 20.0,
        "distinct_before": [0.5, 0.875], "distinct_after": [0.25, 0.75],
    }  # fmt: skip
    assert texts_lines({**JUDGEMENT, **measured}) == [
        "length 19.8 -> 20.0 tokens", "distinct-1 0.500 -> 0.250", "distinct-2 0.875 -> 0.750",
    ]  # fmt: skip
    assert texts_lines(JUDGEMENT) == []
    assert len(sample_lines(JUDGEMENT, count=None)) == 9
