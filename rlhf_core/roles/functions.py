"""User-given reward functions in CPU worker processes: a crash or a hang there is an error, not the end."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from rlhf_core.assets import RewardFunction, load_function
from rlhf_core.errors import RlhfError

# Longest start of a worker, imports of the function's module included.
START_LIMIT_S = 600.0
Metadata = Sequence[Mapping[str, Any]]


class RewardFunctionError(RlhfError, RuntimeError):
    """A reward function raised, crashed, hung, or returned something other than one number a response."""


class FunctionPool:
    """Calls ``(prompts, responses, metadata) -> list[float]`` in worker processes.

    Args:
        path: Import path of the function.
        name: What it is, for messages.
        workers: Processes; 0 calls it here.
        timeout_s: Longest call.
    """

    def __init__(self, path: str, name: str, workers: int, timeout_s: float) -> None:
        self.path, self.name, self.workers, self.timeout_s = path, name, workers, timeout_s
        self._pool: ProcessPoolExecutor | None = None
        if workers == 0:
            self._function = load_function(path, name)

    def __call__(self, prompts: list[str], responses: list[str], metadata: Metadata) -> list[float]:
        if self.workers == 0:
            return _scores(
                self._function, (self.path, self.name), prompts, responses, list(metadata)
            )
        self._ready()
        share = max(1, -(-len(prompts) // self.workers))
        futures = []
        for start in range(0, len(prompts), share):
            part = slice(start, start + share)
            futures.append(self._submit(prompts[part], responses[part], list(metadata)[part]))
        deadline = time.monotonic() + self.timeout_s
        scores: list[float] = []
        for future in futures:
            scores += self._result(future, max(0.0, deadline - time.monotonic()))
        return scores

    def _ready(self) -> None:
        """Starts the workers and imports the function there, which counts against no call's time limit."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start,
                initargs=(os.getpid(),),
            )
            self._result(self._pool.submit(_load, self.path, self.name), START_LIMIT_S)

    def _submit(
        self, prompts: list[str], responses: list[str], metadata: Metadata
    ) -> Future[list[float]]:
        assert self._pool is not None
        return self._pool.submit(_call, (self.path, self.name), prompts, responses, list(metadata))

    def _result(self, future: Future[list[float]], seconds: float) -> list[float]:
        try:
            return future.result(seconds)
        except FutureTimeout:
            self.close()
            raise RewardFunctionError(
                f"{self.name}: {self.path} took longer than reward.timeout_s = {self.timeout_s:g} s"
            ) from None
        except BrokenProcessPool:
            self.close()
            raise RewardFunctionError(
                f"{self.name}: {self.path} ended its worker process"
            ) from None

    def close(self) -> None:
        """Ends the workers, also one that hangs."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join(5)


def _load(path: str, name: str) -> list[float]:
    load_function(path, name)
    return []


def _start(parent: int) -> None:
    """Ends the worker when its parent is gone: a pool's processes outlive a killed parent otherwise."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _call(
    named: tuple[str, str], prompts: list[str], responses: list[str], metadata: list[Any]
) -> list[float]:
    return _scores(load_function(*named), named, prompts, responses, metadata)


def _scores(
    function: RewardFunction,
    named: tuple[str, str],
    prompts: list[str],
    responses: list[str],
    metadata: list[Any],
) -> list[float]:
    """One finite number a response, or an error that says what came instead.

    It runs where the function runs: whatever that raised or returned need not survive pickling.
    """
    path, name = named
    try:
        scores: Any = function(prompts, responses, metadata)
    except (Exception, SystemExit) as error:
        raise RewardFunctionError(f"{name}: {path} raised {error!r}") from error
    return finite_numbers(scores, len(prompts), f"{name}: {path}")


def finite_numbers(scores: Any, count: int, who: str) -> list[float]:
    """``scores`` as ``count`` finite numbers, one a response.

    Args:
        scores: What came back.
        count: Responses that were to be scored.
        who: Whom to blame; starts the line of an error.

    Raises:
        RewardFunctionError: It is something else.
    """
    wrong: object = type(scores).__name__
    try:
        if isinstance(scores, str | bytes | Mapping | Set):
            raise TypeError
        numbers = []
        for score in scores:
            wrong = f"a list with {score!r}"
            numbers.append(float(score))
    except Exception as error:
        raise RewardFunctionError(
            f"{who} must return a list of numbers, but returned {wrong}"
        ) from error
    if len(numbers) != count:
        raise RewardFunctionError(
            f"{who} must return {count} numbers, one a response, but returned {len(numbers)}"
        )
    infinite = next((n for n in numbers if not math.isfinite(n)), None)
    if infinite is not None:
        raise RewardFunctionError(f"{who} returned {infinite}, no finite number")
    return numbers
