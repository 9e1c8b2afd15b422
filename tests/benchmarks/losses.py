"""Losses of the learner and the critic beside those of TRL, on equal tokens and weights."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import NEW_TOKENS, PROMPT_TOKENS, PROMPTS, VOCABULARY, llama_config, save_models

from rlhf_core.config import TrialConfig, resolve_trial
from rlhf_core.experience import Batch, build_experience
from rlhf_core.models.forward import logprobs
from rlhf_core.ppo.scores import RunningNorm
from rlhf_core.roles.build import build_role
from rlhf_core.types import AdamWSettings, CallContext, Prompt, Rollout, Scores, UpdateSettings

LR, TOLERANCE = 1e-3, 1e-5
CONTEXT, CPU = CallContext("losses"), torch.device("cpu")
ADAM = AdamWSettings(LR, 0.9, 0.999, 1e-8, 0.0, None)


def compare(python: str, folder: Path) -> dict[str, float]:
    """Largest difference of policy and value loss in the first and the second epoch, KL and reward.

    The second epoch shows that the first step went the same way.

    Args:
        python: Interpreter of TRL's environment.
        folder: An empty folder.
    """
    made = save_models(folder, "small")
    _save_reference(folder)
    tokens_BL = torch.randint(3, VOCABULARY, (PROMPTS, PROMPT_TOKENS + NEW_TOKENS))
    settings = {
        "learning_rate": LR, "vf_coef": 1.0, "adam_beta2": 0.999, "adam_epsilon": 1e-8,
    }  # fmt: skip
    given = {
        "tokens": tokens_BL.tolist(), "prompt_tokens": PROMPT_TOKENS, "settings": settings,
    }  # fmt: skip
    (folder / "tokens.json").write_text(json.dumps(given))
    one, two = (_theirs(python, folder, epochs) for epochs in (1, 2))
    theirs = {
        "kl": one["objective/kl"],
        "reward": one["objective/scores"],
        **{f"{name} 1": one[f"loss/{name}_avg"] for name in ("policy", "value")},
        # Averages over epochs.
        **{
            f"{name} 2": 2 * two[f"loss/{name}_avg"] - one[f"loss/{name}_avg"]
            for name in ("policy", "value")
        },
    }
    ours = _ours(made, tokens_BL)
    return {name: abs(ours[name] - theirs[name]) for name in theirs}


def _save_reference(folder: Path) -> None:
    """A reference that differs from the policy, so that the KL is not 0."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(1)
    LlamaForCausalLM(llama_config("small")).save_pretrained(folder / "reference")
    for file in folder.glob("policy/tokenizer*"):
        (folder / "reference" / file.name).write_bytes(file.read_bytes())


def _theirs(python: str, folder: Path, epochs: int) -> dict[str, float]:
    done = subprocess.run(
        [python, str(Path(__file__).with_name("trl_losses.py")), str(folder), str(epochs)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _ours(made: dict[str, str], tokens_BL: torch.Tensor) -> dict[str, float]:
    folder = Path(made["policy"]).parent
    config = resolve_trial(
        {
            "model": {"policy": made["policy"], "reference": str(folder / "reference")},
            "reward": {"model": made["reward"]},
            "data": {"prompts": made["prompts.txt"]},
            "ppo": {"epochs": 1, "kl": {"coef": 0.05}},
        },
        "losses",
    )
    roles = {
        name: build_role(name, config, CPU) for name in ("learner", "critic", "reference", "reward")
    }
    # TRL's value head has no bias.
    roles["critic"].model.head.bias.requires_grad_(False)
    rollout = _rollout(roles["learner"].model, tokens_BL)
    prompts = [Prompt("", tuple(row[:PROMPT_TOKENS])) for row in tokens_BL.tolist()]
    scores: Scores = roles["reward"].scores(CONTEXT, rollout, prompts)
    batch = Batch(
        rollout, scores, torch.arange(PROMPTS),
        roles["reference"].logprobs(CONTEXT, rollout, 1.0), roles["critic"].values(CONTEXT, rollout),
    )  # fmt: skip
    experience, metrics, _ = build_experience(config, batch, 0.05, RunningNorm())
    # TRL divides the variance of advantages by N - 1.
    count = rollout.response_mask_BT.sum()
    scaled_BT = experience.advantages_BT * ((count - 1) / count).sqrt()
    experience = replace(experience, advantages_BT=scaled_BT)
    found = {"kl": metrics["kl/response"], "reward": metrics["reward/proxy"]}
    for epoch in (1, 2):
        for role, name in (("learner", "policy"), ("critic", "value")):
            update = roles[role].update(CONTEXT, experience, _settings(config))
            found[f"{name} {epoch}"] = update[f"{name}/loss"]
    return found


def _rollout(model: Any, tokens_BL: torch.Tensor) -> Rollout:
    """The tokens as a batch that ``model`` sampled, none of them the last of its response."""
    size, depth = PROMPTS, NEW_TOKENS
    rollout = Rollout(
        tokens_BL, torch.full((size,), PROMPT_TOKENS), torch.ones(size, depth, dtype=torch.bool),
        torch.zeros(size, depth), torch.zeros(size, dtype=torch.bool), torch.zeros(size, depth).long(),
    )  # fmt: skip
    with torch.no_grad():
        stamped_BT = logprobs(model, rollout, 1.0)
    return replace(rollout, logprobs_BT=stamped_BT)


def _settings(config: TrialConfig) -> UpdateSettings:
    """One optimiser step over all rows."""
    return UpdateSettings(
        ADAM, [list(range(PROMPTS))], micro_batch_size=PROMPTS, ppo=config.ppo,
        constant_length=NEW_TOKENS,
    )  # fmt: skip
