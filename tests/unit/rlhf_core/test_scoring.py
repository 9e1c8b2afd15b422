"""Frozen roles in places of their own are asked about a chunk while others are still being sampled."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from tiny_models import Zoo
from tiny_rollouts import trial_config

from rlhf_core.config import TrialConfig
from rlhf_core.config.resources import ROLES
from rlhf_core.metrics import repeatable
from rlhf_core.runtime.base import RoleGroup
from rlhf_core.runtime.local import LocalRuntime
from rlhf_core.runtime.placement import plan_trial
from rlhf_core.scoring import FROZEN, Scoring
from rlhf_core.trial import PPOTrial
from rlhf_core.types import CallContext, Chunk

ANY = CallContext("test")


class Noting:
    """A worker that answers at once and notes what it is asked.

    Args:
        name: Of the worker.
        calls: ``(name, method, first argument)`` of every worker.
    """

    address = ""

    def __init__(self, name: str, calls: list[tuple[str, str, Any]]) -> None:
        self.name, self.calls = name, calls

    def call(self, role: str, method: str, context: CallContext, *args: Any) -> Future[Any]:
        self.calls.append((self.name, method, args[0]))
        answer: Future[Any] = Future()
        answer.set_result(args[0])
        return answer


def test_early_roles_are_asked_chunk_by_chunk_and_the_others_at_the_end() -> None:
    calls: list[tuple[str, str, Any]] = []
    names = {"rollout": ["r"], "reference": ["f"], "reward": ["w0", "w1"]}
    groups = {
        role: RoleGroup(role, [Noting(name, calls) for name in own])  # type: ignore[arg-type]
        for role, own in names.items()
    }
    chunks = [Chunk(i, (), i) for i in range(3)]
    scoring = Scoring(groups, ANY, TrialConfig(), early=["reward"])
    asked: list[Any] = [(ANY, (i,)) for i in range(3)]
    parts = groups["rollout"].map(
        "generate", asked, finished=lambda i, part: scoring.sampled(i, chunks[i], part)
    )
    watched: dict[str, list[Any]] = {}

    def watch(name: str, futures: list[Future[Any]]) -> list[Future[Any]]:
        watched[name] = [future.result() for future in futures]
        return futures

    scoring.finish(chunks, parts, watch)
    assert calls == [
        ("r", "generate", 0),
        # The next one is on its way first.
        ("r", "generate", 1),
        ("w0", "scores", 0),
        ("r", "generate", 2),
        ("w1", "scores", 1),
        ("w0", "scores", 2),
        ("f", "logprobs", 0),
        ("f", "logprobs", 1),
        ("f", "logprobs", 2),
    ]
    assert watched == {"reference": [0, 1, 2], "score": [0, 1, 2]}


@pytest.mark.parametrize(
    ("values", "early"),
    [
        ({"resources__layout": "fused"}, []),
        ({"resources__layout": "split"}, ["reference", "reward"]),
        # With the critic on one device.
        ({"resources__layout": "colocated"}, []),
        (
            {
                "resources__layout": "colocated",
                "resources__colocate": [{"roles": ["learner", "rollout", "critic", "reward"]}],
            },
            ["reference"],
        ),
    ],
)
def test_when_a_chunk_is_scored_changes_no_number(
    zoo: Zoo, values: dict[str, Any], early: list[str]
) -> None:
    """Every layout that may ask early gives the numbers of one process, which asks at the end."""
    runs = []
    for own in ({"resources__layout": "fused"}, values):
        config = trial_config(zoo, budget__iterations=2, rollout__chunk_size=2, **own)
        plan = plan_trial(config)
        trial = PPOTrial(config, LocalRuntime(config, plan), plan)
        results = list(trial)
        runs.append([repeatable(m.values) for m in results])
        trial.close()
    assert trial.early == early
    assert runs[0] == runs[1]
    for told in (m.values for m in results[1:]):
        # What was answered before the batch was whole is no part of the critical path, but of the busy shares.
        assert max(told["time/reference"], told["time/score"]) <= told["time/scoring"]
        stages = ("rollout_wait", "scoring", "update")
        assert sum(told[f"time/{stage}"] for stage in stages) <= told["time/iteration"]
        assert all(0 < told[f"util/busy_{role}"] <= 1 for role in FROZEN)


def test_shared_roles_sit_apart(zoo: Zoo) -> None:
    shared = {f"resources__roles__{role}__placement": "shared" for role in FROZEN}
    for layout in ("split", "colocated"):
        plan = plan_trial(trial_config(zoo, resources__layout=layout, **shared))
        assert [role for role in ROLES if plan.sits_apart(role, FROZEN)] == [*FROZEN]
