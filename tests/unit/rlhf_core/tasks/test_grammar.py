"""The grammar and its hidden quality."""

from __future__ import annotations

import itertools
import random
import statistics
import subprocess
import sys

import pytest

from rlhf_core.tasks import grammar

SPLITS = grammar.prompts(0, 600, 192, 384)


def written(seed: int, count: int) -> list[str]:
    return grammar.sentences(random.Random(seed), SPLITS["train"], count)


def test_same_seed_same_sentences_and_other_seed_other_sentences() -> None:
    assert written(3, 50) == written(3, 50)
    assert written(3, 50) != written(4, 50)
    assert grammar.prompts(5, 20, 10, 10) == grammar.prompts(5, 20, 10, 10)
    assert grammar.prompts(5, 20, 10, 10) != grammar.prompts(6, 20, 10, 10)


def test_prompts_are_disjoint_neutral_and_of_the_sizes_asked() -> None:
    train, evaluation, test = (SPLITS[split] for split in ("train", "eval", "test"))
    assert (len(train), len(evaluation), len(test)) == (600, 192, 384)
    assert len({*train, *evaluation, *test}) == 600 + 192 + 384
    opinions = {*grammar.ADJECTIVES, *grammar.VERBS, *grammar.INTENSIFIERS, *grammar.NEGATIONS}
    assert not [prompt for prompt in train if opinions & set(prompt.split())]


def test_more_prompts_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="prompts"):
        grammar.prompts(0, 10**6, 1, 1)


def test_sentences_vary() -> None:
    rng = random.Random(0)
    texts = [grammar.continuation(rng) for _ in range(4000)]
    words = {word for text in texts for word in text.replace(",", " ").replace(".", "").split()}
    assert len(set(texts)) > 3000
    assert 150 <= len(words) <= 400
    assert all(text.startswith(" ") and text.endswith(".") for text in texts)


def test_scores_lie_in_the_range_with_headroom_on_both_sides() -> None:
    scores = [grammar.score(text) for text in written(1, 3000)]
    low, high = grammar.SCORE_RANGE
    assert low <= min(scores)
    assert max(scores) <= high
    assert abs(statistics.fmean(scores)) < 0.1
    assert 0.3 < statistics.pstdev(scores) < 0.6


@pytest.mark.parametrize(
    "text",
    ["", " ", ".", "<eos>", "日本 \n\t", "the " * 500, "superb " * 50, "good. good. good.", "'"],
)
def test_any_text_has_a_score_in_the_range_and_nonsense_a_low_one(text: str) -> None:
    low, high = grammar.SCORE_RANGE
    assert low <= grammar.score(text) <= high
    assert grammar.score(text) < grammar.score("the acting is average.")


def test_better_opinions_score_higher() -> None:
    ordered = [
        "the acting in this new film is awful and boring, and we hated it.",
        "the acting in this new film is bad.",
        "the acting in this new film is slightly dull.",
        "the acting in this new film is average.",
        "the acting in this new film is hardly boring.",
        "the acting in this new film is good.",
        "the acting in this new film is very good and clever.",
        "the acting in this new film is superb and charming, and we loved the plot.",
    ]
    scores = [grammar.score(text) for text in ordered]
    assert scores == sorted(scores)
    assert all(after - before > 0.04 for before, after in itertools.pairwise(scores))


def test_negation_turns_an_opinion_round() -> None:
    assert grammar.score("the acting is not good.") < 0 < grammar.score("the acting is not bad.")


@pytest.mark.parametrize(
    ("fault", "sound"),
    [
        ("the acting is superb superb superb.", "the acting is superb."),
        ("the acting is good and good.", "the acting is good and clever."),
        ("the acting is very good and", "the acting is very good."),
        (
            "the acting is very good and the plot is",
            "the acting is very good and the plot is fine.",
        ),
        ("acting the superb is clever and.", "the acting is superb and clever."),
        ("the acting is a excellent effort.", "the acting is an excellent effort."),
        ("the acting is good, but we loved it.", "the acting is good, and we loved it."),
        (
            "the acting is absolutely superb and brilliant, and we adored it because the plot is "
            "utterly perfect.",
            "the acting is superb and brilliant, and we enjoyed it because the plot is perfect.",
        ),
    ],
)
def test_faults_that_the_grammar_hardly_writes_cost_score(fault: str, sound: str) -> None:
    assert grammar.score(fault) < grammar.score(sound) - 0.05


def test_own_sentences_are_almost_never_taken_as_broken() -> None:
    tokens = [grammar._TOKEN.findall(text) for text in written(99, 2000)]
    assert sum(grammar._broken(words) > 0 for words in tokens) <= 10


def test_gold_scores_read_prompt_and_response_as_one_text() -> None:
    prompts = ["the acting is", "the acting is"]
    scores = grammar.gold_scores(prompts, [" very good.", "very good."], [{}, {}])
    assert scores == [grammar.score("the acting is very good.")] * 2


def test_gold_scores_refuse_lists_of_different_length() -> None:
    with pytest.raises(ValueError, match="zip"):
        grammar.gold_scores(["a"], ["b", "c"], [{}])


def test_grammar_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, rlhf_core.tasks.grammar, rlhf_core.tasks.builtin, rlhf_core.tasks.prepare\n"
        "sys.exit(', '.join({'torch', 'transformers', 'ray'} & set(sys.modules)) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
