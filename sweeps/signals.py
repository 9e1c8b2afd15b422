"""SIGTERM is Ctrl-C, and Ray Tune's own signal handlers do not outlive the run of a Tuner."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM does what SIGINT does. Outside the main thread signals stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def closing() -> Iterator[None]:
    """Ctrl-C does not cut short what puts an interrupted sweep in order; a second one does.

    People press it twice, and what the first one set off takes a few seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hold(_number: int, _frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Puts back the handlers of SIGINT and SIGUSR1, which Tune replaces and leaves replaced."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
