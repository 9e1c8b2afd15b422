"""Which metrics of the catalogue a trial never reports, and what to do about it. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf_core.config.ppo import PPOConfig
    from rlhf_core.config.trial import TrialConfig

OF_REFERENCE = (
    "kl/response",
    "kl/token",
    "kl/loss",
    "eval/kl_response",
    "time/reference",
    "util/busy_reference",
)
OF_CRITIC = ("time/values", "time/critic", "time/allreduce_critic", "util/busy_critic")
# Each with the metric of the same responses that is always measured.
OF_HELDOUT = {
    "reward/heldout": "reward/weighted",
    "eval/heldout": "eval/weighted",
    "eval/heldout_stderr": "eval/weighted",
}


def unmeasured(config: TrialConfig, name: str) -> str | None:
    """Why a trial never reports the metric ``name``, and the remedy, as a line's tail; None where it does."""
    reward = config.reward
    own = reward.heldout_model or reward.heldout_function or reward.heldout_url
    named = own or config.data.task
    if name in OF_HELDOUT and not named:
        return (
            "is not measured: data.task is null and no held-out reward is named; name "
            f"reward.heldout_model, reward.heldout_function or reward.heldout_url, or use {OF_HELDOUT[name]} here"
        )
    if name == "rollout/continued_share" and config.rollout.partial_tokens is None:
        return (
            "is not measured with rollout.partial_tokens null; set it, or use no such metric here"
        )
    return left_out(config.ppo, name)


def left_out(ppo: PPOConfig, name: str) -> str | None:
    """The same, as far as the algorithm alone decides it."""
    off = {
        "ppo.kl.measure false": not ppo.kl.measure and name in OF_REFERENCE,
        f"ppo.advantage {ppo.advantage!r}": not ppo.needs_critic
        and (name.startswith("value/") or name in OF_CRITIC),
        "ppo.correction.kind 'none'": ppo.correction.kind == "none"
        and name.startswith("correction/"),
        f"ppo.kl.mode {ppo.kl.mode!r}": ppo.kl.mode != "loss" and name == "kl/loss",
        "ppo.dual_clip null": ppo.dual_clip is None and name == "policy/dual_clip_fraction",
        "ppo.filter_groups false": not ppo.filter_groups and name == "rollout/filtered_share",
    }
    cause = next((option for option, is_off in off.items() if is_off), None)
    return cause and f"is not measured with {cause}; change that, or use no such metric here"
