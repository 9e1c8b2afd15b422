"""One PPO-RLHF trial: a loop that yields the metrics of each iteration; whoever drives it pulls.

The loop knows roles by name and calls them through a ``Runtime``; it holds no model. Nothing random is drawn from
state, so ``k`` iterations, save, load and ``N - k`` iterations equal ``N`` iterations.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from statistics import fmean
from typing import Any

import torch

from rlhf_core import checkpoint
from rlhf_core.assets import resolve
from rlhf_core.batches import batches_of
from rlhf_core.config.generation import rests_between_batches
from rlhf_core.config.trial import ROLES, AdamWConfig, TrialConfig
from rlhf_core.errors import CheckpointError, DivergedError
from rlhf_core.evaluation import sample_and_score, summarise
from rlhf_core.experience import (
    Batch,
    build_experience,
    continued_share,
    staleness_metrics,
    weighted_scores,
)
from rlhf_core.metrics import IterationMetrics, find, first_nonfinite
from rlhf_core.models.load import load_tokenizer
from rlhf_core.ppo.groups import groups_with_spread
from rlhf_core.ppo.kl_control import KLController
from rlhf_core.ppo.minibatches import minibatch_indices
from rlhf_core.ppo.schedule import lr_scale
from rlhf_core.ppo.scores import RunningNorm
from rlhf_core.prompts import PromptSet, chunks_of
from rlhf_core.runtime.base import Runtime, gather
from rlhf_core.runtime.placement import PlacementPlan
from rlhf_core.scoring import FROZEN, Scoring
from rlhf_core.seeding import derive
from rlhf_core.store import Store
from rlhf_core.stream import RolloutStream, Sampled
from rlhf_core.timing import Phases, imbalance
from rlhf_core.types import (
    AdamWSettings,
    CallContext,
    Experience,
    UpdateSettings,
)


class PPOTrial:
    """A trial of ``config.budget.iterations`` iterations.

    Args:
        config: The trial.
        runtime: Its roles.
        plan: Its placement; costs are reserved resources x time.
        store: Where checkpoints go; None keeps none.
        name: Identity towards roles that serve several trials.
    """

    def __init__(
        self,
        config: TrialConfig,
        runtime: Runtime,
        plan: PlacementPlan,
        store: Store | None = None,
        name: str = "trial",
    ) -> None:
        self.config, self.runtime, self.plan, self.store, self.name = (
            config, runtime, plan, store, name,
        )  # fmt: skip
        self.groups = {role: runtime.group(role) for role in config.roles}
        self.trained = [role for role in ("learner", "critic") if role in self.groups]
        # Idle while a batch is sampled: they are asked about its chunks meanwhile.
        self.early = [
            role for role in FROZEN if role in self.groups and plan.sits_apart(role, FROZEN)
        ]
        assets = resolve(config)
        tokenizer = load_tokenizer(assets.policy)
        self.pad_id = int(tokenizer.pad_token_id)
        limit, template = config.data.max_prompt_tokens, config.data.chat_template
        self.train_prompts = PromptSet(assets.prompts["train"], tokenizer, limit, template)
        self.eval_prompts = PromptSet(assets.prompts["eval"], tokenizer, limit, template)
        self.kl = _controller(config)
        self.norm = RunningNorm()
        self.iteration = 0
        self.stream = RolloutStream(
            runtime,
            self.groups["rollout"],
            batches_of(config, self.train_prompts, self.pad_id),
            self._context,
            self._scoring,
            ahead=config.batches_ahead,
            interval=config.sync_interval,
            last=config.budget.iterations,
            rests=rests_between_batches(config),
        )
        self.totals = {"episodes": 0.0, "tokens": 0.0, "seconds": 0.0}
        self.shared_cost = {"gpu_seconds": 0.0, "cpu_seconds": 0.0}
        self._started = time.perf_counter()
        self._saved_at = self._started
        self._best: float | None = None
        self._evaluated = False
        # What the checkpoint was saved with, until it is yielded.
        self._restored: IterationMetrics | None = None
        # What was yielded last.
        self._told: IterationMetrics | None = None
        # Rows of the batch that are trained on; fewer than all where groups are filtered.
        self._kept: list[int] = []
        # Workers that were asked for their busy seconds and have not answered yet.
        self._usage: dict[int, Future[dict[str, float]]] = {}

    # The loop

    def __iter__(self) -> Iterator[IterationMetrics]:
        """Yields iteration 0 (the evaluation before the first update), then 1 .. budget.

        After ``restore`` the iteration of the checkpoint comes first: it was saved before it was yielded, so
        whoever records may never have had it.
        """
        restored = self.take_restored()
        if restored is not None:
            yield restored
        if self.iteration == 0 and not self._evaluated:
            self._evaluated = True
            phases = Phases()
            yield self._finish(phases, self._evaluate(phases))
        while self.iteration < self.config.budget.iterations:
            phases = Phases()
            metrics = self._iterate(phases)
            if self._is_due(self.config.eval.every_iterations) or self.is_last:
                metrics |= self._evaluate(phases)
            yield self._finish(phases, metrics)

    def take_restored(self) -> IterationMetrics | None:
        """Metrics of the checkpoint that ``restore`` went back to, once; what is taken is not yielded."""
        restored, self._restored = self._restored, None
        return restored

    @property
    def is_last(self) -> bool:
        """Whether the budget is used up."""
        return self.iteration >= self.config.budget.iterations

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.iteration % every == 0

    def _context(self, version: int | None = None, *position: int | str) -> CallContext:
        return CallContext(self.name, version, derive(self.config.seed, *position))

    def _scoring(self, batch: int, *position: int | str) -> Scoring:
        # A service tells the batches of a trial apart by their seeds.
        context = self._context(None, "scoring", batch, *position)
        return Scoring(self.groups, context, self.config, self.early)

    def _iterate(self, phases: Phases) -> dict[str, float]:
        """Samples, scores, updates, delivers; the next iteration's number is in force from the start."""
        with phases("rollout_wait"):
            sampled = self.stream.take(self.iteration)
        experience, metrics = self._experience(sampled, phases)
        metrics |= staleness_metrics(experience.rollout, self.iteration)
        self.iteration += 1
        metrics |= self._update(experience, phases)
        if self._is_due(self.config.sync_interval):
            with phases("sync"):
                metrics["sync/bytes"] = self.stream.publish(self._context(self.iteration))
        phases.add("sync", sampled.sync_seconds)
        phases.add("generate", sampled.seconds)
        self.kl = self.kl.update(metrics.get(_kl_unit(self.config), 0.0), experience.rollout.size)
        tokens = float(experience.rollout.response_mask_BT.sum())
        self.totals["episodes"] += experience.rollout.size
        self.totals["tokens"] += tokens
        if sampled.tokens:
            # A checkpoint brings back batches, not the time they took.
            metrics["rollout/tokens_per_second"] = sampled.tokens / max(sampled.seconds, 1e-9)
        if self.config.rollout.partial_tokens is not None:
            metrics["rollout/continued_share"] = continued_share(experience.rollout)
        metrics["weights/version"] = float(self.iteration)
        return metrics

    def _experience(self, sampled: Sampled, phases: Phases) -> tuple[Experience, dict[str, float]]:
        sample = sampled.sample
        whole, values = sample.rollout(self.pad_id), []
        with phases.overlapping("scoring") as watch:
            if "critic" in self.groups:
                call = self.groups["critic"].together(
                    "values", self._context(), self.runtime.share(whole)
                )
                values = watch("values", [call])
            scored = sampled.scoring.finish(sample.chunks, sample.parts, watch)
        scores, ref_BT = scored.result(whole)
        batch = Batch(
            rollout=whole,
            scores=scores,
            groups_B=torch.arange(whole.size) // self.config.rollout.samples_per_prompt,
            ref_logprobs_BT=ref_BT,
            values_BT=gather(values)[0] if values else None,
        )
        self._kept = list(range(whole.size))
        experience, metrics, self.norm = build_experience(
            self.config, batch, self.kl.coef, self.norm
        )
        if self.config.ppo.filter_groups:
            kept_B = groups_with_spread(weighted_scores(self.config, scores), batch.groups_B)
            self._kept = kept_B.nonzero().squeeze(1).tolist()
            metrics["rollout/filtered_share"] = 1 - len(self._kept) / whole.size
        return experience, metrics

    def _update(self, experience: Experience, phases: Phases) -> dict[str, float]:
        """One update of each trained role that learns in this iteration."""
        steps = self._steps()
        learning = [role for role in reversed(self.trained) if steps]
        if self.iteration <= self.config.ppo.critic_warmup_iterations:
            learning = [role for role in learning if role == "critic"]
        context = self._context(self.iteration)
        settings = {"critic": self.config.optim.critic, "learner": self.config.optim.policy}
        shared = self.runtime.share(experience)
        with phases.overlapping("update") as watch:
            futures = []
            for role in learning:
                args = (shared, self._settings(settings[role], steps))
                futures += watch(role, [self.groups[role].together("update", context, *args)])
        return {name: value for update in gather(futures) for name, value in update.items()}

    def _steps(self) -> list[list[int]]:
        """Row indices of every optimiser step: seeded, reshuffled each epoch, of near-equal size."""
        ppo, rows = self.config.ppo, self._kept
        if not rows:
            return []
        seed = derive(self.config.seed, "minibatches", self.iteration)
        count = min(ppo.minibatches, len(rows))
        epochs = minibatch_indices(len(rows), 1, ppo.epochs, seed=seed)
        cuts = [len(rows) * i // count for i in range(count + 1)]
        return [
            [rows[i] for i in epoch[0][start:stop]]
            for epoch in epochs
            for start, stop in itertools.pairwise(cuts)
        ]

    def _settings(self, optim: AdamWConfig, steps: Sequence[Sequence[int]]) -> UpdateSettings:
        ppo = self.config.ppo
        scale = lr_scale(
            optim.schedule,
            self.iteration - 1,
            horizon=optim.horizon_iterations,
            warmup=optim.warmup_iterations,
            min_ratio=optim.min_lr_ratio,
        )
        return UpdateSettings(
            optim=AdamWSettings(
                optim.lr * scale, optim.beta1, optim.beta2, optim.eps, optim.weight_decay,
                optim.max_grad_norm,
            ),
            minibatches=steps,
            micro_batch_size=self.config.optim.micro_batch_size,
            micro_batch_tokens=self.config.optim.micro_batch_tokens,
            temperature=self.config.rollout.temperature,
            ppo=ppo,
            constant_length=ppo.constant_length or self.config.rollout.max_new_tokens,
            kl_coef=self.kl.coef if ppo.kl.mode == "loss" else 0.0,
        )  # fmt: skip

    def _evaluate(self, phases: Phases) -> dict[str, float]:
        """Responses to held-out prompts under the current weights, always the same prompts and seeds."""
        seed = self.config.eval.seed
        with phases("eval"):
            # A prompt asked twice would say nothing new and shrink the standard error.
            count = min(self.config.eval.prompts, len(self.eval_prompts.prompts))
            prompts = self.eval_prompts.take(0, count, seed)
            chunks = chunks_of(prompts, 1, self.config.rollout.chunk_size, seed, "eval")
            context, scoring = self._context(self.iteration), self._scoring(self.iteration, "eval")
            sample = sample_and_score(self.groups["learner"], chunks, context, scoring, self.pad_id)
        return {f"eval/{name}": value for name, value in summarise(self.config, sample).items()}

    def _finish(self, phases: Phases, metrics: dict[str, float]) -> IterationMetrics:
        """Adds times, busy shares and costs; a number that is not finite ends the trial, unsaved."""
        wrong = first_nonfinite(metrics)
        if wrong is not None:
            raise DivergedError("trial", wrong, f"is {metrics[wrong]}")
        self._save_if_due(phases, metrics)
        elapsed = phases.total()
        metrics |= phases.metrics()
        metrics |= self._busy(elapsed)
        metrics |= self.runtime.metrics()
        metrics |= self._cost()
        self._told = IterationMetrics(self.iteration, dict(sorted(metrics.items())))
        return self._told

    def _cost(self) -> dict[str, float]:
        """What was sampled; the trial's own bundles for as long as it runs, and its part of the services'."""
        now = time.perf_counter()
        self.totals["seconds"] += now - self._started
        self._started = now
        for group in self.groups.values():
            for what, amount in group.charged(self.name).items():
                self.shared_cost[what] += amount
        own = {
            "gpu_seconds": self.totals["seconds"] * self.plan.total("gpus"),
            "cpu_seconds": self.totals["seconds"] * self.plan.total("cpus"),
        }
        costs = {what: own[what] + shared for what, shared in self.shared_cost.items()}
        costs |= {what: self.totals[what] for what in ("episodes", "tokens")}
        return {f"cost/{what}": amount for what, amount in costs.items()}

    def _busy(self, elapsed: float) -> dict[str, float]:
        """Busy shares of the roles, and how unevenly the nodes of the rollouts work."""
        rollouts = set(map(id, self.groups["rollout"].workers))
        ahead = {id(w) for role in ("rollout", *self.early) for w in self.groups[role].workers}
        workers = {id(w): w for group in self.groups.values() for w in group.workers}
        seconds, nodes = dict.fromkeys(ROLES, 0.0), defaultdict[str, list[float]](list)
        for key, worker in workers.items():
            asked = self._usage.pop(key, None) or worker.usage(self.name)
            if self.stream.ahead and key in ahead and not asked.done():
                # It works on the next batch; its answer counts in a later iteration.
                self._usage[key] = asked
                continue
            usage = asked.result()
            for role, busy in usage.items():
                seconds[role] += busy
            if key in rollouts:
                nodes[worker.address].append(usage.get("rollout", 0.0))
        metrics = {
            f"util/busy_{role}": min(1.0, seconds[role] / (elapsed * len(group.workers)))
            for role, group in self.groups.items()
        }
        return metrics | imbalance([fmean(busy) for busy in nodes.values()])

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What the loop itself needs to go on; JSON-able. The roles' parts are saved by ``save``."""
        return {
            "iteration": self.iteration,
            "kl_coef": self.kl.coef,
            "kl_coef_configured": self.config.ppo.kl.coef,
            "norm": dataclasses.asdict(self.norm),
            "totals": dict(self.totals),
            "shared_cost": dict(self.shared_cost),
            "best": self._best,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what ``state_dict`` returned."""
        self.iteration = int(state["iteration"])
        self.kl = self._controller_from(state)
        self.norm = RunningNorm(**state["norm"])
        self.totals = {key: float(value) for key, value in state["totals"].items()}
        self.shared_cost |= state.get("shared_cost", {})
        self._best = state["best"]
        self._evaluated = True

    def _controller_from(self, state: dict[str, Any]) -> KLController:
        """The controller where it was; at the configured coefficient where that is another one than it was."""
        configured = _controller(self.config)
        held = float(state["kl_coef"])
        changed = configured.coef != float(state.get("kl_coef_configured", configured.coef))
        return configured if changed else dataclasses.replace(configured, coef=held)

    def _save_if_due(self, phases: Phases, metrics: dict[str, float]) -> None:
        settings, now = self.config.checkpoint, time.perf_counter()
        minutes = (now - self._saved_at) / 60
        by_time = settings.every_minutes is not None and minutes >= settings.every_minutes
        due = self._is_due(settings.every_iterations) or by_time or self.is_last
        if self.store is None or self.iteration == 0 or not due:
            return
        with phases("checkpoint"):
            value = metrics.get(settings.metric)
            is_best = value is not None and self._beats_best(value)
            self._best = value if is_best else self._best
            self.save(metrics | phases.metrics() | self._cost(), best=is_best)
            checkpoint.prune(self.store, settings.keep)
        self._saved_at = now

    def _beats_best(self, value: float) -> bool:
        if self._best is None:
            return True
        down = find(self.config.checkpoint.metric).direction == "down"
        return value < self._best if down else value > self._best

    def save(self, metrics: dict[str, float] | None = None, *, best: bool = False) -> int:
        """Writes a checkpoint of this iteration, with metrics that are yielded again after a restore.

        Returns:
            Its step.
        """
        if self.store is None:
            raise CheckpointError("checkpoint: this trial was given no store")
        step, uri = self.iteration, self.store.uri
        futures: dict[str, Future[Any]] = {
            role: self.groups[role].call("save", self._context(), uri, step)
            for role in self.trained
        }
        waiting = self.stream.settle()
        if self.stream.held != self.iteration:
            futures["rollout"] = self.groups["rollout"].call("save", self._context(), uri, step)
        parts = {role: future.result() for role, future in futures.items()}
        if waiting:
            parts["waiting"] = checkpoint.save_part(self.store, step, "waiting", waiting)
        manifest = {"state": self.state_dict(), "parts": parts, "metrics": metrics or {}}
        checkpoint.commit(self.store, step, manifest, best=best)
        return step

    def ensure_saved(self) -> None:
        """A checkpoint of this iteration, also where none is due; between two iterations only."""
        if self.store is None or checkpoint.pointed(self.store, "latest") != self.iteration:
            self.save(self._told.values if self._told is not None else None)
        if self.store is not None:
            checkpoint.prune(self.store, self.config.checkpoint.keep)

    def restore(self, step: int | None = None) -> bool:
        """Goes back to a checkpoint, the latest by default; False where there is none.

        Raises:
            CheckpointError: If it is incomplete, altered or of another trial.
        """
        if self.store is None:
            return False
        step = checkpoint.pointed(self.store, "latest") if step is None else step
        if step is None:
            return False
        manifest, uri = checkpoint.read_manifest(self.store, step), self.store.uri
        parts = manifest.get("parts")
        parts = parts if isinstance(parts, dict) else {}
        lacks = set(self.trained) - parts.keys()
        if lacks or "state" not in manifest:
            raise CheckpointError(
                f"checkpoint: step {step} in {uri} lacks {', '.join(sorted(lacks)) or 'its state'}"
            )
        gather(
            call
            for role in self.trained
            for call in self.groups[role].call_all("load", self._context(), uri, parts[role])
        )
        try:
            self.load_state_dict(manifest["state"])
            values = {str(name): float(value) for name, value in manifest["metrics"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint: the state of step {step} in {uri} is damaged: {error!r}"
            ) from None
        if "rollout" in parts:
            gather(self.groups["rollout"].call_all("load", self._context(), uri, parts["rollout"]))
            held = int(parts["rollout"]["version"])
        else:
            self.runtime.deliver_weights(self._context(self.iteration)).result()
            held = self.iteration
        waiting = parts.get("waiting")
        tensors = {} if waiting is None else checkpoint.load_part(self.store, waiting)
        self.stream.restart(self.iteration, held, tensors)
        self._restored = IterationMetrics(self.iteration, values, repeated=True) if values else None
        return True

    def close(self) -> None:
        """Ends the trial's processes."""
        self.stream.close()
        self.runtime.close()


def _controller(config: TrialConfig) -> KLController:
    kl = config.ppo.kl
    target = kl.target_per_token or kl.target_per_response
    return KLController(kl.coef, target if kl.controller == "adaptive" else None, kl.horizon)


def _kl_unit(config: TrialConfig) -> str:
    """The metric that the adaptive controller holds at its target."""
    return "kl/token" if config.ppo.kl.target_per_token is not None else "kl/response"
