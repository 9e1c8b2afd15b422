"""The one catalogue of metrics: name, unit, direction, reduction, description.

Axis labels, the reference page and the check of a sweep's objective all come from here. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from rlhf_core.errors import ConfigError, nearest

Direction = Literal["up", "down", "none"]
Reduction = Literal["mean", "max", "sum", "last"]
# Stands in the name of an entry for the name of each of a family of metrics.
NAME = "NAME"
# What a score of a judgement measures, in words.
MEASURES = {"heldout": "held-out", "proxy": "optimised"}

# Histogram of staleness: a share for each of 0 .. 3 versions, and one for more.
STALENESS_BINS = 4


def staleness_shares() -> tuple[str, ...]:
    """Metrics of the histogram of staleness."""
    return tuple(f"staleness/share_{n}" for n in (*range(STALENESS_BINS), "more"))


@dataclass(frozen=True)
class Metric:
    """One entry of the catalogue.

    Attributes:
        name: ``group/name``.
        unit: Unit for axis labels; "" where there is none.
        direction: Which way is better: ``up``, ``down``, or ``none``.
        reduction: How the values of one iteration become its one number.
        description: One sentence.
        repeatable: Whether equal seeds on CPU give equal numbers; timings are not.
    """

    name: str
    unit: str
    direction: Direction
    reduction: Reduction
    description: str
    repeatable: bool = True

    @property
    def label(self) -> str:
        """The name with its unit, for an axis."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


def _entries() -> Iterable[Metric]:
    m = Metric
    yield m(
        "reward/proxy",
        "",
        "up",
        "mean",
        "Main reward of the rollouts, before its weight and the KL penalty.",
    )
    yield m(
        "reward/proxy_std", "", "none", "last", "Standard deviation of reward/proxy over episodes."
    )
    yield m(
        "reward/heldout", "", "up", "mean", "Held-out reward of the same rollouts; never optimised."
    )
    yield m(
        "reward/component/NAME", "", "none", "mean", "Reward reward.extra.NAME, before its weight."
    )
    yield m(
        "reward/weighted",
        "",
        "up",
        "mean",
        "Weighted sum of the main reward and those of reward.extra, before normalisation and penalties.",
    )
    yield m("reward/shaped", "", "up", "mean", "Score that is optimised, before the KL penalty.")
    yield m("reward/total", "", "up", "mean", "Sum of rewards of an episode, KL penalty included.")
    yield m(
        "kl/response", "nats", "down", "mean", "KL to the reference, summed over a response (k1)."
    )
    yield m("kl/token", "nats", "down", "mean", "KL to the reference, mean over tokens (k1).")
    yield m(
        "kl/loss",
        "nats",
        "down",
        "mean",
        "KL term of the policy loss per token, before its weight.",
    )
    yield m("kl/coef", "", "none", "last", "Weight of the KL penalty in this iteration.")
    yield m("policy/loss", "", "none", "mean", "Clipped policy loss, mean over tokens and steps.")
    yield m("policy/clip_fraction_low", "", "none", "mean", "Share of tokens clipped at 1 - low.")
    yield m("policy/clip_fraction_high", "", "none", "mean", "Share of tokens clipped at 1 + high.")
    yield m(
        "policy/dual_clip_fraction", "", "none", "mean", "Share of tokens held by the dual clip."
    )
    yield m("policy/ratio_max", "", "none", "max", "Largest probability ratio of a token.")
    yield m("policy/entropy", "nats", "none", "mean", "Entropy per token at sampling temperature.")
    yield m(
        "policy/approx_kl", "nats", "none", "mean", "KL of the update per token (k3, old to new)."
    )
    yield m("policy/approx_kl_k1", "nats", "none", "mean", "KL of the update per token (k1).")
    yield m("policy/grad_norm", "", "none", "mean", "Gradient norm of the policy before clipping.")
    yield m("policy/lr", "", "none", "last", "Learning rate of the policy.")
    yield m("value/loss", "", "down", "mean", "Clipped value loss.")
    yield m("value/explained_variance", "", "up", "mean", "1 - Var(return - value) / Var(return).")
    yield m("value/clip_fraction", "", "none", "mean", "Share of tokens whose value was clipped.")
    yield m("value/grad_norm", "", "none", "mean", "Gradient norm of the critic before clipping.")
    yield m("value/lr", "", "none", "last", "Learning rate of the critic.")
    yield m(
        "correction/weight_mean", "", "none", "mean", "Mean weight of the off-policy correction."
    )
    yield m(
        "correction/rejected_share", "", "down", "mean", "Share of tokens the correction dropped."
    )
    yield m(
        "correction/abs_log_ratio", "nats", "down", "mean", "Learner to sampler, mean per token."
    )
    yield m("correction/abs_log_ratio_max", "nats", "down", "max", "Learner to sampler, largest.")
    yield m("advantage/mean", "", "none", "mean", "Mean advantage before whitening.")
    yield m(
        "advantage/std", "", "none", "last", "Standard deviation of advantages before whitening."
    )
    yield m(
        "rollout/filtered_share", "", "none", "mean", "Share of responses in groups without spread."
    )
    yield m("rollout/length", "tokens", "none", "mean", "Tokens of a response.")
    yield m(
        "rollout/truncated_share", "", "down", "mean", "Share of responses without end-of-sequence."
    )
    yield m(
        "rollout/tokens_per_second", "tokens/s", "up", "last", "Generated tokens per second.", False
    )
    yield m(
        "rollout/continued_share", "", "none", "mean", "Share of responses under several versions."
    )
    yield m(
        "staleness/mean", "versions", "none", "mean", "Learner's version minus a token's stamp."
    )
    yield m("staleness/max", "versions", "none", "max", "Largest staleness of a token.")
    for name, staleness in zip(staleness_shares(), (*range(STALENESS_BINS), "more"), strict=True):
        yield m(name, "", "none", "mean", f"Share of tokens with a staleness of {staleness}.")
    yield m("weights/version", "versions", "none", "last", "Weight version after this iteration.")
    yield m("eval/heldout", "", "up", "mean", "Held-out reward on held-out prompts, fixed seed.")
    yield m("eval/heldout_stderr", "", "none", "last", "Standard error of eval/heldout.")
    yield m("eval/proxy", "", "up", "mean", "Main reward on held-out prompts, fixed seed.")
    yield m("eval/weighted", "", "up", "mean", "reward/weighted on held-out prompts, fixed seed.")
    yield m(
        "eval/component/NAME",
        "",
        "none",
        "mean",
        "Reward reward.extra.NAME on held-out prompts, fixed seed.",
    )
    yield m("eval/kl_response", "nats", "down", "mean", "KL to the reference on held-out prompts.")
    yield m("eval/length", "tokens", "none", "mean", "Tokens of a response to a held-out prompt.")
    for n, what in ((1, "tokens"), (2, "pairs of neighbouring tokens")):
        yield m(
            f"eval/distinct_{n}",
            "",
            "up",
            "mean",
            f"Different {what} over all of them, in the responses to the held-out prompts together.",
        )
    phases = {
        "iteration": "whole iteration",
        "generate": "generation of the batch, also while the learner trained on others",
        "rollout_wait": "wait for the batch; with sync.mode sync its whole generation",
        "score": "reward scores that were not there yet when the batch was",
        "reference": "reference log-probabilities that were not there yet when the batch was",
        "values": "values of the critic",
        "scoring": "stage of the three, from the whole batch to the last answer",
        "learner": "policy update",
        "critic": "critic update",
        "update": "stage of both updates",
        "sync": "weight delivery",
        "eval": "evaluation",
        "checkpoint": "checkpoint",
    }
    for name, what in phases.items():
        yield m(f"time/{name}", "s", "down", "sum", f"Seconds of the {what}.", False)
    for role in ("learner", "critic"):
        yield m(
            f"time/allreduce_{role}",
            "s",
            "down",
            "max",
            f"Seconds of the {role}'s ranks in sums over ranks, waits for each other included; of the "
            "rank that spent most.",
            False,
        )
    yield m("sync/bytes", "bytes", "none", "last", "Weights that each rollout worker was sent.")
    yield m(
        "time/wait", "s", "down", "sum", "Seconds of the iteration in which no role worked.", False
    )
    for role in ("rollout", "learner", "critic", "reference", "reward"):
        yield m(f"util/busy_{role}", "", "up", "mean", f"Busy share of the {role} workers.", False)
    yield m(
        "util/imbalance",
        "",
        "down",
        "last",
        "By how much the busiest of the rollouts' nodes exceeds their mean busy time; above 0.15 a node has "
        "more work than it should. Not there on one node.",
        False,
    )
    yield m(
        "runtime/replaced", "workers", "down", "sum", "Workers that died and were replaced.", False
    )
    yield m("cost/episodes", "episodes", "none", "last", "Episodes sampled so far.")
    yield m("cost/tokens", "tokens", "none", "last", "Response tokens sampled so far.")
    yield m(
        "cost/cpu_seconds",
        "CPU s",
        "down",
        "last",
        "Reserved CPUs x seconds so far, and a part of services.",
        False,
    )
    yield m(
        "cost/gpu_seconds",
        "GPU s",
        "down",
        "last",
        "Reserved GPUs x seconds so far, and a part of services.",
        False,
    )


CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in _entries()}


def entry(name: str) -> Metric | None:
    """The entry ``name``, or that of its family under this name; None where the catalogue has neither."""
    family, _, _ = name.rpartition("/")
    found = CATALOGUE.get(f"{family}/{NAME}") if name not in CATALOGUE else CATALOGUE[name]
    if found is None or found.name == name:
        return found
    own = name.removeprefix(f"{family}/")
    return replace(found, name=name, description=found.description.replace(NAME, own))


def find(name: str, source: str = "metric") -> Metric:
    """The same; an unknown name is an error that lists near misses."""
    found = entry(name)
    if found is None:
        raise ConfigError(f"{source}: no metric {name!r}{nearest(name, CATALOGUE)}")
    return found


def names_under(components: Iterable[str]) -> tuple[str, ...]:
    """Every name of the catalogue, families under each of ``components``."""
    return tuple(
        name
        for known in CATALOGUE
        for name in ([known.replace(NAME, c) for c in components] if NAME in known else [known])
    )


def first_nonfinite(metrics: Mapping[str, float]) -> str | None:
    """Name of the first metric that is NaN or infinite, or None."""
    if all(map(math.isfinite, metrics.values())):
        return None
    return next(name for name, value in metrics.items() if not math.isfinite(value))


def repeatable(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that equal seeds reproduce; what the catalogue does not know counts as one."""
    return {k: v for k, v in metrics.items() if (known := entry(k)) is None or known.repeatable}


@dataclass(frozen=True)
class IterationMetrics:
    """What a trial yields.

    Attributes:
        iteration: Iterations done; 0 is the evaluation before the first update.
        values: ``{metric name: number}``; PPO's names are those of the catalogue.
        repeated: Whether a checkpoint brought them back: they may have been yielded before it was restored.
    """

    iteration: int
    values: dict[str, float]
    repeated: bool = False
