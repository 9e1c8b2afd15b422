"""``SweepConfig``: what a sweep.yaml holds. Parameters are dotted keys into ``base``."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from rlhf_core.config.fields import BrokenRulesError, Group, group, in_vain, option
from rlhf_core.config.resources import Amount
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import nearest

_CONSTRAINT = re.compile(r"^\s*([\w/.]+)\s*(<=|>=|<|>)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*$")

MOST_SEEDS = 1000


Direction = Literal["maximize", "minimize"]
SAMPLERS = ("tpe", "gp", "cmaes", "nsga2", "nsga3", "qmc", "random", "grid")
# Those that model trials, once there are enough of them.
BEGIN_AT_RANDOM = ("tpe", "gp")


class SearchConfig(Group):
    sampler: str = option(
        "tpe",
        "What proposes parameters: tpe, gp, cmaes, nsga2, nsga3, qmc, random, grid, or 'package.module:name' of "
        "an Optuna sampler or of what makes one.",
    )
    options: dict[str, Any] = option({}, "Further arguments of the sampler, as Optuna spells them.")
    trials: int = option(8, "Trials of the sweep.", unit="trials", ge=1, le=1_000_000)
    seed: int = option(0, "Seed of the sampler.", ge=0, lt=2**32)
    startup_trials: int = option(
        10,
        "Random trials before tpe or gp starts to model; the population of nsga2 and nsga3.",
        unit="trials",
        ge=1,
    )
    prior: float = option(
        0.5,
        "tpe, gp: share of the startup trials that are drawn around the centres of the space, after a first one "
        "at the centres; 0: the search begins blindly.",
        ge=0,
        le=1,
    )
    grid_points: int = option(
        5, "grid: values of a parameter that has more, or a continuous range.", ge=2, le=1000
    )
    max_concurrent: int | None = option(
        None,
        "Trials that run at the same time; null: what fits the cluster, on a rehearsal also no more "
        "processes than cores.",
        unit="trials",
        ge=1,
    )
    objective: str = option("eval/heldout", "Metric that decides; its last value counts.")
    direction: Direction = option("maximize", "Which way is better.")
    objectives: dict[str, Direction] = option(
        {},
        "Several objectives, as {metric: maximize or minimize}; the first is search.objective, by which trials "
        "are ranked.",
    )
    constraints: tuple[str, ...] = option(
        (), "Rules on last values that a winner keeps, such as 'eval/kl_response <= 20'."
    )
    points: tuple[dict[str, Any] | str, ...] = option(
        (),
        "What to try first: {dotted key: value}, openrlhf, verl or trl for that library's defaults, a former run "
        "directory, or a CSV file; what they leave out is sampled.",
    )
    points_per_run: int = option(
        3, "Best trials that a former run in search.points gives.", unit="trials", ge=1, le=1000
    )

    @property
    def goals(self) -> dict[str, Direction]:
        """Objectives with their directions, the one that ranks first."""
        return self.objectives or {self.objective: self.direction}

    @property
    def begins_at_centres(self) -> bool:
        """Whether the first trials are drawn at and around the centres of the space, where it has any."""
        return self.prior > 0 and self.sampler in BEGIN_AT_RANDOM

    @model_validator(mode="before")
    @classmethod
    def _first_objective_ranks(cls, values: Any) -> Any:
        goals = values.get("objectives") if isinstance(values, dict) else None
        if not isinstance(goals, dict) or not goals:
            return values
        metric, direction = next(iter(goals.items()))
        if direction not in get_args(Direction):
            return values
        first = {"objective": metric, "direction": direction}
        odd = [f"{k} is {values[k]!r}" for k in first if values.get(k, first[k]) != first[k]]
        if odd:
            raise BrokenRulesError(
                [
                    f"search.{line}, but the first of search.objectives is {{{metric}: {direction}}}; remove one"
                    for line in odd
                ]
            )
        return {**values, **first}

    @model_validator(mode="after")
    def _sampler_is_known(self) -> SearchConfig:
        if ":" not in self.sampler and self.sampler not in SAMPLERS:
            raise BrokenRulesError(
                [
                    f"search.sampler is one of {', '.join(SAMPLERS)}, or 'package.module:name', "
                    f"but is {self.sampler!r}{nearest(self.sampler, SAMPLERS)}"
                ]
            )
        found = []
        if self.sampler != "grid":
            off = f"search.sampler 'grid', but that is {self.sampler!r}"
            found += in_vain(self, ("grid_points",), "search.", off)
        # Without the centres any sampler begins.
        if self.prior and self.sampler not in BEGIN_AT_RANDOM:
            off = f"search.sampler 'tpe' or 'gp', but that is {self.sampler!r}"
            found += in_vain(self, ("prior",), "search.", off)
        if found:
            raise BrokenRulesError(found)
        return self


class SchedulerConfig(Group):
    kind: Literal["none", "asha", "median", "hyperband", "pbt", "pb2"] = option(
        "median",
        "What becomes of a trial that is behind the others: asha, hyperband and median stop it, pbt and pb2 let "
        "it go on from a copy of a better one.",
    )
    metric: str | None = option(None, "Metric it looks at; null: search.objective.")
    resource: Literal["iterations", "episodes", "tokens", "gpu_seconds"] = option(
        "iterations", "What grace, rungs and interval count."
    )
    smoothing: int = option(
        1, "The mean of so many last values counts.", unit="values", ge=1, le=1000
    )
    grace: int = option(
        5, "asha, hyperband, median: no trial is stopped before.", unit="scheduler.resource", ge=1
    )
    reduction: int = option(
        3, "asha, hyperband: one in this many goes on at each rung.", ge=2, le=64
    )
    stop: bool = option(
        True,
        "asha, hyperband: a trial that is not among the best ends; false: it waits, and goes on once it is.",
    )
    brackets: int = option(
        3, "hyperband: graces that are tried, each scheduler.reduction times the last.", ge=1, le=10
    )
    min_trials: int = option(
        3, "median: other trials that must have come as far.", unit="trials", ge=1
    )
    interval: int = option(
        5, "pbt, pb2: from one comparison to the next.", unit="scheduler.resource", ge=1
    )
    quantile: float = option(
        0.25, "pbt, pb2: part of the trials that is replaced by copies, and part that is copied.",
        gt=0, le=0.5,
    )  # fmt: skip
    perturb: float = option(
        0.2, "pbt: a copy's numbers are 1 + or 1 - this times those of the best.", gt=0, lt=1
    )
    resample: float = option(
        0.25, "pbt: probability that a copy's value is drawn anew from the space.", ge=0, le=1
    )
    mutate: tuple[str, ...] = option(
        (),
        "pbt, pb2: keys of the space that change in a copy; empty: all that can change in a trial under way.",
    )

    @model_validator(mode="after")
    def _nothing_of_another_kind(self) -> SchedulerConfig:
        lines = [
            line
            for kinds, names in _OF_KINDS.items()
            if self.kind not in kinds
            for line in in_vain(
                self,
                names,
                "scheduler.",
                f"{' and '.join(kinds)}, and scheduler.kind is {self.kind!r}",
            )
        ]
        if lines:
            raise BrokenRulesError(lines)
        return self


_OF_KINDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("asha", "hyperband", "median"): ("grace",),
    ("asha", "hyperband"): ("reduction", "stop"),
    ("hyperband",): ("brackets",),
    ("median",): ("min_trials",),
    ("pbt", "pb2"): ("interval", "quantile", "mutate"),
    ("pbt",): ("perturb", "resample"),
    ("asha", "hyperband", "median", "pbt", "pb2"): ("metric", "resource", "smoothing"),
}


class GuardsConfig(Group):
    max_kl: float | None = option(
        None, "A trial whose kl/response is above this diverged; null: no limit.",
        unit="nats/response", gt=0,
    )  # fmt: skip
    min_entropy_share: float | None = option(
        0.02, "A trial whose policy/entropy is below this part of its first value collapsed; null: no limit.",
        gt=0, lt=1,
    )  # fmt: skip
    max_length_ratio: float | None = option(
        None, "A trial whose rollout/length is above so many times its first value diverged; null: no limit.",
        gt=1, le=1_000_000,
    )  # fmt: skip
    max_truncated_share: float | None = option(
        0.95, "A trial whose rollout/truncated_share is above this diverged, unless it began above half of it; "
        "null: no limit.", gt=0, lt=1,
    )  # fmt: skip
    max_heldout_fall: float | None = option(
        None, "A trial whose reward/heldout is lower than at its start by more than this diverged; null: no "
        "limit.",
        unit="standard errors", gt=0,
    )  # fmt: skip
    max_eval_fall: float | None = option(
        None, "A trial whose eval/heldout is lower than before the first update by more than this diverged; "
        "null: no limit.", unit="standard errors", gt=0,
    )  # fmt: skip
    hacking_fall: float | None = option(
        None, "A trial whose reward/heldout is lower than at its best by more than this, while reward/proxy is "
        "higher than then, learns to please the reward alone; null: no limit.",
        unit="standard errors", gt=0,
    )  # fmt: skip
    window: int = option(
        3,
        "Reports of a batch's rewards whose mean max_heldout_fall and hacking_fall compare.",
        unit="reports",
        ge=2,
        le=1000,
    )
    patience: int = option(3, "Reports in a row beyond a limit.", unit="reports", ge=1)
    eval_patience: int = option(
        3,
        "Evaluations in a row beyond max_eval_fall, or as many as are left of the trial where those are fewer.",
        unit="evaluations",
        ge=1,
    )


class SelectionConfig(Group):
    top: int = option(
        4, "The best trials that run again on test seeds, at most; 0: none.", unit="trials", ge=0, le=1000
    )  # fmt: skip
    test_seeds: int | tuple[int, ...] = option(
        3,
        "Seeds on which each of them runs again, at most: how many, or which, none of them a tuning seed. "
        "They rank by these runs alone. 0: none.",
    )
    smooth: bool = option(
        True,
        "Finalists, and the winner where nothing runs again, are chosen by values smoothed over the parameters; "
        "false: by values as measured.",
    )
    share: float = option(
        0.35,
        "Test runs cost at most this share of what the search cost; where that does not pay for three trials on "
        "two seeds, none is run.",
        gt=0,
        le=100,
    )
    test_prompts: int = option(
        256, "Prompts of the last judgement; 0 leaves it out.", unit="prompts", ge=0, le=1_000_000
    )
    seed: int = option(7_000_003, "Sampling seed of the last judgement.", ge=0, lt=2**63)

    @model_validator(mode="after")
    def _something_to_choose_between(self) -> SelectionConfig:
        if self.top == 1:
            raise ValueError(
                "selection.top: 1 has nothing to be compared with; name 2 or more, or 0"
            )
        seeds = self.test_seeds
        if isinstance(seeds, int):
            if not 0 <= seeds <= MOST_SEEDS:
                raise ValueError(
                    f"selection.test_seeds: {seeds} is no count from 0 to {MOST_SEEDS}"
                )
        elif len(set(seeds)) < len(seeds):
            raise ValueError(f"selection.test_seeds: {list(seeds)} holds a seed twice; remove one")
        elif not all(0 <= seed < 2**63 for seed in seeds):
            raise ValueError(
                f"selection.test_seeds: {list(seeds)} holds a seed that is not from 0 to 2^63 - 1"
            )
        return self


class SweepBudget(Group):
    minutes: float | None = option(None, "No new trial starts later than this.", unit="min", gt=0)
    gpus: float | None = option(
        None,
        "GPUs that trials have in use at once, at most; null: what the cluster has. Shared roles come on top.",
        unit="GPUs",
        gt=0,
    )
    full_trials: float | None = option(
        None,
        "Search and test runs together cost at most so many trials of full length; one that was stopped early "
        "counts with what it ran.",
        unit="trials",
        ge=1,
    )
    retries: int = option(2, "Times a lost trial is run again, from its last checkpoint.", ge=0)


class RehearseConfig(Group):
    nodes: int = option(1, "Logical nodes on this machine.", unit="nodes", ge=1, le=64)
    cpus: float = option(16, "CPUs each node claims to have.", unit="CPUs", ge=1, le=100_000)
    gpus: float = option(4, "GPUs each node claims to have.", unit="GPUs", ge=0, le=100_000)
    memory_gb: float = option(
        256, "Memory each node claims to have.", unit="GB", ge=1, le=1_000_000
    )
    labels: tuple[dict[str, str], ...] = option(
        (),
        "Labels of the nodes, as [{zone: a}, {zone: b}]; node i bears those at i modulo their number.",
    )
    custom: dict[str, Amount] = option({}, "Further Ray resources each node claims to have.")


class NodeTypeConfig(Group):
    name: str = option("worker", "Name of the type, as the autoscaler knows it.", min_length=1)
    cpus: float = option(..., "CPUs of such a node.", unit="CPUs", ge=0, le=100_000)
    gpus: float = option(0, "GPUs of such a node.", unit="GPUs", ge=0, le=100_000)
    memory_gb: float = option(
        ..., "Memory of such a node that Ray may give out.", unit="GB", ge=0, le=1_000_000
    )
    labels: dict[str, str] = option({}, "Its Ray labels.")
    resources: dict[str, Amount] = option({}, "Its further Ray resources.")
    max: int = option(
        1, "How many there can be, running ones among them.", unit="nodes", ge=1, le=100_000
    )


class ServicesConfig(Group):
    turn: int = option(
        64,
        "Chunks of a batch that a shared role answers one trial at most before it is the next trial's turn.",
        unit="chunks",
        ge=1,
    )
    replacements: int = option(
        3, "Times a replica of a shared role whose process died is started again.", ge=0, le=1000
    )
    timeout_s: float = option(
        900.0,
        "A replica that answers nothing for so long, its start included, is given up: trials that ask it fail.",
        unit="s",
        gt=0,
    )


class ClusterConfig(Group):
    rehearse: RehearseConfig | None = Field(
        None, description="Ray schedules GPUs that are not there; roles compute on the CPU."
    )
    address: str | None = option(None, "A running Ray cluster: 'auto' or HOST:PORT.")
    local: bool = option(True, "A Ray of its own with what this machine has.")
    node_types: tuple[NodeTypeConfig, ...] = option(
        (),
        "Nodes that an autoscaler can add, beside those that live: a trial that fits them is waited for.",
    )
    prewarm: bool = option(
        False,
        "Asks the autoscaler for the nodes of all trials that run at once before the first one starts.",
    )
    warm: bool = option(
        True,
        "The processes of a trial stay for the next one with an equal placement, with models and libraries "
        "loaded; its numbers are bit for bit those of a trial in new processes.",
    )
    warm_shapes: int = option(
        3,
        "Sets of such processes that wait for a trial at most, of whatever placements; those idle for longest "
        "make room for a trial that has none.",
        ge=1,
        le=1000,
    )
    affinity: Literal["none", "node", "gpu_domain", "zone"] | None = option(
        None, "Sets base.resources.affinity; null leaves it."
    )
    services: ServicesConfig = group(ServicesConfig, "Services for roles with placement 'shared'.")

    @model_validator(mode="before")
    @classmethod
    def _local_unless_named(cls, values: Any) -> Any:
        if isinstance(values, dict) and "local" not in values:
            named = values.get("rehearse") is not None or values.get("address") is not None
            return {**values, "local": not named}
        return values

    @model_validator(mode="after")
    def _one_of(self) -> ClusterConfig:
        named = [
            k for k in ("rehearse", "address", "local") if getattr(self, k) not in (None, False)
        ]
        if len(named) != 1:
            raise ValueError(
                f"names exactly one of rehearse, address, local, but has {named or 'none'}"
            )
        return self

    @model_validator(mode="after")
    def _only_an_autoscaler_adds_nodes(self) -> ClusterConfig:
        asked = [key for key in ("node_types", "prewarm") if getattr(self, key)]
        if asked and self.address is None:
            where = "a rehearsal" if self.rehearse is not None else "a Ray of the sweep's own"
            raise BrokenRulesError(
                [
                    f"cluster.{key} belongs to a cluster whose autoscaler adds nodes, but nothing adds any to "
                    f"{where}; remove it, or name cluster.address"
                    for key in asked
                ]
            )
        return self


class StorageConfig(Group):
    checkpoints: str | None = option(
        None, "URI or folder for checkpoints; null: in the run directory. On several nodes it must be "
        "one that all of them reach.",
    )  # fmt: skip
    study: str | None = option(
        None,
        "Optuna storage of the study, such as postgresql://HOST/DATABASE or sqlite:///FILE; $NAME is read from "
        "the environment; null: study.log in the run directory.",
    )


class TrackingConfig(Group):
    print_every_s: float = option(
        15.0, "Without a terminal: seconds between progress lines.", unit="s", gt=0
    )


class SweepConfig(Group):
    """One sweep."""

    name: str = option("sweep", "Name of the sweep.", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    program: str = option("sweeps.programs.ppo:PPOProgram", "Import path of what a trial runs.")
    base: TrialConfig | dict[str, Any] = Field(
        default_factory=dict,
        description="What a trial has where the space says nothing: a TrialConfig, or with "
        "'extends' the name of a preset, or a file (.yaml, .yml, .json) of a TrialConfig, and what "
        "differs from it.",
    )
    space: dict[str, Any] = Field(
        default_factory=dict,
        description="{dotted key: domain} of what is searched; a preset's name in a file is "
        "replaced by its content.",
    )
    search: SearchConfig = group(SearchConfig, "What proposes parameters, and for which end.")
    scheduler: SchedulerConfig = group(SchedulerConfig, "What stops trials early.")
    guards: GuardsConfig = group(GuardsConfig, "What ends a trial that went wrong.")
    selection: SelectionConfig = group(SelectionConfig, "How the winner is judged.")
    budget: SweepBudget = group(SweepBudget, "Limits of the sweep as a whole.")
    cluster: ClusterConfig = group(ClusterConfig, "Where trials run.")
    storage: StorageConfig = group(StorageConfig, "Where checkpoints and the study go.")
    tracking: TrackingConfig = group(TrackingConfig, "What is shown while it runs.")

    @model_validator(mode="after")
    def _constraints_parse(self) -> SweepConfig:
        for text in self.search.constraints:
            Constraint.parse(text)
        return self


class Constraint:
    """``METRIC <= NUMBER`` on the last value of a metric."""

    def __init__(self, metric: str, operator: str, bound: float) -> None:
        self.metric, self.operator, self.bound = metric, operator, bound

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """Reads a rule; a malformed one is a ValueError that shows the form."""
        match = _CONSTRAINT.match(text)
        if match is None:
            raise ValueError(
                f"search.constraints: a rule reads 'METRIC <= NUMBER' (or >=, <, >), but is {text!r}"
            )
        return cls(match[1], match[2], float(match[3]))

    def violation(self, value: float) -> float:
        """How far ``value`` breaks the rule; at most 0 where it is kept."""
        return value - self.bound if self.operator in ("<", "<=") else self.bound - value
