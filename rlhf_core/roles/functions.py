"""User-given reward functions in CPU worker processes: a crash or a hang there is an error, not the end."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from rlhf_core.assets import load_function
from rlhf_core.errors import RlhfError

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
            return self._checked(self._guard(prompts, responses, metadata), len(prompts))
        share = -(-len(prompts) // self.workers)
        futures = []
        for start in range(0, len(prompts), share):
            part = slice(start, start + share)
            futures.append(self._submit(prompts[part], responses[part], list(metadata)[part]))
        deadline = time.monotonic() + self.timeout_s
        scores: list[float] = []
        for future, size in futures:
            scores += self._checked(self._result(future, deadline), size)
        return scores

    def _guard(self, prompts: list[str], responses: list[str], metadata: Metadata) -> object:
        try:
            return self._function(prompts, responses, list(metadata))
        except Exception as error:
            raise RewardFunctionError(f"{self.name}: {self.path} raised {error!r}") from error

    def _submit(
        self, prompts: list[str], responses: list[str], metadata: Metadata
    ) -> tuple[Future[object], int]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start,
                initargs=(os.getpid(),),
            )
        return self._pool.submit(_call, self.path, prompts, responses, metadata), len(prompts)

    def _result(self, future: Future[object], deadline: float) -> object:
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
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
        except RlhfError:
            raise
        except Exception as error:
            raise RewardFunctionError(f"{self.name}: {self.path} raised {error!r}") from error

    def _checked(self, scores: object, size: int) -> list[float]:
        """One finite number a response, or an error that says what came instead."""
        try:
            numbers = [float(score) for score in scores]  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            raise RewardFunctionError(
                f"{self.name}: {self.path} must return a list of numbers, but returned "
                f"{type(scores).__name__}"
            ) from None
        if len(numbers) != size:
            raise RewardFunctionError(
                f"{self.name}: {self.path} must return {size} numbers, one a response, but "
                f"returned {len(numbers)}"
            )
        wrong = next((n for n in numbers if not math.isfinite(n)), None)
        if wrong is not None:
            raise RewardFunctionError(
                f"{self.name}: {self.path} returned {wrong}, no finite number"
            )
        return numbers

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
            process.join(5)


def _start(parent: int) -> None:
    """Ends the worker when its parent is gone: a pool's processes outlive a killed parent otherwise."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _call(path: str, prompts: list[str], responses: list[str], metadata: Metadata) -> object:
    return load_function(path, "reward function")(prompts, responses, list(metadata))
