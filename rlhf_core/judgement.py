"""The last judgement: a trained policy against the one it started from.

On test prompts and with a seed of its own; whether the prompts were trained on is counted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from rlhf_core.assets import resolve
from rlhf_core.config import TrialConfig, apply
from rlhf_core.config.resources import PRIVATE
from rlhf_core.diversity import distinct_share
from rlhf_core.errors import CheckpointError
from rlhf_core.evaluation import Scored, sample_and_score
from rlhf_core.experience import batch_metrics, standard_error
from rlhf_core.models.load import load_tokenizer
from rlhf_core.prompts import PromptSet, chunks_of
from rlhf_core.roles.reward import decode_responses
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import plan_trial
from rlhf_core.scoring import Scoring
from rlhf_core.store import Store
from rlhf_core.trial import PPOTrial
from rlhf_core.types import CallContext

SEED = 7_000_003


@dataclass(frozen=True)
class Judgement:
    """What a trial gained.

    Attributes:
        metric: ``heldout``, or ``proxy`` where the trial has no held-out reward.
        prompts: How many test prompts.
        trained_on: How many of them are among the training prompts.
        before, after: Mean reward of the first and of the final policy.
        gain: after - before.
        stderr: Standard error of the gain, paired by prompt.
        proxy_before, proxy_after: The same for the reward that was optimised.
        kl_response: KL of the final policy to the reference, nats per response.
        length_before, length_after: Mean response length in tokens.
        distinct_before, distinct_after: Distinct-1 and distinct-2 of all responses.
        samples: ``(prompt, response before, response after)`` of the first prompts.
    """

    metric: str
    prompts: int
    trained_on: int
    before: float
    after: float
    gain: float
    stderr: float
    proxy_before: float
    proxy_after: float
    kl_response: float
    length_before: float
    length_after: float
    distinct_before: tuple[float, float]
    distinct_after: tuple[float, float]
    samples: tuple[tuple[str, str, str], ...]

    @property
    def standard_errors(self) -> float:
        """The gain in standard errors."""
        return self.gain / self.stderr if self.stderr > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "standard_errors": self.standard_errors}


def judge(config: TrialConfig, store: Store, prompts: int = 256, seed: int = SEED) -> Judgement:
    """Judges the final checkpoint of a trial, in this process.

    Args:
        config: The trial's configuration.
        store: Where its checkpoints are.
        prompts: Test prompts to use; fewer where the file has fewer.
        seed: Sampling seed of both policies.

    Raises:
        CheckpointError: If the trial left no checkpoint.
    """
    # In this process, and with a reference even where the trial had none: the KL is part of the verdict.
    fused = apply(
        config, {"resources.layout": "fused", "ppo.kl.measure": True, **PRIVATE}, "judgement"
    )
    plan = plan_trial(fused)
    trial = PPOTrial(fused, LocalRuntime(fused, plan), plan, store)
    try:
        before = _answer(trial, prompts, seed)
        if not trial.restore():
            raise CheckpointError(f"judgement: there is no checkpoint in {store.uri}")
        after = _answer(trial, prompts, seed)
        trained = {prompt.tokens for prompt in trial.train_prompts.prompts}
    finally:
        trial.close()
    return _compare(fused, before, after, sum(p.tokens in trained for p in before.prompts))


def _answer(trial: PPOTrial, count: int, seed: int) -> Scored:
    config, assets = trial.config, resolve(trial.config)
    tokenizer = load_tokenizer(assets.policy)
    limit, template = config.data.max_prompt_tokens, config.data.chat_template
    test = PromptSet(assets.prompts["test"], tokenizer, limit, template)
    asked = test.take(0, min(count, len(test.prompts)), seed)
    chunks = chunks_of(asked, 1, config.rollout.chunk_size, seed, "judgement")
    context = CallContext("judgement")
    scoring = Scoring(trial.groups, context, config)
    return sample_and_score(trial.groups["learner"], chunks, context, scoring, trial.pad_id)


def _compare(config: TrialConfig, before: Scored, after: Scored, trained_on: int) -> Judgement:
    tokenizer = load_tokenizer(resolve(config).policy)
    first, last = _measured(before), _measured(after)
    gain_B = last - first
    old, new = (
        batch_metrics(config, s.rollout, s.scores, s.ref_logprobs_BT) for s in (before, after)
    )
    texts = zip(
        (prompt.text for prompt in before.prompts),
        decode_responses(tokenizer, before.rollout),
        decode_responses(tokenizer, after.rollout),
        strict=True,
    )
    return Judgement(
        metric="heldout" if before.scores.heldout_B is not None else "proxy",
        prompts=len(before.prompts),
        trained_on=trained_on,
        before=float(first.mean()),
        after=float(last.mean()),
        gain=float(gain_B.mean()),
        stderr=standard_error(gain_B),
        proxy_before=old["reward/proxy"],
        proxy_after=new["reward/proxy"],
        kl_response=new["kl/response"],
        length_before=old["rollout/length"],
        length_after=new["rollout/length"],
        distinct_before=_distinct(before),
        distinct_after=_distinct(after),
        samples=tuple(texts)[:8],
    )


def _distinct(scored: Scored) -> tuple[float, float]:
    return distinct_share(scored.rollout, 1), distinct_share(scored.rollout, 2)


def _measured(scored: Scored) -> torch.Tensor:
    heldout_B = scored.scores.heldout_B
    return scored.scores.proxy_B if heldout_B is None else heldout_B
