"""The models of a prepared task. The two reward models are trained side by side.

`python -m rlhf_core.tasks.prepare_models JOB` trains one reward model from a job folder; that is
how the second process is started, and it works from scripts and notebooks alike.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import (
    AutoTokenizer,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerBase,
)

import rlhf_core
from rlhf_core.errors import RlhfError
from rlhf_core.tasks.folder import write_manifest, write_prompts
from rlhf_core.tasks.prepare import Parts, PrepareRecipe, prompt_splits, rating_pairs
from rlhf_core.tasks.pretrain import (
    Ids,
    Pair,
    pair_accuracy,
    perplexity,
    sample,
    save_model,
    standardise,
    thread_count,
    train_policy,
    train_reward,
)
from rlhf_core.tasks.ratings import RatedTexts
from rlhf_core.tasks.recipe import Progress, Schedule
from rlhf_core.tasks.tokenizer import train_tokenizer

JOB, RESULT, ERRORS = "job.json", "result.json", "errors.txt"
UNSEEN_PAIRS = 3000


@dataclass(frozen=True)
class RewardJob:
    """One reward model to train.

    Attributes:
        pairs: Better and worse text, token ids.
        reference: Texts whose scores get mean 0 (after the offset) and deviation 1.
        unseen_pairs: Pairs to measure on.
        schedule: Steps, pairs a step and learning rate.
        seed: Seeds the score head and the order.
    """

    pairs: Sequence[Pair]
    reference: Sequence[Ids]
    unseen_pairs: Sequence[Pair]
    schedule: Schedule
    seed: int


def make_task(
    rated: RatedTexts,
    parts: Parts,
    recipe: PrepareRecipe,
    folder: Path,
    resolved: dict[str, Any],
    progress: Progress | None = None,
) -> None:
    """Train all models of a task and write its folder, the manifest last."""
    started = time.perf_counter()
    splits = prompt_splits(rated, parts, recipe)
    seen = [*parts.reward, *parts.heldout]
    tokenizer = train_tokenizer(
        (rated.texts[row] for row in seen), recipe.vocab, recipe.model.positions
    )
    ids = _encode(tokenizer, rated.texts, recipe.max_tokens)
    with thread_count(recipe.threads):
        schedule = recipe.capped(recipe.policy)
        seen_ids = [ids[row] for row in seen]
        policy = train_policy(seen_ids, recipe.model, schedule, tokenizer, recipe.seed, progress)
        save_model(policy, tokenizer, folder / "policy")
        unseen_perplexity = perplexity(policy, [ids[row] for row in parts.unseen])
        prompt_ids = tokenizer(_repeated(splits["eval"], recipe.samples))["input_ids"]
        responses = sample(policy, prompt_ids, recipe.max_new_tokens, recipe.seed)
    ended = [response[-1] == tokenizer.eos_token_id for response in responses]
    samples = [prompt + more for prompt, more in zip(prompt_ids, responses, strict=True)]
    jobs = _jobs(rated, parts, recipe, ids, samples)
    results = _train_both(jobs, policy, tokenizer, folder, progress)
    metrics = {
        "texts": float(len(rated.texts)),
        "policy_parameters": float(policy.num_parameters()),
        "policy_perplexity": unseen_perplexity,
        "sample_ended_share": sum(ended) / len(ended),
        **{f"{role}_pair_accuracy": accuracy for role, (_, accuracy) in results.items()},
        "seconds": time.perf_counter() - started,
    }
    heads = {role: {"model": role, "offset": offset} for role, (offset, _) in results.items()}
    prompts = write_prompts(folder, splits)
    write_manifest(
        folder,
        {
            "name": recipe.name,
            "policy": "policy",
            **heads,
            "prompts": prompts,
            "max_new_tokens": recipe.max_new_tokens,
            "recipe": resolved,
            "metrics": metrics,
        },
    )


def _encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], most: int) -> list[list[int]]:
    """Ids of texts; one that is cut has no end-of-text token, since it does not end there."""
    rows = tokenizer(list(texts), truncation=True, max_length=most)["input_ids"]
    return [[*row, tokenizer.eos_token_id][:most] for row in rows]


def _repeated(prompts: Sequence[str], count: int) -> list[str]:
    return [prompts[index % len(prompts)] for index in range(count)]


def _jobs(
    rated: RatedTexts,
    parts: Parts,
    recipe: PrepareRecipe,
    ids: Sequence[Ids],
    samples: Sequence[Ids],
) -> dict[str, RewardJob]:
    def pairs(rows: Sequence[int], count: int, margin: float, seed: int) -> list[Pair]:
        chosen = rating_pairs(rated.ratings, rows, count, margin, seed)
        return [(ids[better], ids[worse]) for better, worse in chosen]

    schedule = recipe.capped(recipe.reward)
    count = schedule.steps * schedule.batch
    unseen = pairs(parts.unseen, UNSEEN_PAIRS, 0.0, recipe.seed)
    return {
        role: RewardJob(
            pairs(rows, count, recipe.rating_margin, seed), samples, unseen, schedule, seed
        )
        for role, rows, seed in (
            ("reward", parts.reward, recipe.seed),
            ("heldout", parts.heldout, recipe.seed + 1),
        )
    }


def _train_both(
    jobs: dict[str, RewardJob],
    policy: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    progress: Progress | None,
) -> dict[str, tuple[float, float]]:
    """Offset and accuracy of each reward model, whose folders are written as well."""
    if (os.cpu_count() or 1) < 2:
        return {
            role: _train_one(job, policy, tokenizer, folder / role, progress)
            for role, job in jobs.items()
        }
    place = folder / ".heldout-job"
    place.mkdir()
    (place / JOB).write_text(json.dumps(asdict(jobs["heldout"])), encoding="utf-8")
    with _start(place, folder) as process:
        try:
            reward = _train_one(jobs["reward"], policy, tokenizer, folder / "reward", progress)
            process.wait()
        finally:
            process.kill()
    if process.returncode:
        errors = (place / ERRORS).read_text(encoding="utf-8", errors="replace").split("\n")
        reason = next((line for line in reversed(errors) if line.strip()), "no message")
        raise RlhfError(f"training the held-out reward model failed: {reason}")
    result = json.loads((place / RESULT).read_text(encoding="utf-8"))
    shutil.rmtree(place)
    return {"reward": reward, "heldout": (result["offset"], result["accuracy"])}


def _start(place: Path, folder: Path) -> subprocess.Popen[bytes]:
    root = str(Path(rlhf_core.__file__).parents[1])
    paths = [root, os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "rlhf_core.tasks.prepare_models", str(place), str(folder)]
    # A file, since nobody reads a pipe while the other model trains.
    with (place / ERRORS).open("wb") as errors:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)


def _train_one(
    job: RewardJob,
    policy: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    progress: Progress | None = None,
) -> tuple[float, float]:
    with thread_count(1):
        model: LlamaForSequenceClassification = train_reward(
            job.pairs, policy, job.schedule, job.seed, progress
        )
        offset = standardise(model, job.reference)
        accuracy = pair_accuracy(model, job.unseen_pairs)
    save_model(model, tokenizer, folder)
    return offset, accuracy


def _run_job(place: Path, folder: Path) -> None:
    fields = json.loads((place / JOB).read_text(encoding="utf-8"))
    job = RewardJob(**{**fields, "schedule": Schedule(**fields["schedule"])})
    policy = LlamaForCausalLM.from_pretrained(folder / "policy")
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
    offset, accuracy = _train_one(job, policy, tokenizer, folder / "heldout")
    text = json.dumps({"offset": offset, "accuracy": accuracy})
    (place / RESULT).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _run_job(Path(sys.argv[1]), Path(sys.argv[2]))
