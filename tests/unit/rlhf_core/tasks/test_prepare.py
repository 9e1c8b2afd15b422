"""Making a task from rated texts."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from rlhf_core.errors import ConfigError
from rlhf_core.tasks import grammar
from rlhf_core.tasks.folder import TaskFolder
from rlhf_core.tasks.prepare import (
    PrepareRecipe,
    check_recipe,
    deal,
    prepare,
    prompt_splits,
    rating_pairs,
)
from rlhf_core.tasks.ratings import RatedTexts, read_ratings
from rlhf_core.tasks.recipe import ModelSize

ROOT = Path(__file__).parents[4]
REVIEWS = ROOT.parent / "shared" / "data" / "movie_reviews.tsv"
QUICK = PrepareRecipe(
    name="quick",
    vocab=400,
    model=ModelSize(layers=1, width=32, mlp=64, heads=2),
    samples=16,
    max_new_tokens=6,
    max_steps=3,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("data") / "rated.tsv"
    starts = grammar.prompts(0, 300, 1, 1)["train"]
    texts = grammar.sentences(random.Random(7), starts, 300)
    lines = ["rating\ttext", *(f"{2 * grammar.score(text):.2f}\t{text}" for text in texts)]
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> TaskFolder:
    return prepare(data, tmp_path_factory.mktemp("out") / "task", QUICK)


def test_the_folder_keeps_the_contract(made: TaskFolder) -> None:
    assert (made.name, made.max_new_tokens, made.heldout_function) == ("quick", 6, None)
    splits = [made.read_prompts(split) for split in ("train", "eval", "test")]
    assert all(splits)
    assert len({prompt for prompts in splits for prompt in prompts}) == sum(map(len, splits))
    assert not [path for path in made.path.iterdir() if path.name.startswith(".")]
    assert set(made.metrics) >= {"reward_pair_accuracy", "heldout_pair_accuracy"}
    assert 200 < made.metrics["texts"] <= 300


def test_models_load_as_ordinary_hugging_face_folders(made: TaskFolder) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made.policy)
    policy = AutoModelForCausalLM.from_pretrained(made.policy)
    assert policy.config.vocab_size == len(tokenizer)
    assert made.heldout_model is not None
    heads = []
    for folder in (made.reward_model, made.heldout_model):
        reward = AutoModelForSequenceClassification.from_pretrained(folder)
        assert reward.config.num_labels == 1
        assert AutoTokenizer.from_pretrained(folder).get_vocab() == tokenizer.get_vocab()
        heads.append(reward.score.weight)
    assert not torch.equal(*heads)


def test_one_processor_gives_the_same_models_as_two(
    data: Path, made: TaskFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    alone = prepare(data, tmp_path / "task", QUICK)
    for file in ("policy", "reward", "heldout"):
        weights = f"{file}/model.safetensors"
        assert (alone.path / weights).read_bytes() == (made.path / weights).read_bytes()
    assert (alone.reward_offset, alone.heldout_offset) == (made.reward_offset, made.heldout_offset)


def test_a_failing_second_process_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlhf_core.tasks.prepare_models", str(tmp_path), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode != 0
    assert "job.json" in run.stderr.strip().splitlines()[-1]


def test_the_same_recipe_is_reused_and_another_refused(data: Path, made: TaskFolder) -> None:
    calls: list[str] = []
    again = prepare(data, made.path, QUICK, progress=lambda stage, *_: calls.append(stage))
    assert (again, calls) == (made, [])
    with pytest.raises(ConfigError, match=r"made with other settings \(seed\)"):
        prepare(data, made.path, replace(QUICK, seed=1))


def test_a_second_process_on_the_same_folder_is_refused_in_one_line(
    data: Path, tmp_path: Path
) -> None:
    refused: list[str] = []

    def try_as_well(*_: object) -> None:
        if not refused:
            with pytest.raises(ConfigError) as caught:
                prepare(data, tmp_path / "task", QUICK)
            refused.append(str(caught.value))

    prepare(data, tmp_path / "task", QUICK, progress=try_as_well)
    assert "but another is at it; wait for it, or give another folder" in refused[0]
    assert [path.name for path in tmp_path.iterdir()] == ["task"]


def test_a_folder_with_other_files_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(ConfigError, match="already holds other files"):
        prepare(data, tmp_path, QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_too_few_rows_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    file = tmp_path / "few.csv"
    file.write_text("text,rating\ngood film,1\nbad film,2\n")
    with pytest.raises(ConfigError, match="at least 100 rows"):
        prepare(file, tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()


def test_all_broken_settings_are_told_together() -> None:
    with pytest.raises(ConfigError) as caught:
        check_recipe(replace(QUICK, unseen_share=1.5, prompt_words=(6, 3), max_tokens=1000))
    assert len(caught.value.problems) == 3
    assert "unseen_share must be between 0 and 0.9, got 1.5" in caught.value.problems[0]


def test_parts_are_disjoint_and_test_prompts_come_from_unseen_texts(data: Path) -> None:
    rated = read_ratings(data)
    parts = deal(rated, QUICK)
    rows = [*parts.reward, *parts.heldout, *parts.unseen]
    assert sorted(rows) == list(range(len(rated.texts)))
    assert abs(len(parts.reward) - len(parts.heldout)) <= 1
    unseen = [rated.texts[row] for row in parts.unseen]
    splits = prompt_splits(rated, parts, QUICK)
    assert all(any(text.startswith(prompt) for text in unseen) for prompt in splits["test"])
    assert all(3 <= len(prompt.split()) <= 6 for prompts in splits.values() for prompt in prompts)


def test_texts_too_short_for_prompts_are_refused() -> None:
    rated = RatedTexts(tuple(f"short {i}" for i in range(50)), tuple(map(float, range(50))))
    with pytest.raises(ConfigError, match="a text of at least 5 words"):
        prompt_splits(rated, deal(rated, QUICK), QUICK)


def test_pairs_put_the_better_text_first_and_keep_the_margin() -> None:
    ratings = [0.0, 1.0, 5.0, 5.2]
    pairs = rating_pairs(ratings, [0, 1, 2, 3], 200, margin=0.9, seed=0)
    assert len(pairs) == 200
    assert all(ratings[better] - ratings[worse] >= 0.9 for better, worse in pairs)
    narrow = rating_pairs([0.0, 0.01], [0, 1], 5, margin=0.9, seed=0)
    assert narrow == [(1, 0)] * 5
    with pytest.raises(ConfigError, match="ratings must differ within each part"):
        rating_pairs([1.0, 1.0], [0, 1], 5, margin=0.9, seed=0)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not REVIEWS.is_file(), reason="the film-review file is not at hand")
def test_film_reviews_give_reward_models_better_than_chance(tmp_path: Path) -> None:
    task = prepare(REVIEWS, tmp_path / "task")
    assert task.metrics["reward_pair_accuracy"] > 0.62
    assert task.metrics["heldout_pair_accuracy"] > 0.62
    manifest = json.loads((task.path / "task.json").read_text())
    assert manifest["recipe"]["data"]
    assert len(task.read_prompts("test")) >= 256
