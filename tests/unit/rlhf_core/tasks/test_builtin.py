"""The built-in task: built once, cached, whole or absent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
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
from rlhf_core.tasks.builtin import BuiltinRecipe, cache_folder, ensure_builtin, recipe_key
from rlhf_core.tasks.folder import TaskFolder
from rlhf_core.tasks.pretrain import sample, score_texts
from rlhf_core.tasks.recipe import ModelSize, Schedule

TINY = BuiltinRecipe(
    sentences=300,
    vocab=400,
    model=ModelSize(layers=1, width=32, mlp=64, heads=2),
    policy=Schedule(steps=5, batch=16, lr=5e-3),
    reward=Schedule(steps=4, batch=8, lr=2e-3),
    train_prompts=40,
    eval_prompts=10,
    test_prompts=10,
    samples=16,
    max_new_tokens=6,
)
SCRIPT = """
import pathlib, sys
sys.path.insert(0, {tests!r})
from test_builtin import TINY
from rlhf_core.tasks.builtin import ensure_builtin

def progress(stage, step, steps):
    pathlib.Path({marks!r}, {name!r}).touch()

print(ensure_builtin(progress=progress, recipe=TINY))
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tiny(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLHF_SWEEPS_CACHE", str(cache))
    return ensure_builtin(recipe=TINY)


def start(cache: Path, marks: Path, name: str) -> subprocess.Popen[str]:
    code = SCRIPT.format(tests=str(Path(__file__).parent), marks=str(marks), name=name)
    root = str(Path(__file__).parents[4])
    environment = {
        **os.environ,
        "RLHF_SWEEPS_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": root,
    }
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_the_folder_keeps_the_contract(tiny: Path) -> None:
    task = TaskFolder.load(tiny)
    assert (task.name, task.max_new_tokens) == ("reviews", 6)
    assert task.heldout_function == "rlhf_core.tasks.grammar:gold_scores"
    splits = {split: task.read_prompts(split) for split in task.prompts}
    assert {split: len(prompts) for split, prompts in splits.items()} == {
        "train": 40,
        "eval": 10,
        "test": 10,
    }
    assert len({prompt for prompts in splits.values() for prompt in prompts}) == 60
    assert set(task.metrics) >= {"policy_perplexity", "reward_pair_accuracy", "sample_gold_mean"}


def test_models_load_as_ordinary_hugging_face_folders(tiny: Path) -> None:
    task = TaskFolder.load(tiny)
    tokenizer = AutoTokenizer.from_pretrained(task.policy)
    policy = AutoModelForCausalLM.from_pretrained(task.policy)
    reward = AutoModelForSequenceClassification.from_pretrained(task.reward_model)
    assert tokenizer.padding_side == "left"
    assert policy.config.vocab_size == len(tokenizer) == reward.config.vocab_size
    assert policy.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert policy.generation_config.eos_token_id == tokenizer.eos_token_id
    assert reward.config.num_labels == 1
    assert AutoTokenizer.from_pretrained(task.reward_model).get_vocab() == tokenizer.get_vocab()


def test_stored_scores_are_those_of_the_class_itself_and_centred(tiny: Path) -> None:
    task = TaskFolder.load(tiny)
    tokenizer = AutoTokenizer.from_pretrained(task.policy)
    policy = AutoModelForCausalLM.from_pretrained(task.policy)
    reward = AutoModelForSequenceClassification.from_pretrained(task.reward_model).eval()
    prompts = tokenizer(task.read_prompts("eval") * 20)["input_ids"]
    responses = sample(policy, prompts, task.max_new_tokens, seed=9)
    rows = [prompt + more for prompt, more in zip(prompts, responses, strict=True)]
    scores = score_texts(reward, rows)
    batch = tokenizer.pad({"input_ids": rows[:8]}, return_tensors="pt")
    with torch.no_grad():
        assert torch.allclose(reward(**batch).logits[:, 0], scores[:8], atol=1e-4)
    centred = scores - task.reward_offset
    # Sixteen samples fixed offset and scale, so they are rough.
    assert abs(float(centred.mean())) < 0.8
    assert 0.4 < float(centred.std()) < 2.5


def test_a_second_call_builds_nothing_and_a_build_leaves_global_state_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_SWEEPS_CACHE", str(tmp_path))
    states = random.getstate(), torch.get_rng_state(), torch.get_num_threads()
    calls: list[tuple[str, int, int]] = []
    first = ensure_builtin(recipe=TINY, progress=lambda *call: calls.append(call))
    assert [call for call in calls if call[0] == "policy"][-1] == ("policy", 5, 5)
    assert calls[-1] == ("reward", 4, 4)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert torch.get_num_threads() == states[2]
    calls.clear()
    assert ensure_builtin(recipe=TINY, progress=lambda *call: calls.append(call)) == first
    assert calls == []


def test_the_same_recipe_gives_the_same_weights(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_SWEEPS_CACHE", str(tmp_path))
    torch.manual_seed(12345)
    again = ensure_builtin(recipe=TINY)
    for file in ("policy/model.safetensors", "reward/model.safetensors", "prompts_test.jsonl"):
        assert (again / file).read_bytes() == (tiny / file).read_bytes()


def test_two_processes_at_once_make_one_build(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    processes = [start(tmp_path / "cache", marks, name) for name in ("one", "two")]
    paths = {process.communicate(timeout=120)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(paths) == 1
    assert len(list(marks.iterdir())) == 1
    assert TaskFolder.load(paths.pop().strip()).name == "reviews"


def test_a_killed_build_is_not_taken_for_a_finished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_SWEEPS_CACHE", str(tmp_path / "cache"))
    process = start(tmp_path / "cache", tmp_path, "begun")
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [path for path in (tmp_path / "cache" / "tasks").iterdir() if path.is_dir()]
    built = ensure_builtin(recipe=TINY)
    assert TaskFolder.load(built).path == built
    folders = [path for path in built.parent.iterdir() if path.is_dir()]
    assert folders == [built]


def test_a_damaged_build_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_SWEEPS_CACHE", str(tmp_path))
    built = ensure_builtin(recipe=TINY)
    (built / "reward" / "model.safetensors").unlink()
    assert ensure_builtin(recipe=TINY) == built
    assert (built / "reward" / "model.safetensors").is_file()


def test_an_unknown_name_names_near_misses() -> None:
    with pytest.raises(ConfigError, match=r"one of reviews, got 'review'; did you mean 'reviews'"):
        ensure_builtin("review")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHF_SWEEPS_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("RLHF_SWEEPS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "rlhf-sweeps"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "rlhf-sweeps"


def test_another_recipe_has_another_key() -> None:
    assert recipe_key(TINY) != recipe_key(BuiltinRecipe())
    assert recipe_key(BuiltinRecipe()) == recipe_key(BuiltinRecipe())


@pytest.mark.long
def test_the_default_recipe_leaves_room_to_improve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_SWEEPS_CACHE", str(tmp_path))
    task = TaskFolder.load(ensure_builtin())
    assert task.metrics["sample_ended_share"] > 0.95
    assert task.metrics["reward_pair_accuracy"] > 0.85
    assert abs(task.metrics["sample_gold_mean"]) < 0.2
    assert 3e5 <= task.metrics["policy_parameters"] <= 1e6
    best = _best_of(task, 16)
    assert best > task.metrics["sample_gold_mean"] + 0.3


def _best_of(task: TaskFolder, count: int) -> float:
    """Mean hidden quality of the responses that the reward model likes best of ``count``."""
    tokenizer = AutoTokenizer.from_pretrained(task.policy)
    policy = AutoModelForCausalLM.from_pretrained(task.policy)
    reward = AutoModelForSequenceClassification.from_pretrained(task.reward_model)
    prompts = [prompt for prompt in task.read_prompts("test")[:48] for _ in range(count)]
    ids = tokenizer(prompts)["input_ids"]
    responses = sample(policy, ids, task.max_new_tokens, seed=1)
    scores = score_texts(reward, [p + r for p, r in zip(ids, responses, strict=True)])
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    gold = torch.tensor(grammar.gold_scores(prompts, texts, [{} for _ in prompts]))
    chosen = scores.view(-1, count).argmax(1, keepdim=True)
    return float(gold.view(-1, count).gather(1, chosen).mean())
