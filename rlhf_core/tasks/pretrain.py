"""Train the supervised policy and the reward models of a task: plain torch loops, seeded.

Nothing here reads or changes the global random state of torch, and the thread count is put back.
Texts are lists of token ids; those of the policy end in the end-of-text token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.nn import functional
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from rlhf_core.models.save import save_pretrained
from rlhf_core.tasks.recipe import ModelSize, Progress, Schedule

Ids = Sequence[int]
Pair = tuple[Ids, Ids]


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Run the body on so many torch threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the body, model initialisation for one, under a seed of its own."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would seed the accelerators as well.
        torch.default_generator.manual_seed(seed)
        yield


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write an ordinary Hugging Face folder: model and tokenizer, without a progress bar."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        save_pretrained(model, folder)
    finally:
        if shown:
            logging.enable_progress_bar()
    tokenizer.save_pretrained(folder)


def pad(rows: Sequence[Ids], pad_id: int) -> torch.Tensor:
    """Right-padded ids, shape (B, longest row)."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows])


def batches(
    lengths: Sequence[int], batch: int, steps: int, generator: torch.Generator
) -> Iterator[list[int]]:
    """Indices of ``steps`` batches; texts of similar length share a batch, so padding is little."""
    done = 0
    while True:
        order = torch.randperm(len(lengths), generator=generator).tolist()
        groups: list[list[int]] = []
        for start in range(0, len(order), batch * 16):
            window = sorted(order[start : start + batch * 16], key=lambda index: lengths[index])
            groups += [window[i : i + batch] for i in range(0, len(window), batch)]
        for group in torch.randperm(len(groups), generator=generator).tolist():
            if done == steps:
                return
            done += 1
            yield groups[group]


def train_policy(
    texts: Sequence[Ids],
    size: ModelSize,
    schedule: Schedule,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    progress: Progress | None = None,
) -> LlamaForCausalLM:
    """Train a causal language model from scratch; the loss counts real tokens only.

    Args:
        texts: Token ids, each ending in the end-of-text token, at most ``size.positions`` long.
        size: Shape of the model.
        schedule: Steps, batch size and learning rate.
        tokenizer: Gives vocabulary size and special tokens.
        seed: Seeds weights and order.
        progress: Called after each step with the stage "policy".
    """
    with seeded(seed):
        model = LlamaForCausalLM(_llama_config(size, tokenizer)).train()
    generator = torch.Generator().manual_seed(seed)
    optimiser, scheduler = _optimiser(model, schedule)
    order = batches([len(text) for text in texts], schedule.batch, schedule.steps, generator)
    for step, indices in enumerate(order, start=1):
        ids_BT = pad([texts[index] for index in indices], tokenizer.pad_token_id)
        _step(model, optimiser, scheduler, _token_loss(model, ids_BT, tokenizer.pad_token_id))
        if progress:
            progress("policy", step, schedule.steps)
    return model.eval()


def train_reward(
    pairs: Sequence[Pair],
    policy: LlamaForCausalLM,
    schedule: Schedule,
    seed: int,
    progress: Progress | None = None,
) -> LlamaForSequenceClassification:
    """Train a reward model on (better, worse) texts, starting from the policy's backbone.

    The score is read at the last token that is no padding. Half of the batches go without the
    end-of-text token, so that the model reads texts with and without it.

    Args:
        pairs: Better and worse text, token ids ending in the end-of-text token.
        policy: Backbone to start from; it stays as it is.
        schedule: Steps, pairs a step and learning rate.
        seed: Seeds the score head and the order.
        progress: Called after each step with the stage "reward".
    """
    model = _reward_from(policy, seed).train()
    generator = torch.Generator().manual_seed(seed)
    optimiser, scheduler = _optimiser(model, schedule)
    lengths = [max(len(better), len(worse)) for better, worse in pairs]
    order = batches(lengths, schedule.batch, schedule.steps, generator)
    for step, indices in enumerate(order, start=1):
        cut = -1 if step % 2 else None
        rows = [pairs[index][side][:cut] for side in (0, 1) for index in indices]
        better, worse = _scores(model, rows).chunk(2)
        _step(model, optimiser, scheduler, -functional.logsigmoid(better - worse).mean())
        if progress:
            progress("reward", step, schedule.steps)
    return model.eval()


@torch.no_grad()
def score_texts(
    model: LlamaForSequenceClassification, texts: Sequence[Ids], batch: int = 128
) -> torch.Tensor:
    """Raw scores of texts, shape (texts,), in the order given."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    scores = torch.empty(len(texts))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        scores[chosen] = _scores(model, [texts[index] for index in chosen])
    return scores


def pair_accuracy(model: LlamaForSequenceClassification, pairs: Sequence[Pair]) -> float:
    """Share of pairs whose better text gets the higher score."""
    scores = score_texts(model, [text for pair in pairs for text in pair]).view(-1, 2)
    return float((scores[:, 0] > scores[:, 1]).float().mean())


@torch.no_grad()
def standardise(model: LlamaForSequenceClassification, texts: Sequence[Ids]) -> float:
    """Scale the score head so that scores of ``texts`` have deviation 1; returns their mean.

    The head has no bias, so the mean stays in the score: the centred reward is ``score - mean``.
    """
    model.score.weight.div_(score_texts(model, texts).std().clamp_min(1e-6))
    return float(score_texts(model, texts).mean())


@torch.no_grad()
def perplexity(model: LlamaForCausalLM, texts: Sequence[Ids], batch: int = 64) -> float:
    """Perplexity per token of unseen texts."""
    ordered = sorted(texts, key=len)
    total = count = 0.0
    for start in range(0, len(ordered), batch):
        ids_BT = pad(ordered[start : start + batch], model.config.pad_token_id)
        tokens = int((ids_BT[:, 1:] != model.config.pad_token_id).sum())
        total += float(_token_loss(model, ids_BT, model.config.pad_token_id)) * tokens
        count += tokens
    return math.exp(total / count)


@torch.no_grad()
def sample(
    model: LlamaForCausalLM, prompts: Sequence[Ids], max_new_tokens: int, seed: int
) -> list[list[int]]:
    """Sampled responses at temperature 1, each up to and with the end-of-text token."""
    pad_id, eos = model.config.pad_token_id, model.config.eos_token_id
    width = max(len(prompt) for prompt in prompts)
    ids_BT = torch.tensor([[*[pad_id] * (width - len(p)), *p] for p in prompts])
    with seeded(seed):
        out = model.generate(
            input_ids=ids_BT,
            attention_mask=(ids_BT != pad_id).long(),
            do_sample=True,
            top_k=0,
            max_new_tokens=max_new_tokens,
        )
    rows = out[:, width:].tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]


def _llama_config(size: ModelSize, tokenizer: PreTrainedTokenizerBase) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.positions,
        tie_word_embeddings=True,
        initializer_range=0.04,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )


def _reward_from(policy: LlamaForCausalLM, seed: int) -> LlamaForSequenceClassification:
    kept = {k: v for k, v in policy.config.to_dict().items() if k not in ("id2label", "label2id")}
    config = LlamaConfig.from_dict({**kept, "num_labels": 1})
    with seeded(seed):
        model = LlamaForSequenceClassification(config)
    model.model.load_state_dict(policy.model.state_dict())
    return model


def _optimiser(
    model: torch.nn.Module, schedule: Schedule
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=schedule.lr,
        betas=(0.9, 0.98),
        weight_decay=schedule.weight_decay,
        fused=True,
    )
    warmup = max(1, schedule.steps // 10)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, schedule.steps - warmup)))

    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


def _step(
    model: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    loss: torch.Tensor,
) -> None:
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    scheduler.step()


def _token_loss(model: LlamaForCausalLM, ids_BT: torch.Tensor, pad_id: int) -> torch.Tensor:
    # Padding is on the right, where a causal model cannot see it: no attention mask is needed.
    hidden = model.model(input_ids=ids_BT[:, :-1], use_cache=False).last_hidden_state
    real = ids_BT[:, 1:] != pad_id
    return functional.cross_entropy(model.lm_head(hidden[real]), ids_BT[:, 1:][real])


def _scores(model: LlamaForSequenceClassification, rows: Sequence[Ids]) -> torch.Tensor:
    ids_BT = pad(rows, model.config.pad_token_id)
    last = torch.tensor([len(row) - 1 for row in rows])
    hidden = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    scores: torch.Tensor = model.score(hidden[torch.arange(len(rows)), last]).squeeze(-1)
    return scores
