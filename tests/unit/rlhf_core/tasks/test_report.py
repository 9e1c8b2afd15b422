"""Measurements of a task in words."""

from __future__ import annotations

from rlhf_core.tasks.report import advice, description

METRICS = {
    "policy_parameters": 123456.0,
    "policy_perplexity": 12.34,
    "sample_ended_share": 0.5,
    "reward_pair_accuracy": 0.711,
    "heldout_pair_accuracy": 0.705,
    "seconds": 181.2,
    "texts": 10662.0,
}


def test_every_measurement_has_words_and_a_unit() -> None:
    text = "\n".join(description({**METRICS, "odd": 1.5}))
    for part in (
        "123,456 parameters",
        "12.3 (lower",
        "50%",
        "71.1% (chance: 50%)",
        "181 s",
        "10,662",
    ):
        assert part in text
    assert "odd" in text
    assert "_" not in text
    assert description({}) == []


def test_a_poor_reward_model_and_few_texts_are_one_line_with_what_to_do() -> None:
    assert advice(METRICS) == []
    (line,) = advice({**METRICS, "reward_pair_accuracy": 0.55, "texts": 300.0})
    assert "at least 60% of unseen pairs rightly, but orders 55.0%" in line
    assert "2,000 rated texts are sensible, but there are 300" in line
    assert line.endswith("from the text alone")
    assert len(advice({**METRICS, "texts": 1999.0})) == 1
    assert len(advice({"reward_pair_accuracy": 0.59})) == 1
