"""A role behind its fair queue, with real models and no Ray."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import Zoo
from tiny_rollouts import prompts, role, trial_config

from rlhf_core.config import TrialConfig
from rlhf_core.errors import ServiceError
from rlhf_core.runtime.base import gather
from rlhf_core.runtime.served import ServedRole
from rlhf_core.runtime.shared import shared_roles
from rlhf_core.types import CallContext, Chunk, Prompt, Rollout


def _config(zoo: Zoo, merge: bool) -> TrialConfig:
    shared = {
        f"resources__roles__{name}__{key}": value
        for name in ("reference", "reward")
        for key, value in (("placement", "shared"), ("merge", merge), ("gpus", 0.0))
    }
    return trial_config(
        zoo,
        **shared,
        **{"reward.model": zoo.rewards["other"]},
        reward__heldout_function="core_rewards:length",
    )


@pytest.fixture(params=[False, True], ids=["apart", "merged"])
def served(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[dict[str, ServedRole]]:
    config = _config(zoo, request.param)
    running = {s.role: ServedRole(s.order) for s in shared_roles(config)}
    yield running
    for one in running.values():
        one.close()


@pytest.fixture
def batches(zoo: Zoo) -> list[tuple[Rollout, tuple[Prompt, ...]]]:
    """Responses of unequal length to 3, 5 and 2 prompts."""
    config = _config(zoo, False)
    rollout, asked = role("rollout", config), prompts(config)
    parts = (asked[:3], asked[3:], asked[1:3])
    return [
        (rollout.generate(CallContext("t"), Chunk(i, part, i)), part)
        for i, part in enumerate(parts)
    ]


def _asked(served: ServedRole, method: str, calls: list[tuple[Any, ...]]) -> list[Any]:
    """Results of calls of two callers that all wait before the first is served."""
    gate: Future[Any] = Future()
    # The first call keeps the thread busy, so that the others are merged where that is wanted.
    served._role = _held(served._role, gate)  # type: ignore[method-assign]
    futures = [
        served.call(served.order.role, method, CallContext("ab"[i % 2]), *args)
        for i, args in enumerate([calls[0], *calls])
    ]
    gate.set_result(None)
    return gather(futures)[1:]


def _held(inner: Any, gate: Future[Any]) -> Any:
    def wait() -> Any:
        gate.result(timeout=30)
        return inner()

    return wait


def test_each_caller_gets_what_the_role_alone_would_say(
    zoo: Zoo, served: dict[str, ServedRole], batches: list[tuple[Rollout, tuple[Prompt, ...]]]
) -> None:
    merged = served["reward"].order.merge
    close = {"rtol": 1e-6, "atol": 1e-6} if merged else {"rtol": 0.0, "atol": 0.0}
    config = _config(zoo, False)
    reference, reward = role("reference", config), role("reward", config)
    calls = [(rollout, 1.0) for rollout, _ in batches]
    for got, args in zip(_asked(served["reference"], "logprobs", calls), calls, strict=True):
        want = reference.logprobs(CallContext("t"), *args)
        torch.testing.assert_close(got, want, **close)
    for got, args in zip(_asked(served["reward"], "scores", batches), batches, strict=True):
        want = reward.scores(CallContext("t"), *args)
        torch.testing.assert_close(got.proxy_B, want.proxy_B, **close)
        assert torch.equal(got.heldout_B, want.heldout_B)


def test_requests_of_another_temperature_are_not_mixed_up(
    zoo: Zoo, served: dict[str, ServedRole], batches: list[tuple[Rollout, tuple[Prompt, ...]]]
) -> None:
    reference = role("reference", _config(zoo, False))
    calls = [(rollout, 1.0 + i) for i, (rollout, _) in enumerate(batches)]
    for got, args in zip(_asked(served["reference"], "logprobs", calls), calls, strict=True):
        want = reference.logprobs(CallContext("t"), *args)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_an_error_is_its_callers_alone(
    served: dict[str, ServedRole], batches: list[tuple[Rollout, tuple[Prompt, ...]]]
) -> None:
    (good, asked), (other, others), _ = batches
    bad = [replace(prompt, metadata={"bonus": "much"}) for prompt in others]
    one = served["reward"]
    futures = [
        one.call("reward", "scores", CallContext(caller), rollout, rows)
        for caller, rollout, rows in (("a", good, asked), ("b", other, bad), ("c", good, asked))
    ]
    with pytest.raises(Exception, match="core_rewards:length raised"):
        futures[1].result()
    assert torch.equal(futures[0].result().proxy_B, futures[2].result().proxy_B)


def test_busy_time_is_its_callers(
    served: dict[str, ServedRole], batches: list[tuple[Rollout, tuple[Prompt, ...]]]
) -> None:
    one = served["reference"]
    one.call("reference", "logprobs", CallContext("a"), batches[0][0], 1.0).result()
    assert one.usage("a")["reference"] > 0
    assert one.usage("b") == {"reference": 0.0}
    assert one.charge("a") > 0
    assert one.charge("b") == 0


def test_models_that_changed_since_they_were_asked_for_are_refused(
    zoo: Zoo, batches: list[tuple[Rollout, tuple[Prompt, ...]]]
) -> None:
    (reference, _) = shared_roles(_config(zoo, False))
    one = ServedRole(replace(reference.order, fingerprint="f" * 32))
    with pytest.raises(ServiceError, match=r"reference-ffffff: its models must be those"):
        one.call("reference", "logprobs", CallContext("a"), batches[0][0], 1.0).result()
    with pytest.raises(ServiceError, match="it has no role 'reward'"):
        one.call("reward", "scores", CallContext("a")).result()
    one.close()
    assert not one._thread.is_alive()
