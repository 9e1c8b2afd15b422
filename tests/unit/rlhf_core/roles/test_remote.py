"""A reward server is asked in batches, again where it fails, and believed only where it makes sense."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pytest
import torch
from reward_server import Answer, RewardServer, lengths, serving
from tiny_models import Zoo, characters
from tiny_rollouts import CONTEXT, CPU, role, rollout, trial_config

from rlhf_core.assets import make_ready, problems, resolve
from rlhf_core.config import TrialConfig
from rlhf_core.errors import ConfigError
from rlhf_core.roles.functions import RewardFunctionError
from rlhf_core.roles.reward import RewardRole

ONCE = {"reward__url_retries": 0}


def _config(zoo: Zoo, url: str, **values: Any) -> TrialConfig:
    return trial_config(zoo, reward__function=None, reward__url=url, **values)


def _scores(zoo: Zoo, url: str, **values: Any) -> list[float]:
    config = _config(zoo, url, **values)
    batch, asked = rollout(config)
    reward = RewardRole(config, resolve(config), CPU)
    try:
        return reward.scores(CONTEXT, batch, asked).proxy_B.tolist()
    finally:
        reward.close()


def _refused(zoo: Zoo, server: RewardServer, **values: Any) -> str:
    with pytest.raises(RewardFunctionError) as caught:
        _scores(zoo, server.url, **{**ONCE, **values})
    message = str(pickle.loads(pickle.dumps(caught.value)))
    assert message.startswith(f"reward: {server.url} ")
    assert "\n" not in message
    return message.removeprefix(f"reward: {server.url} ")


def test_it_is_sent_what_the_policy_saw_and_wrote(zoo: Zoo) -> None:
    with serving() as server:
        config = _config(zoo, server.url)
        batch, asked = rollout(config)
        reward = RewardRole(config, resolve(config), CPU)
        scores_B = reward.scores(CONTEXT, batch, asked).proxy_B
        reward.close()
    (request,) = server.requests
    assert request["prompts"] == [prompt.text for prompt in asked]
    assert request["labels"] == [None] * len(asked)
    decode = characters().decode
    for row, query in enumerate(request["query"]):
        assert query == asked[row].text + decode(batch.response(row))
    assert scores_B.tolist() == lengths(request)[1]["rewards"]
    assert len(set(scores_B.tolist())) > 1


def test_batches_keep_their_order_whatever_is_answered_first(zoo: Zoo) -> None:
    whole: list[float] = []
    first = threading.Event()

    def late(request: dict[str, Any]) -> Answer:
        # The first batch waits for a later one.
        if request["query"] == server.requests[0]["query"]:
            first.wait(5)
        else:
            first.set()
        return lengths(request)

    with serving() as server:
        whole = _scores(zoo, server.url)
    with serving(late) as server:
        assert _scores(zoo, server.url, reward__url_batch_size=3, reward__workers=2) == whole
        assert sorted(len(r["query"]) for r in server.requests) == [2, 3, 3]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_no_more_requests_at_a_time_than_asked_for(zoo: Zoo, workers: int) -> None:
    def slow(request: dict[str, Any]) -> Answer:
        time.sleep(0.05)
        return lengths(request)

    with serving(slow) as server:
        _scores(zoo, server.url, reward__url_batch_size=1, reward__workers=workers)
    assert len(server.requests) == 8
    assert server.most == max(1, workers)


def test_what_fails_once_is_asked_again(zoo: Zoo) -> None:
    def recovering(request: dict[str, Any]) -> Answer:
        return lengths(request) if len(server.requests) > 2 else (503, {"busy": True})

    with serving(recovering) as server:
        assert _scores(zoo, server.url, reward__url_retries=2)
    assert len(server.requests) == 3
    assert server.requests[0] == server.requests[2]


def test_a_server_that_hangs_is_named_with_the_limit(zoo: Zoo) -> None:
    over = threading.Event()

    def hanging(request: dict[str, Any]) -> Answer:
        over.wait(20)
        return lengths(request)

    with serving(hanging) as server:
        message = _refused(zoo, server, reward__url_retries=1, reward__timeout_s=0.3)
        over.set()
    assert message == "was silent for reward.timeout_s = 0.3 s, each time it was asked"
    assert len(server.requests) == 2


def _shortened(request: dict[str, Any]) -> Answer:
    return 200, {"rewards": lengths(request)[1]["rewards"][1:]}


def _with(value: object) -> Any:
    return lambda request: (200, {"rewards": [value] * len(request["query"])})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda _: (500, {"why": "no model"}), 'answered with status 500: \'{"why": "no model"}\''),
        (lambda _: (404, b"nothing"), "answered with status 404: 'nothing'"),
        (lambda _: (200, b"<html>"), "must answer with JSON, but sent '<html>'"),
        (lambda _: (200, b"\xff\xfe"), "must answer with JSON, but sent"),
        (lambda _: (200, [1.0]), 'must answer with {"rewards": [...]}, but sent [1.0]'),
        (lambda _: (200, {"scores": []}), 'must answer with {"rewards": [...]}'),
        (_shortened, "must return 8 numbers, one a response, but returned 7"),
        (_with(float("nan")), "returned nan, no finite number"),
        (_with(float("inf")), "returned inf, no finite number"),
        (_with(None), "must return a list of numbers, but returned a list with None"),
        (_with("high"), "must return a list of numbers, but returned a list with 'high'"),
        (lambda _: (200, {"rewards": 3}), "must return a list of numbers, but returned int"),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(zoo: Zoo, answer: Any, message: str) -> None:
    with serving(answer) as server:
        assert _refused(zoo, server).startswith(message)


def test_a_server_that_is_gone_is_named(zoo: Zoo) -> None:
    with serving() as server:
        pass
    assert _refused(zoo, server).startswith("cannot be reached: ")


def test_heldout_and_further_rewards_have_servers_of_their_own(zoo: Zoo) -> None:
    with serving() as long, serving(_with(2.0)) as flat:
        config = trial_config(
            zoo, reward__heldout_url=long.url, **{"reward.extra.style.url": flat.url}
        )
        batch, asked = rollout(config)
        reward = role("reward", config)
        scores = reward.scores(CONTEXT, batch, asked)
        reward.close()
    assert scores.extra["style"].tolist() == [2.0] * 8
    assert torch.equal(scores.heldout_B, torch.tensor(lengths(long.requests[0])[1]["rewards"]))


def test_nobody_at_the_address_is_told_before_launch(zoo: Zoo) -> None:
    with serving() as server:
        config = _config(zoo, server.url)
        make_ready(config)
        assert server.requests == []
    assert problems(config) == []
    with pytest.raises(ConfigError) as caught:
        make_ready(config)
    (line,) = caught.value.problems
    assert line.startswith(f"reward.url: nobody answers at {server.url} (")
    assert line.endswith("; start the server, or name another")


@pytest.mark.parametrize(
    "url", ["host:80/x", "ftp://host/x", "http://", "http://host:port", "http://h:0"]
)
def test_an_address_that_is_none_is_refused(zoo: Zoo, url: str) -> None:
    with pytest.raises(ConfigError, match=r"reward\.url must be an http or https address"):
        _config(zoo, url)


def test_rules_of_servers(zoo: Zoo) -> None:
    url = "http://host/score"
    with pytest.raises(ConfigError, match=r"reward\.function and reward\.url exclude each other"):
        trial_config(zoo, reward__url=url)
    with pytest.raises(ConfigError, match=r"reward\.url_retries 5 has no effect"):
        trial_config(zoo, reward__url_retries=5)
    with pytest.raises(ConfigError, match=r"reward\.offset belongs to a reward\.model"):
        _config(zoo, url, reward__offset=1.0)
