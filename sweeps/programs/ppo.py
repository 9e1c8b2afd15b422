"""PPO-RLHF as a ``TrialProgram``."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.assets import make_ready, problems
from rlhf_core.config import TrialConfig, apply, known_keys, resolve_trial
from rlhf_core.config.fields import spelled
from rlhf_core.config.measured import unmeasured
from rlhf_core.config.overrides import flat
from rlhf_core.errors import ConfigError
from rlhf_core.memory import Shapes, WorkerMemory, memory_of, memory_problems
from rlhf_core.metrics import IterationMetrics, names_under
from rlhf_core.models.policy import policy_parameters
from rlhf_core.paths import user_path
from rlhf_core.runtime.object_store import StoreNeed, store_need
from rlhf_core.runtime.placement import PlacementPlan, plan_trial
from rlhf_core.runtime.shared import SharedRole, shared_roles
from rlhf_core.store import Store
from rlhf_core.tasks.folder import finished_or_absent
from rlhf_core.tasks.recipe import Progress
from sweeps.programs.base import TrialContext, TrialProgram
from sweeps.programs.describe import differences_as_yaml, measured_by, measured_on

PATH_KEYS = (
    "data.task",
    "data.prompts",
    "data.eval_prompts",
    "data.test_prompts",
    "model.policy",
    "model.reference",
    "reward.model",
    "reward.heldout_model",
    "reward.extra.NAME.model",
)
# What each update reads from the configuration.
MUTABLE = (
    "optim.policy.lr",
    "optim.critic.lr",
    "ppo.kl.coef",
    "ppo.clip_range_low",
    "ppo.clip_range_high",
    "ppo.value_clip_range",
    "ppo.entropy_coef",
    "ppo.gamma",
    "ppo.lam",
    "ppo.epochs",
    "ppo.minibatches",
)


def trial_config(base: Mapping[str, Any], params: Mapping[str, Any]) -> TrialConfig:
    """The configuration of one trial."""
    return apply(resolve_trial(dict(base), "base"), dict(params), "parameters")


def _absolute(value: str, key: str) -> str:
    """The whole path of what is there; anything else, such as a hub id, as it is written."""
    path = user_path(value, f"base.{key}")
    return str(path.absolute()) if path.exists() else value


class PPOProgram(TrialProgram):
    """The built-in program."""

    warm = True
    mutable = MUTABLE

    def keys(self) -> tuple[str, ...]:
        return known_keys()

    def check(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> list[str]:
        try:
            config = trial_config(base, params)
        except ConfigError as error:
            return list(error.problems)
        return problems(config) or memory_problems(config)

    def resolve(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        return trial_config(base, params).model_dump(mode="json")

    def absolute(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: _absolute(value, key)
            if key in spelled(PATH_KEYS, key) and isinstance(value, str)
            else value
            for key, value in values.items()
        }

    def prepare(self, base: Mapping[str, Any], progress: Progress | None = None) -> None:
        make_ready(trial_config(base, {}), progress)

    def placement(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> PlacementPlan:
        return plan_trial(trial_config(base, params))

    def services(
        self, base: Mapping[str, Any], params: Mapping[str, Any]
    ) -> tuple[SharedRole, ...]:
        return shared_roles(trial_config(base, params))

    def processes(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> int:
        config = trial_config(base, params)
        return len(plan_trial(config).workers) * config.resources.threads

    def store_need(self, base: Mapping[str, Any], params: Mapping[str, Any]) -> StoreNeed | None:
        return store_need(trial_config(base, params))

    def memory(
        self, base: Mapping[str, Any], params: Mapping[str, Any]
    ) -> tuple[WorkerMemory, ...] | None:
        config = trial_config(base, params)
        shapes = Shapes.of(config)
        return memory_of(config, shapes) if shapes is not None else None

    def metrics(self, base: Mapping[str, Any], space: Collection[str]) -> tuple[str, ...] | None:
        keys = [*flat(base), *space]
        named = (key.split(".")[2] for key in keys if key.startswith("reward.extra."))
        return names_under(dict.fromkeys(named))

    def unmeasured(
        self, base: Mapping[str, Any], params: Mapping[str, Any], metrics: Collection[str]
    ) -> dict[str, str]:
        config = trial_config(base, params)
        return {name: why for name in metrics if (why := unmeasured(config, name))}

    def model_parameters(self, base: Mapping[str, Any]) -> int | None:
        return policy_parameters(trial_config(base, {}))

    def iterations(self, base: Mapping[str, Any]) -> int | None:
        return trial_config(base, {}).budget.iterations

    def notes(
        self, base: Mapping[str, Any], params: Mapping[str, Any], objective: str
    ) -> list[str]:
        config = trial_config(base, params)
        return [*measured_by(config, objective), *measured_on(config)]

    def judge(
        self, config: Mapping[str, Any], store: Store, selection: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        # torch is needed from here on only.
        from rlhf_core.judgement import judge

        trial = resolve_trial(dict(config), "config.json")
        return judge(trial, store, selection["test_prompts"], selection["seed"]).as_dict()

    def dump(self, config: Mapping[str, Any], header: str) -> str:
        trial = resolve_trial(dict(config), "config.json")
        comment = "".join(f"# {line}\n" for line in header.splitlines())
        return comment + differences_as_yaml(trial)

    def start(self, context: TrialContext) -> RunningPPO:
        return RunningPPO(trial_config(context.base, context.params), context)


class RunningPPO:
    """A PPO trial with its runtime: one process for layout ``fused``, Ray actors for the others."""

    def __init__(self, config: TrialConfig, context: TrialContext) -> None:
        # Imported where a trial runs: the driver of a sweep needs no torch.
        from rlhf_core.models.warm import Shelf
        from rlhf_core.node_files import node_root

        self.plan, self.services = plan_trial(config), context.services
        self._events: list[str] = []
        self._checked = False
        self._shelf = Shelf(node_root() / uuid.uuid4().hex) if context.warm else None
        self.runtime = self._runtime(config, context)
        self._begin(config, context)

    def _begin(self, config: TrialConfig, context: TrialContext) -> None:
        """Makes the loop, from the latest checkpoint where there is one."""
        from rlhf_core.trial import PPOTrial

        try:
            with self._shelf.open("trial") if self._shelf else contextlib.nullcontext():
                self.trial = PPOTrial(config, self.runtime, self.plan, context.store, context.trial)
            self.trial.restore()
            self.recalled = self.trial.take_restored()
        except BaseException:
            self.close()
            raise

    def restart(self, context: TrialContext) -> bool:
        """Begins another trial in the same processes; False once they are ended, where they do not suit it.

        The first time, what the processes kept is compared with what new ones would read.
        """
        config = trial_config(context.base, context.params)
        plan = plan_trial(config)
        # What was sampled ahead for the last trial must not reach the roles of this one.
        self.trial.stream.close(wait=True)
        try:
            suits = context.services == self.services and self.runtime.reset(
                config, plan, not self._checked
            )
        # Whatever it was, a cold start is free of it.
        except Exception as error:  # noqa: BLE001
            suits = False
            self._events.append(f"started cold: {error}")
        if not suits:
            self.close()
            return False
        self._checked = True
        self._begin(config, context)
        return True

    def _runtime(self, config: TrialConfig, context: TrialContext) -> Any:
        missing = [s.role for s in shared_roles(config) if s.role not in context.services]
        if missing:
            raise ConfigError(
                f"resources.roles.{missing[0]}.placement 'shared' needs a sweep, which starts the service; "
                "run the trial in one, or use 'trial'"
            )
        if not context.services:
            return self._own(config, context)
        from rlhf_core.runtime.ray_service import Seat, WithServices, connect_services

        seats = {role: Seat.from_dict(seat) for role, seat in context.services.items()}
        # Connected first: a service that does not answer leaves nothing to be ended.
        shared = connect_services(seats)
        return WithServices(self._own(config, context), shared)

    def _own(self, config: TrialConfig, context: TrialContext) -> Any:
        if config.resources.layout == "fused":
            from rlhf_core.runtime.local import LocalRuntime

            return LocalRuntime(config, self.plan, self.plan.total("gpus"), context.warm)
        from rlhf_core.runtime.ray_runtime import RayRuntime

        if context.placement_group is None:
            raise ConfigError(
                f"resources.layout: {config.resources.layout!r} needs a Ray placement group; run the trial "
                "through Ray or use 'fused'"
            )
        return RayRuntime(config, self.plan, context.placement_group, context.warm)

    def __iter__(self) -> Iterator[IterationMetrics]:
        return iter(self.trial)

    @property
    def is_last(self) -> bool:
        return self.trial.is_last

    def placement(self) -> dict[str, Any]:
        record = getattr(self.runtime, "placement", self.plan.as_dict)
        names = {role: seat["name"] for role, seat in self.services.items()}
        return {**record(), "services": names}

    def events(self) -> list[str]:
        told, self._events = [*self._events, *getattr(self.runtime, "events", list)()], []
        return told

    def save(self) -> None:
        """Writes a checkpoint of the iteration yielded last, unless there is one."""
        self.trial.ensure_saved()

    def save_model(self, folder: Path) -> None:
        """Writes the policy with its tokenizer as an ordinary Hugging Face folder.

        Args:
            folder: An absolute path; absent or an empty folder.
        """
        from rlhf_core.assets import resolve
        from rlhf_core.models.load import load_tokenizer
        from rlhf_core.types import CallContext

        with finished_or_absent(folder) as part:
            context = CallContext(self.trial.name)
            self.trial.groups["learner"].call("export", context, str(part)).result()
            load_tokenizer(resolve(self.trial.config).policy).save_pretrained(str(part))

    def close(self) -> None:
        self.runtime.close()
        if self._shelf is not None:
            self._shelf.close()
            self._shelf = None
