"""``SweepConfig``: what a sweep.yaml holds. Parameters are dotted keys into ``base``."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from rlhf_core.config.fields import BrokenRulesError, Group, group, option
from rlhf_core.config.resources import Amount
from rlhf_core.config.trial import TrialConfig

_CONSTRAINT = re.compile(r"^\s*([\w/.]+)\s*(<=|>=|<|>)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*$")

MOST_SEEDS = 1000


class SearchConfig(Group):
    sampler: Literal["tpe", "random", "qmc"] = option("tpe", "How Optuna proposes parameters.")
    trials: int = option(8, "Trials of the sweep.", unit="trials", ge=1, le=1_000_000)
    seed: int = option(0, "Seed of the sampler.", ge=0, lt=2**32)
    startup_trials: int = option(
        10, "Random trials before tpe starts to model.", unit="trials", ge=1
    )
    max_concurrent: int | None = option(
        None,
        "Trials that run at the same time; null: what fits the cluster, on a rehearsal also no more "
        "processes than cores.",
        unit="trials",
        ge=1,
    )
    objective: str = option("eval/heldout", "Metric that decides; its last value counts.")
    direction: Literal["maximize", "minimize"] = option("maximize", "Which way is better.")
    constraints: tuple[str, ...] = option(
        (), "Rules on last values that a winner keeps, such as 'eval/kl_response <= 20'."
    )
    points: tuple[dict[str, Any], ...] = option(
        (), "Parameters to try first, as {dotted key: value}; what is left out is sampled."
    )


class SchedulerConfig(Group):
    kind: Literal["none", "asha", "median"] = option(
        "median", "What stops a trial that is behind the others."
    )
    metric: str | None = option(None, "Metric it looks at; null: search.objective.")
    grace: int = option(5, "No trial is stopped before.", unit="iterations", ge=1)
    reduction: int = option(3, "asha: one in this many goes on at each rung.", ge=2, le=64)
    min_trials: int = option(
        3, "median: other trials that must have come as far.", unit="trials", ge=1
    )


class GuardsConfig(Group):
    max_kl: float | None = option(
        None, "A trial whose kl/response is above this diverged; null: no limit.",
        unit="nats/response", gt=0,
    )  # fmt: skip
    patience: int = option(3, "Iterations in a row above the limit.", unit="iterations", ge=1)


class SelectionConfig(Group):
    top: int = option(
        4, "The best trials that run again on test seeds, at most; 0: none.", unit="trials", ge=0, le=1000
    )  # fmt: skip
    test_seeds: int | tuple[int, ...] = option(
        3,
        "Seeds on which each of them runs again, at most: how many, or which, none of them a tuning seed. "
        "They rank by these runs alone. 0: none.",
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
        8,
        "Chunks that a shared role answers one trial in a row; then it is the next trial's turn.",
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
    storage: StorageConfig = group(StorageConfig, "Where checkpoints go.")
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
