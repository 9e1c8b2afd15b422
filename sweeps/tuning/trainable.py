"""A trial as a Tune trainable: one ``step`` is one iteration; nothing deterministic escapes as an exception."""

from __future__ import annotations

import errno
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import ray
from ray import tune
from ray.exceptions import OutOfDiskError
from ray.util import get_current_placement_group

from rlhf_core import forks
from rlhf_core.errors import DivergedError
from rlhf_core.metrics import IterationMetrics
from rlhf_core.runtime.placement import Bundle, PlacementPlan, group_request
from rlhf_core.runtime.ray_teardown import LOST
from rlhf_core.store import Store, open_store
from sweeps.decide.scheduling import SavePoints
from sweeps.outcomes import Outcome
from sweeps.programs.base import RunningTrial, TrialContext, load_program
from sweeps.tuning.last_report import LastReport, newest

PPO = "sweeps.programs.ppo:PPOProgram"
# Keys of a Tune config that are ours; every other key is a dotted parameter.
OWN_KEYS = (
    "base",
    "program",
    "trial",
    "checkpoints",
    "services",
    "warm",
    "fork",
    "save_points",
    "heard",
)


def params_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The searched parameters in a Tune config."""
    return {key: value for key, value in config.items() if key not in OWN_KEYS}


class ProgramTrainable(tune.Trainable):
    """Drives a ``TrialProgram``.

    The config holds dotted parameters, and optionally ``base`` (values or a preset's name), ``program``
    (import path), ``trial`` (id), ``checkpoints`` (URI; without it nothing is saved beyond Tune's folder) and
    ``services`` (seats of the services that the sweep started for it), ``warm`` (true: the processes of a
    trial wait for the next one; for a Tuner with ``reuse_actors``), ``save_points`` (a ``SavePoints`` as plain
    values: where it saves whatever its program does), ``heard`` (how many of them the driver knows of) and
    ``fork`` (what ``rlhf_core.forks.install`` takes: the checkpoint it starts from, staged in its store).
    """

    program_path: ClassVar[str] = PPO

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """The bundles of the trial's plan. Never raises: that would end the sweep."""
        try:
            program = load_program(config.get("program", cls.program_path))
            plan = program.placement(_base(config), params_of(config))
        except Exception:  # noqa: BLE001 - setup of the trial meets the same error and reports it
            plan = PlacementPlan("fused", "PACK", (Bundle("head", 0.1, 0.0, 0.0),), ())
        return tune.PlacementGroupFactory(**group_request(plan))

    def setup(self, config: dict[str, Any]) -> None:
        # Roles are built in the first step: an error here would look like a lost process.
        self._running: RunningTrial | None = None
        self._ended_trial: RunningTrial | None = None
        self._metrics: Any = None
        self._born = time.perf_counter()
        self._warm = bool(config.get("warm"))
        self._passed = 0

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Another trial follows in this process; it starts in the first step as well."""
        self._rest()
        self._born = time.perf_counter()
        return True

    def _rest(self) -> None:
        """The trial is over, its processes wait for the next one."""
        if self._running is not None:
            self._ended_trial, self._running, self._metrics = self._running, None, None

    def step(self) -> dict[str, Any]:
        """One iteration; ends the trial with an outcome instead of raising, unless a process was lost."""
        try:
            return self._step()
        except LOST:
            # Tune skips cleanup() where a process died.
            self.cleanup()
            raise
        except DivergedError as error:
            return self._ended(Outcome.DIVERGED, error)
        except MemoryError as error:
            return self._ended(Outcome.INFEASIBLE, error)
        except Exception as error:  # noqa: BLE001 - the declared fault boundary: the trial
            oom = type(error).__name__ in ("OutOfMemoryError", "OutOfMemory")
            return self._ended(Outcome.INFEASIBLE if oom else Outcome.FAILED, error)

    def _step(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        if self._running is None:
            context = self._context()
            self._report = LastReport(context)
            known = self._report.read()
            if known is not None and known["last"]:
                outcome = str(Outcome.COMPLETED)
                return {**known["result"], "again": True, "done": True, "outcome": outcome}
            self._running, told = self._start(context)
            if told:
                result["events"] = told
            self._metrics = iter(self._running)
            result["placement"] = self._placed(self._running.placement())
            result["durations"] = {"load": time.perf_counter() - self._born}
            again = newest(known, getattr(self._running, "recalled", None))
            if again:
                through = self._through() if self._running.is_last else {}
                return {**result, **again, **through, "again": True}
        metrics = next(self._metrics, None)
        last = metrics is None or self._running.is_last
        if metrics is not None:
            result |= {"iteration": metrics.iteration, **metrics.values}
            self._save_where_due(metrics, last)
        events = getattr(self._running, "events", list)()
        if events:
            result["events"] = [*result.get("events", []), *events]
            result |= {"placement": self._placed(self._running.placement())}
        if metrics is not None:
            self._report.write(result, last)
        if last:
            through = self._through()
            result |= {**through, "durations": result.get("durations", {}) | through["durations"]}
        return result

    def _save_where_due(self, metrics: IterationMetrics, last: bool) -> None:
        """Saves before the report: whoever reads it may pause the trial, or copy what was saved."""
        points = self.config.get("save_points")
        if points is None or last:
            return
        passed = SavePoints(**points).due(metrics.iteration, metrics.values, self._passed)
        if passed is not None:
            self._running.save()
            forks.mark(self._store(), metrics.iteration)
            self._passed = passed

    def _through(self) -> dict[str, Any]:
        """What the last result of a trial says besides its metrics; ends its roles."""
        stop = self._timed_end()
        return {"done": True, "outcome": str(Outcome.COMPLETED), "durations": {"stop": stop}}

    def _timed_end(self) -> float:
        """Ends the roles with the last result, so that the next trial finds their devices free, or keeps them."""
        start = time.perf_counter()
        if self._warm:
            self._rest()
        else:
            self.cleanup()
        return time.perf_counter() - start

    def _start(self, context: TrialContext) -> tuple[RunningTrial, list[str]]:
        """The trial, in the processes of the last one where it can be, and what happened to those."""
        ended = self._ended_trial
        # What was saved and never heard of is saved again with the next report.
        self._passed = int(self.config.get("heard", 0))
        if self.config.get("fork"):
            forks.install(context.store, self.config["fork"])
        self._ended_trial = None
        told: list[str] = []
        if ended is not None:
            restarted = getattr(ended, "restart", None)
            if restarted is not None and restarted(context):
                return ended, []
            told = getattr(ended, "events", list)()
            ended.close()
            # What could not be kept once is not trusted again.
            self._warm = self._warm and not told
        program = load_program(self.config.get("program", self.program_path))
        return program.start(replace(context, warm=self._warm)), told

    def _context(self) -> TrialContext:
        config = self.config
        return TrialContext(
            trial=config.get("trial", self.trial_id),
            base=_base(config),
            params=params_of(config),
            store=self._store(),
            placement_group=get_current_placement_group(),
            services=config.get("services", {}),
            warm=self._warm,
        )

    def _store(self) -> Store:
        root = self.config.get("checkpoints") or f"{self.logdir}/trials"
        return open_store(f"{root}/{self.config.get('trial', self.trial_id)}")

    def _placed(self, placement: dict[str, Any]) -> dict[str, Any]:
        """Names this process's node where the program did not."""
        node = ray.get_runtime_context().get_node_id()
        for bundle in placement.get("bundles", []):
            if bundle.get("node") is None:
                bundle["node"] = node
        return placement

    def _ended(self, outcome: Outcome, error: BaseException) -> dict[str, Any]:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        text = "".join(traceback.format_exception(error))
        self.cleanup()
        if _is_full(error):
            return {"done": True, "full": reason}
        return {"done": True, "outcome": str(outcome), "reason": reason, "traceback": text}

    def cleanup(self) -> None:
        """Ends the trial's processes and waits for them."""
        known = (self._running, self._ended_trial)
        self._running = self._ended_trial = self._metrics = None
        for running in known:
            if running is not None:
                running.close()

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        # Checkpoints are the program's, in its own store; a restarted trial finds the latest there.
        save = getattr(self._running, "save", None)
        if save is not None:
            save()
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        return None


class PPOTrainable(ProgramTrainable):
    """PPO-RLHF, for a ``ray.tune.Tuner`` of your own: ``param_space={"base": "tiny", "ppo.kl.coef": ...}``."""

    program_path = PPO


def _is_full(error: BaseException) -> bool:
    """Whether a disk had no room left, here or in a process of a role."""
    found = (error, getattr(error, "cause", None), error.__cause__)
    return any(
        isinstance(e, OutOfDiskError) or getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        for e in found
    )


def _base(config: Mapping[str, Any]) -> Mapping[str, Any]:
    base = config.get("base", {})
    return {"extends": base} if isinstance(base, str) else base
