"""Make the built-in task from its recipe."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_core.tasks import grammar
from rlhf_core.tasks.builtin import BuiltinRecipe
from rlhf_core.tasks.folder import write_manifest, write_prompts
from rlhf_core.tasks.pretrain import (
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
from rlhf_core.tasks.recipe import Progress
from rlhf_core.tasks.tokenizer import train_tokenizer

HELDOUT = "rlhf_core.tasks.grammar:gold_scores"
# Pairs closer than this in hidden quality would mostly teach ties.
PAIR_MARGIN = 0.05


def build(name: str, recipe: BuiltinRecipe, folder: Path, progress: Progress | None = None) -> None:
    """Write the task into an existing empty folder."""
    started = time.perf_counter()
    rng = random.Random(recipe.seed)
    splits = grammar.prompts(
        recipe.seed, recipe.train_prompts, recipe.eval_prompts, recipe.test_prompts
    )
    texts = grammar.sentences(rng, splits["train"], recipe.sentences)
    tokenizer = train_tokenizer(texts, recipe.vocab, recipe.model.positions)
    ids = _encode(tokenizer, texts)
    unseen = grammar.sentences(rng, splits["test"], 1000)
    with thread_count(recipe.threads):
        policy = train_policy(ids, recipe.model, recipe.policy, tokenizer, recipe.seed, progress)
        pairs = _pairs(texts, ids, recipe.reward.steps * recipe.reward.batch, rng)
        reward = train_reward(pairs, policy, recipe.reward, recipe.seed, progress)
        prompts = [rng.choice(splits["eval"]) for _ in range(recipe.samples)]
        prompt_ids = tokenizer(prompts)["input_ids"]
        responses = sample(policy, prompt_ids, recipe.max_new_tokens, recipe.seed)
        offset = standardise(reward, [p + r for p, r in zip(prompt_ids, responses, strict=True)])
        unseen_ids = _encode(tokenizer, unseen)
        metrics = {
            "policy_parameters": float(policy.num_parameters()),
            "policy_perplexity": perplexity(policy, unseen_ids),
            "reward_pair_accuracy": pair_accuracy(reward, _pairs(unseen, unseen_ids, 2000, rng)),
            **_sample_metrics(tokenizer, prompts, responses),
        }
    save_model(policy, tokenizer, folder / "policy")
    save_model(reward, tokenizer, folder / "reward")
    metrics["seconds"] = time.perf_counter() - started
    manifest = _manifest(name, recipe, offset, metrics)
    write_manifest(folder, {**manifest, "prompts": write_prompts(folder, splits)})


def _manifest(
    name: str, recipe: BuiltinRecipe, offset: float, metrics: dict[str, float]
) -> dict[str, Any]:
    return {
        "name": name,
        "policy": "policy",
        "reward": {"model": "reward", "offset": offset},
        "heldout": {"function": HELDOUT},
        "max_new_tokens": recipe.max_new_tokens,
        "recipe": asdict(recipe),
        "metrics": metrics,
    }


def _encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    return [[*ids, tokenizer.eos_token_id] for ids in tokenizer(list(texts))["input_ids"]]


def _pairs(
    texts: Sequence[str], ids: Sequence[list[int]], count: int, rng: random.Random
) -> list[Pair]:
    """Random pairs, better text first."""
    gold = [grammar.score(text) for text in texts]
    pairs: list[Pair] = []
    while len(pairs) < count:
        first, second = rng.randrange(len(texts)), rng.randrange(len(texts))
        if gold[first] - gold[second] > PAIR_MARGIN:
            pairs.append((ids[first], ids[second]))
    return pairs


def _sample_metrics(
    tokenizer: PreTrainedTokenizerBase, prompts: list[str], responses: list[list[int]]
) -> dict[str, float]:
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    gold = grammar.gold_scores(prompts, texts, [{} for _ in prompts])
    ended = [response[-1] == tokenizer.eos_token_id for response in responses]
    return {
        "sample_gold_mean": statistics.fmean(gold),
        "sample_gold_std": statistics.pstdev(gold),
        "sample_ended_share": statistics.fmean(ended),
        "sample_tokens_mean": statistics.fmean(map(len, responses)),
    }
