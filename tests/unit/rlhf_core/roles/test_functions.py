"""Reward functions of the user: whatever they do is one clear error, and no process stays."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.roles.functions import FunctionPool, RewardFunctionError

PROMPTS = [f"{'p' * i}" for i in range(7)]
RESPONSES = [f"{'r' * i}" for i in range(7)]
METADATA = [{"bonus": 100 * i} for i in range(7)]


def _workers() -> list[psutil.Process]:
    """Worker processes below this one (the resource tracker of multiprocessing is none)."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if any("spawn_main" in part for part in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    assert _workers() == []


def _pool(function: str, workers: int, timeout_s: float = 60.0) -> FunctionPool:
    return FunctionPool(f"core_rewards:{function}", "held-out reward", workers, timeout_s)


def _ask(pool: FunctionPool, count: int = 7) -> list[float]:
    return pool(PROMPTS[:count], RESPONSES[:count], METADATA[:count])


def _error(function: str, workers: int, timeout_s: float = 60.0) -> str:
    pool = _pool(function, workers, timeout_s)
    try:
        with pytest.raises(RewardFunctionError) as caught:
            _ask(pool)
    finally:
        pool.close()
    text = str(caught.value)
    assert text.startswith(f"held-out reward: core_rewards:{function} ")
    assert "\n" not in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text
    return text


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_scores_come_in_the_order_of_the_responses(workers: int) -> None:
    pool = _pool("length", workers)
    expected = [i + i / 100 + 100 * i for i in range(7)]
    try:
        assert _ask(pool) == pytest.approx(expected)
        assert _ask(pool, 2) == pytest.approx(expected[:2])
        assert _ask(pool, 0) == []
    finally:
        pool.close()


def test_workers_share_the_work_outside_this_process() -> None:
    pool = _pool("process", 3)
    try:
        pids = [int(pid) for pid in _ask(pool)]
    finally:
        pool.close()
        pool.close()
    assert os.getpid() not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


# What each function does wrong, in this process and in a worker alike.
BAD = {
    "one_less": "must return 7 numbers, one a response, but returned 6",
    "nan": "returned nan, no finite number",
    "text": "must return a list of numbers, but returned str",
    "by_row": "must return a list of numbers, but returned dict",
    "none_inside": "must return a list of numbers, but returned a list with None",
    "raises": "raised KeyError('no such rating')",
    "raises_unpicklable": "raised TwoArgumentsError('not portable')",
    "exits": "raised SystemExit(3)",
}


@pytest.mark.parametrize(("function", "says"), BAD.items())
def test_a_bad_function_in_this_process_is_one_line(function: str, says: str) -> None:
    assert _error(function, 0).endswith(says)


def test_a_bad_function_in_a_worker_is_one_line_and_the_pool_goes_on() -> None:
    pool = _pool("length", 1)
    try:
        for function, says in BAD.items():
            pool.path = f"core_rewards:{function}"
            with pytest.raises(RewardFunctionError) as caught:
                _ask(pool)
            assert str(caught.value) == f"held-out reward: core_rewards:{function} {says}"
        pool.path = "core_rewards:lazy"
        assert _ask(pool) == [float(i) for i in range(7)]
        (worker,) = _workers()
        assert worker.is_running()
    finally:
        pool.close()


def test_a_crash_is_an_error_and_the_next_call_starts_again() -> None:
    pool = _pool("crashes", 2)
    try:
        with pytest.raises(RewardFunctionError, match="core_rewards:crashes ended its worker"):
            _ask(pool)
        assert _workers() == []
        pool.path = "core_rewards:length"
        assert len(_ask(pool, 2)) == 2
    finally:
        pool.close()


def test_a_hang_ends_with_the_timeout() -> None:
    start = time.monotonic()
    text = _error("hangs", 2, timeout_s=2.0)
    assert text.endswith("took longer than reward.timeout_s = 2 s")
    assert time.monotonic() - start < 8


def test_a_missing_function_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"held-out reward: .*no function 'lenght'"):
        _pool("lenght", 0)
    pool = _pool("lenght", 1)
    try:
        with pytest.raises(ConfigError, match=r"held-out reward: .*no function 'lenght'"):
            _ask(pool)
    finally:
        pool.close()


def test_workers_end_with_a_killed_parent() -> None:
    script = (
        "import os, signal\n"
        "from rlhf_core.roles.functions import FunctionPool\n"
        "if __name__ == '__main__':\n"
        "    pool = FunctionPool('core_rewards:process', 'reward', 1, 60.0)\n"
        "    print(int(pool(['a'], ['b'], [{}])[0]), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)
