"""Scores from a reward server over HTTP, in the form that OpenRLHF's ``remote_rm_url`` has.

A request is ``{"query": [...], "prompts": [...], "labels": [...]}``, three lists of one length: prompt and
response as the policy saw and wrote them, special tokens included; the prompt alone, with which the query begins;
and the column ``label`` of the prompt file, null where there is none. The answer is ``{"rewards": [...]}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.pool import ThreadPool
from typing import Any

import torch
import urllib3
from torch import Tensor

from rlhf_core.config.reward import RewardConfig
from rlhf_core.errors import shown
from rlhf_core.roles.functions import RewardFunctionError, finite_numbers
from rlhf_core.types import Prompt, Rollout

BUSY = (429, *range(500, 600))
# Seconds of the pauses: none, then twice this, and twice as long each time.
PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
Request = dict[str, list[Any]]


class RemoteScorer:
    """Scores a rollout batch by a server; requests are batches, several at a time.

    Args:
        url: Address of the server.
        name: What it is, for messages.
        reward: Sizes, limits and repetitions.
        tokenizer: The policy's.
    """

    def __init__(self, url: str, name: str, reward: RewardConfig, tokenizer: Any) -> None:
        self.url, self.tokenizer = url, tokenizer
        self.who = f"{name}: {url}"
        self.batch_size, self.timeout_s = reward.url_batch_size, reward.timeout_s
        at_once = max(1, reward.workers)
        # Its threads do not keep the process alive when a server hangs.
        self._threads = ThreadPool(at_once)
        self._http = urllib3.PoolManager(
            maxsize=at_once,
            timeout=urllib3.Timeout(total=reward.timeout_s),
            retries=urllib3.Retry(
                total=reward.url_retries,
                redirect=0,
                allowed_methods=None,
                status_forcelist=BUSY,
                backoff_factor=PAUSE_S,
                backoff_max=LONGEST_PAUSE_S,
                raise_on_status=False,
            ),
        )

    def __call__(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Tensor:
        """Scores, float32 [B].

        Raises:
            RewardFunctionError: The server is silent, refuses, or answers something other than one finite number
                a text.
        """
        texts = _texts(self.tokenizer, rollout)
        labels = [prompt.metadata.get("label") for prompt in prompts]
        requests = [
            {
                "query": [prompt + response for prompt, response in texts[start:stop]],
                "prompts": [prompt for prompt, _ in texts[start:stop]],
                "labels": labels[start:stop],
            }
            for start in range(0, len(texts), self.batch_size)
            for stop in [start + self.batch_size]
        ]
        scores = [score for part in self._threads.imap(self._ask, requests) for score in part]
        return torch.tensor(scores, dtype=torch.float32)

    def _ask(self, request: Request) -> list[float]:
        try:
            answer = self._http.request("POST", self.url, json=request)
            told = answer.json() if answer.status == 200 else None
        except urllib3.exceptions.MaxRetryError as error:
            raise RewardFunctionError(f"{self.who} {self._silence(error.reason)}") from None
        except urllib3.exceptions.HTTPError as error:
            raise RewardFunctionError(f"{self.who} broke off: {error}") from None
        except ValueError:
            body = shown(answer.data.decode(errors="replace"))
            raise RewardFunctionError(
                f"{self.who} must answer with JSON, but sent {body}"
            ) from None
        if answer.status != 200:
            body = shown(answer.data.decode(errors="replace"))
            raise RewardFunctionError(f"{self.who} answered with status {answer.status}: {body}")
        if not isinstance(told, dict) or "rewards" not in told:
            raise RewardFunctionError(
                f'{self.who} must answer with {{"rewards": [...]}}, but sent {shown(told)}'
            )
        return finite_numbers(told["rewards"], len(request["query"]), self.who)

    def _silence(self, reason: Exception | None) -> str:
        if isinstance(reason, urllib3.exceptions.ReadTimeoutError):
            return f"was silent for reward.timeout_s = {self.timeout_s:g} s, each time it was asked"
        return f"cannot be reached: {reason}"

    def close(self) -> None:
        """Gives up what is on its way."""
        self._threads.terminate()
        self._http.clear()


def _texts(tokenizer: Any, rollout: Rollout) -> list[tuple[str, str]]:
    """Prompt and response of every row, special tokens kept."""
    rows = zip(rollout.tokens_BL.tolist(), rollout.prompt_lengths_B.tolist(), strict=True)
    prompts = tokenizer.batch_decode([row[:length] for row, length in rows])
    responses = tokenizer.batch_decode([rollout.response(row) for row in range(rollout.size)])
    return list(zip(prompts, responses, strict=True))
